"""Files: each is written whole or not at all, and whatever is wrong with one that is read becomes one error."""

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
"""The names of the files that `writing` fills, as a pattern."""
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
    """Turn what the system says against `what` ("... cannot be written") into an error that says what to do."""
    try:
        yield
    except OSError as failure:
        said = (reason for reason, numbers in REASONS.items() if failure.errno in numbers)
        raise error(f"{what}: {next(said, failure.strerror or str(failure))}") from None


@contextlib.contextmanager
def writing(path: Any, *, durable: bool = True, error: Callable[[str], OpoError] = OpoError) -> Iterator[BinaryIO]:
    """A file that gets its name once it is whole and on the disk; where something fails, nothing is left behind.

    Each writer fills a file of its own in the same folder, so of several writers the last one wins and none does harm. A
    file that is there keeps its mode; a link, a device or a pipe is not replaced.

    Parameters
    ----------
    path : path
    durable : bool
        Whether the file is brought to the disk before it gets its name.
    error : callable
        Makes the error from its text.
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
    """The permissions of the file that is replaced, or None where there is none yet."""
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
    """Refuse a link, a pipe or a device: opening it could wait for ever, and replacing it would do harm elsewhere."""
    kind = KINDS.get(stat.S_IFMT(there.st_mode))
    if kind is not None:
        raise OpoError(f"path: {name!r} is {kind}: a plain file is needed")


def _temporary(name: str) -> str:
    """A name in the same folder that nobody else takes; it tells who is writing, and is no longer than a name may be."""
    folder, base = os.path.split(name)
    return os.path.join(folder, f".{base[-32:]}~{socket.gethostname()}~{os.getpid()}~{secrets.token_hex(8)}.part")


def writer_of(temporary: pathlib.Path) -> tuple[str, int] | None:
    """Host and process that write a temporary file."""
    parts = temporary.name.rsplit("~", 3)
    return (parts[1], int(parts[2])) if len(parts) == 4 and parts[2].isdecimal() else None


def _sync_folder(folder: str) -> None:
    """A rename is on the disk once its folder is; some systems cannot do that for folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def reading(path: Any, what: str) -> Iterator[None]:
    """Turn whatever is raised while the file at `path` is read into an error that says that it is not `what`."""
    name = as_path(path)
    try:
        check_plain(name, os.stat(name))
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
