"""Checkpoints of a run: its state as npz without pickle, with a checksum; the last two are kept.

A state is a dict of arrays and plain values, nested at will. Random streams are counter-based, so the seed and the
episode are all that has to be kept of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ..errors import OpoError
from .storage import StoreError, explained, write_atomic

__all__ = ["holds", "latest", "remove", "write"]

_MAGIC = b"opo_fast checkpoint 1\n"
_DIGEST = hashlib.sha256().digest_size
KEPT = 2


def write(folder: pathlib.Path, id: str, episode: int, state: Mapping[str, Any]) -> int:
    """Write the state of run `id` after `episode` episodes and drop all but the last two; returns the size in bytes."""
    arrays: dict[str, Any] = {}
    text = json.dumps(_pack(state, arrays, "state"))
    path = folder / f"{id}-{episode}.ckpt"

    def fill(file: BinaryIO) -> None:
        file.write(_MAGIC)
        hashing = _Hashing(file)
        np.savez(hashing, state=np.array(text), **arrays)
        file.write(hashing.digest())

    write_atomic(path, fill)
    for old in _all(folder, id)[KEPT:]:
        old.unlink(missing_ok=True)
    return path.stat().st_size


def holds(value: Any) -> bool:
    """Whether a checkpoint can hold `value`."""
    try:
        json.dumps(_pack(value, {}, "value"))
    except (OpoError, TypeError):
        return False
    return True


def latest(folder: pathlib.Path, id: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest undamaged state of a run, or None, and a message for each damaged one (which is removed)."""
    messages: list[str] = []
    for path in _all(folder, id):
        try:
            return _read(path), messages
        except StoreError as error:
            messages.append(str(error))
            with explained(path, "removed"):
                path.unlink(missing_ok=True)
    return None, messages


def remove(folder: pathlib.Path, id: str) -> None:
    """Remove the checkpoints of a run."""
    for path in _all(folder, id):
        path.unlink(missing_ok=True)


def _all(folder: pathlib.Path, id: str) -> list[pathlib.Path]:
    paths = [path for path in folder.glob(f"{id}-*.ckpt") if path.stem.rpartition("-")[2].isdigit()]
    return sorted(paths, key=lambda path: -int(path.stem.rpartition("-")[2]))


def _read(path: pathlib.Path) -> dict[str, Any]:
    with explained(path, "read"):
        data = path.read_bytes()
    body = memoryview(data)[len(_MAGIC) : -_DIGEST]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[-_DIGEST:]:
        raise StoreError(f"the checkpoint {os.fspath(path)!r} is damaged (its checksum is wrong): the one before it is used")
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        state: dict[str, Any] = _unpack(json.loads(str(file["state"])), file)
    return state


class _Hashing:
    """A file to write to that keeps the checksum of what went through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sum = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def read(self, size: int = -1) -> bytes:
        raise io.UnsupportedOperation("read")

    def digest(self) -> bytes:
        return self._sum.digest()


def _pack(value: Any, arrays: dict[str, Any], where: str) -> Any:
    """`value` as JSON can hold it, its arrays moved to `arrays`."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise OpoError(f"{where} is an array of objects: a checkpoint holds numbers and texts")
        key = f"a{len(arrays)}"
        arrays[key] = array
        return {"$": "array" if isinstance(value, np.ndarray) else "scalar", "of": key}
    if isinstance(value, Mapping):
        if "$" in value or not all(isinstance(key, str) for key in value):
            raise OpoError(f"{where} has keys that a checkpoint cannot hold: texts other than '$' are needed")
        return {key: _pack(inner, arrays, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, tuple):
        return {"$": "tuple", "of": [_pack(inner, arrays, f"{where}[{i}]") for i, inner in enumerate(value)]}
    if isinstance(value, list):
        return [_pack(inner, arrays, f"{where}[{i}]") for i, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OpoError(f"{where} is a {type(value).__name__}: a checkpoint holds arrays, numbers, texts, and lists and dicts of them")


def _unpack(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpack(inner, arrays) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("$")
    if kind is None:
        return {key: _unpack(inner, arrays) for key, inner in value.items()}
    if kind == "tuple":
        return tuple(_unpack(inner, arrays) for inner in value["of"])
    array = arrays[value["of"]]
    return array if kind == "array" else array[()]
