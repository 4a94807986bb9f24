"""Atomic writing of files, and reading that turns whatever is wrong with a file into an `OpoError`."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from ..errors import OpoError
from .checks import as_path

__all__ = ["TEMPORARY", "as_folder", "check_plain", "explained", "reading", "writer_of", "writing"]

TEMPORARY = ".*.part"
"""Pattern of the names of the temporary files that `writing` fills."""
REASONS = {
    "the disk is full (or a quota is used up); free some space": (errno.ENOSPC, errno.EDQUOT),
    "the folder is read-only for this user; make it writable, or name another": (errno.EACCES, errno.EPERM, errno.EROFS),
    "something that is not a folder has that name; name another folder": (errno.ENOTDIR, errno.EEXIST),
}
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextlib.contextmanager
def explained(what: str, error: Callable[[str], OpoError] = OpoError) -> Iterator[None]:
    """Turn an OSError into an error that begins with `what` ("... cannot be written") and says what to do."""
    try:
        yield
    except OSError as failure:
        said = (reason for reason, numbers in REASONS.items() if failure.errno in numbers)
        raise error(f"{what}: {next(said, failure.strerror or str(failure))}") from None


@contextlib.contextmanager
def writing(path: Any, *, durable: bool = True, error: Callable[[str], OpoError] = OpoError) -> Iterator[BinaryIO]:
    """Write a file atomically: it gets its name once it is complete and on the disk, and a failure leaves nothing behind.

    Each writer fills its own temporary file in the same folder, so of several concurrent writers the last one wins. An existing file keeps
    its permissions; a link, a device or a pipe is not replaced.

    Parameters
    ----------
    path : path
    durable : bool
        Whether to flush the file to the disk before it gets its name.
    error : callable
        Makes the exception from its message.
    """
    name = as_path(path)
    with explained(f"path: {name!r} cannot be written", error):
        mode = _replaced_mode(name)
        temporary = _temporary(name)
        try:
            with open(temporary, "xb") as file:
                if mode is not None:
                    os.chmod(temporary, mode)
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        if durable:
            _sync_folder(os.path.dirname(name) or ".")


def _replaced_mode(name: str) -> int | None:
    """The permissions of the file that will be replaced, or None if there is none."""
    try:
        there = os.lstat(name)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    check_plain(name, there)
    if not os.access(name, os.W_OK):
        if os.access(os.path.dirname(name) or ".", os.W_OK):
            raise OSError("the file is read-only for this user; make it writable, or name another")
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return stat.S_IMODE(there.st_mode)


def check_plain(name: str, there: os.stat_result) -> None:
    """Refuse a link, a pipe or a device: opening it could block forever, and replacing it could break something else."""
    kind = KINDS.get(stat.S_IFMT(there.st_mode))
    if kind is not None:
        raise OpoError(f"path: {name!r} is {kind}: a plain file is needed")


def _temporary(name: str) -> str:
    """A unique name in the same folder with the host and the process that write, within the system's limit on names."""
    folder, base = os.path.split(name)
    return os.path.join(folder, f".{base[-32:]}~{socket.gethostname()}~{os.getpid()}~{secrets.token_hex(8)}.part")


def writer_of(temporary: pathlib.Path) -> tuple[str, int] | None:
    """Host and process number of the writer of a temporary file; None if its name does not tell."""
    parts = temporary.name.rsplit("~", 3)
    return (parts[1], int(parts[2])) if len(parts) == 4 and parts[2].isdecimal() else None


def _sync_folder(folder: str) -> None:
    """Flush a folder to the disk, so that a rename in it lasts; some systems cannot flush folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def reading(path: Any, what: str) -> Iterator[None]:
    """Turn any exception raised while the file at `path` is read into an error that says that the file is not `what`."""
    name = as_path(path)
    try:
        check_plain(name, os.stat(name))
        yield
    except FileNotFoundError:
        raise OpoError(f"path: there is no file {name!r}") from None
    except Exception as error:
        # Damaged archives raise exceptions of zipfile, zlib, NumPy, JSON or this package, depending on the damaged byte.
        if isinstance(error, OSError) and error.strerror:
            raise OpoError(f"path: {name!r} cannot be read: {error.strerror}") from None
        if isinstance(error, OpoError) and str(error).startswith("path"):
            raise
        reason = str(error) if isinstance(error, OpoError) else f"{type(error).__name__}: {error}"
        raise OpoError(f"path: {name!r} is not {what}, or is damaged ({reason})") from None


def as_folder(path: Any, name: str) -> pathlib.Path:
    """The folder at `path`, which is made if it does not exist."""
    folder = pathlib.Path(as_path(path, name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OpoError(f"{name} is {str(path)!r}: a folder, or a place where one can be made, is needed ({error.strerror})") from None
    return folder
