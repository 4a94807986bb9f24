"""Archives of arrays: the members that are needed, within a bound that follows from the file's own size."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError

__all__ = ["read_members"]

Array = npt.NDArray[Any]

ALWAYS = 1 << 26
"""Bytes that any archive may unpack to."""
GROWTH = 100
"""Times its own size that a larger one may unpack to; what this package writes is not compressed."""


def read_members(path: Any, needed: Iterable[str] | None = None) -> dict[str, Array]:
    """The arrays of an npz file that have one of these names (default: all), without pickle.

    Raises
    ------
    OpoError
        They unpack to more than 64 MiB and more than 100 times the size of the file.
    """
    wanted = None if needed is None else {f"{name}.npy" for name in needed}
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if wanted is None or member.filename in wanted]
        total, most = sum(member.file_size for member in members), max(ALWAYS, GROWTH * os.path.getsize(path))
        if total > most:
            raise OpoError(f"its members unpack to {total} bytes: at most {most} are read from a file of this size")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if wanted is None or f"{name}.npy" in wanted}
