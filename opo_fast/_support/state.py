"""States, that is nested arrays and plain values, as JSON and as one file without pickle."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError
from .checks import as_path, instance
from .files import reading, writing
from .seal import checksum, opened, sealed

__all__ = ["decode", "encode", "holds", "members_of", "most_of", "peek", "read_state", "write_state"]

Array = npt.NDArray[Any]

ALWAYS = 1 << 30
"""Any archive may unpack to so many bytes."""
GROWTH = 100
"""A larger archive may unpack to so many times its own size."""
_JSON = "meta"
_SUMS = "checksums"
_NEEDED = "arrays, numbers, texts, None, and lists, tuples and mappings of them are needed"


def encode(value: Any, where: str = "state", arrays: dict[str, Array] | None = None) -> Any:
    """`value` in a form that JSON can hold.

    Parameters
    ----------
    value
        Arrays, numbers, texts, None, and lists, tuples and mappings with texts as keys, nested to any depth.
    where : str
        Name of the value in error messages.
    arrays : dict, optional
        Receives the arrays, each under its place in `value`. Without it their bytes are written into the JSON.

    Raises
    ------
    OpoError
        `value` contains something else; the message names its place.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {"$": kind, "of": _encode_array(np.asarray(value), where, arrays)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise OpoError(f"{where} has keys that a state cannot hold: texts are needed")
        of = {key: encode(inner, f"{where}.{key}", arrays) for key, inner in value.items()}
        # A mapping with a "$" was encoded before, as the contexts of an oracle's state are; it is marked, so that it comes back unchanged.
        return {"$": "mapping", "of": of} if "$" in value else of
    if isinstance(value, (list, tuple)):
        listed = [encode(inner, f"{where}[{i}]", arrays) for i, inner in enumerate(value)]
        return {"$": "tuple", "of": listed} if isinstance(value, tuple) else listed
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OpoError(f"{where} is a {type(value).__name__}, which cannot be saved: {_NEEDED}")


def _encode_array(array: Array, where: str, arrays: dict[str, Array] | None) -> Any:
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise OpoError(f"{where} is an array of {'objects' if array.dtype.hasobject else 'records'}, which cannot be saved: {_NEEDED}")
    if arrays is None:
        return [array.dtype.str, list(array.shape), array.tobytes().hex()]
    name = where.partition(".")[2]
    if name in arrays or name in (_JSON, _SUMS) or not re.fullmatch(r"[\w .\[\]-]{1,200}", name):
        name = f"array {len(arrays)}"
    arrays[name] = array
    return name


def decode(value: Any, where: str = "state", arrays: Mapping[str, Any] | None = None) -> Any:
    """Undo `encode`; whatever `encode` cannot have written raises an error that names the place."""
    if isinstance(value, list):
        return [decode(inner, f"{where}[{i}]", arrays) for i, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict):
        raise OpoError(f"{where} is a {type(value).__name__}, which no state holds: {_NEEDED}")
    if "$" not in value:
        return {key: decode(inner, f"{where}.{key}", arrays) for key, inner in value.items()}
    kind, of = value["$"], value.get("of")
    if kind == "tuple" and isinstance(of, list):
        return tuple(decode(of, where, arrays))
    if kind == "mapping" and isinstance(of, dict):
        return {key: decode(inner, f"{where}.{key}", arrays) for key, inner in of.items()}
    if kind not in ("array", "scalar"):
        raise OpoError(f"{where} is marked as {kind!r}: 'array', 'scalar', 'tuple' or 'mapping' is needed")
    array = _decode_array(of, where, arrays)
    if kind == "scalar" and array.ndim:
        raise OpoError(f"{where} has shape {array.shape}: a single number or text is needed")
    return array if kind == "array" else array[()]


def _decode_array(of: Any, where: str, arrays: Mapping[str, Any] | None) -> Array:
    if isinstance(of, str) and arrays is not None:
        if of not in arrays:
            raise OpoError(f"{where} names the array {of!r}, which is not there")
        stored: Array = arrays[of]
        return stored
    try:
        name, shape, text = of
        dtype, data = np.dtype(name), bytes.fromhex(text)
        if dtype.hasobject or len(data) != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{len(data)} bytes for shape {shape} and dtype {name}")
        return np.ndarray(tuple(shape), dtype, data)
    except (TypeError, ValueError, SyntaxError) as error:
        raise OpoError(f"{where} is not a saved array ({error})") from None


def holds(value: Any) -> bool:
    """Whether a state can hold `value`."""
    try:
        encode(value, arrays={})
    except OpoError:
        return False
    return True


def write_state(
    path: str | os.PathLike[str], state: Mapping[str, Any], *, compressed: bool = False, error: Callable[[str], OpoError] = OpoError
) -> None:
    """Write a state to `path` as npz without pickle: its arrays, a JSON text with everything else, and the checksums of both."""
    instance(state, "state", Mapping, needed="a mapping from names to arrays and plain values")
    arrays: dict[str, Array] = {}
    text = json.dumps(encode(state, "state", arrays))
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with writing(path, error=error) as file, zipfile.ZipFile(file, "w", method) as archive:
        for name, array in {_JSON: np.array(text), _SUMS: np.array(sealed(text, arrays)), **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_state(path: str | os.PathLike[str], what: str = "a state that was saved") -> dict[str, Any]:
    """Read what `write_state` wrote; a file that was damaged or edited is refused.

    A file from a version that wrote no checksums is read with a warning. Only the arrays that the JSON names are unpacked, and together
    they may take at most 1 GiB or 100 times the size of the file, whichever is more.
    """
    with reading(path, what), members_of(path) as members:
        text = str(members[_JSON])
        known = _checksums(members, text)
        if known is None:
            warnings.warn(
                f"{as_path(path)!r} has no checksums, since an older version wrote it: it is not known whether it was edited", stacklevel=3
            )
        state = decode(json.loads(text), "state", members if known is None else _Compared(members, known))
        if not isinstance(state, dict):
            raise OpoError(f"it holds a {type(state).__name__} instead of names and values")
        return state


def peek(path: str | os.PathLike[str], key: str, what: str) -> Any:
    """One plain value from a file that `write_state` wrote; no array is unpacked."""
    with reading(path, what), members_of(path) as members:
        text = str(members[_JSON])
        _checksums(members, text)
        return json.loads(text)[key]


def _checksums(members: Mapping[str, Array], text: str) -> dict[str, str] | None:
    """The checksums of the arrays of a file whose JSON is `text`; None if the file has none."""
    if _SUMS not in members:
        return None
    sums, total = members[_SUMS].tolist()
    return opened(text, sums, total)


def most_of(path: str | os.PathLike[str]) -> int:
    """Bytes that the file at `path` may unpack to."""
    return max(ALWAYS, GROWTH * os.path.getsize(path))


@contextlib.contextmanager
def members_of(path: str | os.PathLike[str]) -> Iterator[Mapping[str, Array]]:
    """The arrays of an npz, each unpacked when it is looked up, up to `most_of(path)` bytes in total."""
    with zipfile.ZipFile(path) as archive:
        yield _Members(archive, most_of(path))


class _Compared(Mapping[str, Array]):
    """Arrays that are compared with their checksums when they are looked up."""

    def __init__(self, members: Mapping[str, Array], known: Mapping[str, str]) -> None:
        self._members, self._known = members, known

    def __getitem__(self, name: str) -> Array:
        array = self._members[name]
        if name not in self._known or checksum(array) != self._known[name]:
            raise OpoError(f"the checksum of {name} is wrong: the file was damaged or edited")
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class _Members(Mapping[str, Array]):
    """The arrays of a zip archive, up to `most` bytes in total; each is read to its end, where zipfile compares the CRC."""

    def __init__(self, archive: zipfile.ZipFile, most: int) -> None:
        self._archive, self._names, self._left = archive, set(archive.namelist()), most

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise OpoError(f"{name} is missing")
        self._left -= self._archive.getinfo(f"{name}.npy").file_size
        if self._left < 0:
            raise OpoError(f"{name} unpacks to more than is read from a file of this size")
        with self._archive.open(f"{name}.npy") as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
            if member.read(1):
                raise OpoError(f"{name} is longer than its header says")
        return array

    def __contains__(self, name: object) -> bool:
        return f"{name}.npy" in self._names

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix(".npy") for name in self._names if name.endswith(".npy"))

    def __len__(self) -> int:
        return sum(name.endswith(".npy") for name in self._names)
