"""Checkpoints of a run, of which the last two are kept.

Random streams are counter-based, so a checkpoint only needs the seed and the number of episodes for them.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from .._support.state import read_state, write_state
from ..errors import OpoError
from .storage import explaining, nothing_lost

__all__ = ["latest", "remove", "write"]

KEPT = 2


def write(folder: pathlib.Path, id: str, episode: int, state: Mapping[str, Any]) -> int:
    """Write the state of run `id` after `episode` episodes and drop all but the last two; returns the size in bytes."""
    path = folder / f"{id}-{episode}.ckpt"
    write_state(path, state, error=nothing_lost)
    for old in _all(folder, id)[KEPT:]:
        old.unlink(missing_ok=True)
    return path.stat().st_size


def latest(folder: pathlib.Path, id: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest undamaged state of a run, or None, and a message for each damaged one, which is removed."""
    messages: list[str] = []
    for path in _all(folder, id):
        try:
            return read_state(path, "a checkpoint"), messages
        except OpoError as error:
            reason = str(error).removeprefix("path: ")
            messages.append(f"{reason}: the checkpoint before it is used")
            with explaining(path, "removed"):
                path.unlink(missing_ok=True)
    return None, messages


def remove(folder: pathlib.Path, id: str) -> None:
    """Remove the checkpoints of a run."""
    for path in _all(folder, id):
        path.unlink(missing_ok=True)


def _all(folder: pathlib.Path, id: str) -> list[pathlib.Path]:
    paths = [path for path in folder.glob(f"{id}-*.ckpt") if path.stem.rpartition("-")[2].isdecimal() and os.path.isfile(path)]
    return sorted(paths, key=lambda path: -int(path.stem.rpartition("-")[2]))
