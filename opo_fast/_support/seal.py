"""Checksums of a file's content, stored in the file itself, so that edits and damage are noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError

__all__ = ["checksum", "digest_of", "opened", "sealed"]

Array = npt.NDArray[Any]


def checksum(array: Array) -> str:
    """The checksum of an array's dtype, shape and values."""
    solid = np.ascontiguousarray(array)
    head = solid.dtype.str if array.ndim == 1 else f"{solid.dtype.str}{array.shape}"
    found = hashlib.blake2b(head.encode(), digest_size=8)
    found.update(solid.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def digest_of(text: str) -> str:
    """The checksum of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(text: str, arrays: Mapping[str, Array]) -> tuple[str, str]:
    """The checksums of the arrays as JSON, and one checksum of that JSON together with `text`."""
    sums = json.dumps({name: checksum(array) for name, array in arrays.items()})
    return sums, digest_of(text + sums)


def opened(text: str, sums: str, total: str) -> dict[str, str]:
    """The checksums of the arrays, as `sealed` wrote them; an error if they or the text were changed."""
    if digest_of(text + sums) != total:
        raise OpoError("the checksum of its settings is wrong: the file was damaged or edited")
    known: dict[str, str] = json.loads(sums)
    return known
