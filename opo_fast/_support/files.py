"""Files: each is written whole or not at all, and whatever is wrong with one that is read becomes one error."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from ..errors import OpoError
from .checks import as_path, instance


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able values to `path` as npz without pickle."""
    instance(state, "state", Mapping, needed="a mapping from names to arrays and plain values")
    arrays: dict[str, Any] = {f"array.{key}": value for key, value in state.items() if isinstance(value, np.ndarray)}
    rest = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    for key, value in arrays.items():
        if value.dtype.hasobject:
            raise OpoError(f"state[{key.removeprefix('array.')!r}] is an array of objects: numbers are needed")
    try:
        meta = json.dumps(rest)
    except TypeError as error:
        raise OpoError(f"state holds a value that JSON cannot hold: {error}") from None
    with writing(path) as file:
        np.savez(file, meta=np.array(meta), **arrays)


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    with reading(path, "a state that was saved"), np.load(path, allow_pickle=False) as file:
        state = dict(json.loads(str(file["meta"])))
        state.update({name.removeprefix("array."): file[name] for name in file.files if name.startswith("array.")})
    return state


@contextlib.contextmanager
def writing(path: Any) -> Iterator[BinaryIO]:
    """A file that gets its name once it is whole and on the disk; where something fails, nothing is left behind."""
    name = as_path(path)
    temporary = f"{name}.part"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):
            os.remove(temporary)
        if isinstance(error, OSError):
            raise OpoError(f"path: {name!r} cannot be written: {error.strerror or error}") from None
        raise


@contextlib.contextmanager
def reading(path: Any, what: str) -> Iterator[None]:
    """Turn whatever is raised while the file at `path` is read into an error that says that it is not `what`."""
    name = as_path(path)
    try:
        yield
    except FileNotFoundError:
        raise OpoError(f"path: there is no file {name!r}") from None
    except Exception as error:
        # What a damaged archive raises depends on the byte that is damaged: errors of zip, zlib, NumPy, JSON and ours.
        if isinstance(error, OSError) and error.strerror:
            raise OpoError(f"path: {name!r} cannot be read: {error.strerror}") from None
        if isinstance(error, OpoError) and str(error).startswith("path"):
            raise
        reason = str(error) if isinstance(error, OpoError) else f"{type(error).__name__}: {error}"
        raise OpoError(f"path: {name!r} is not {what}, or is damaged ({reason})") from None


def as_folder(path: Any, name: str) -> pathlib.Path:
    """The folder at `path`, made where it is not there."""
    folder = pathlib.Path(as_path(path, name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OpoError(f"{name} is {str(path)!r}: a folder, or a place where one can be made, is needed ({error.strerror})") from None
    return folder
