"""The folder of a study, with one file per finished run. All files are written atomically.

study.json                   the study
index.jsonl                  one line per run file, so that a listing need not open them; rebuilt from them if it is damaged
runs/ID.parquet              settings, versions, host and the columns of a run (or ID.npz)
failures/ID.json             why a run failed
running/ID.json              the progress of a run
checkpoints/ID-EPISODE.ckpt  the state of an unfinished run
policies/ID.json             the policies that the first seed of each setting has learned, for the report
lock                         held by the process that drives the study
driver.json                  host and number of that process
stop                         asks the workers to stop
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from .._support.checks import as_path
from .._support.files import TEMPORARY, explained, writer_of, writing
from ..errors import OpoError, install
from .file import Study
from .runfile import FORMAT, StoredRun, read_run, write_run
from .signs import STALE, alive, is_failure, is_sign, running, this_process

__all__ = ["Store", "StoreError", "StoredRun", "explaining", "nothing_lost", "read_json", "storing", "write_json"]

Array = npt.NDArray[Any]
Meta = dict[str, Any]

_FOLDERS = ("runs", "failures", "running", "checkpoints", "policies")
_GRACE = 2.0
"""Seconds to wait for the lock, since a process that checks whether it is taken holds it for a moment."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
_CHECK = b', "check": "'
_CHECK_SIZE = len(_CHECK) + 16 + 2
"""Bytes that the checksum takes at the end of a line of the index."""


class StoreError(OpoError):
    """The folder of a study cannot be written or read."""


def nothing_lost(message: str) -> StoreError:
    """An error that says that the study can be resumed."""
    return StoreError(f"{message.removeprefix('path: ')}. Nothing that was stored before is lost: resume the study afterwards")


def explaining(path: pathlib.Path, doing: str) -> contextlib.AbstractContextManager[None]:
    """`files.explained` for a `path` in the folder of a study."""
    return explained(f"{os.fspath(path)!r} cannot be {doing}", nothing_lost)


def storing(path: pathlib.Path, *, durable: bool = True) -> contextlib.AbstractContextManager[Any]:
    """`files.writing` for a `path` in the folder of a study."""
    return writing(path, durable=durable, error=nothing_lost)


def write_json(path: pathlib.Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as JSON, atomically."""
    with storing(path, durable=durable) as file:
        file.write(json.dumps(value, indent=None if path.parent.name == "running" else 1).encode())


def _read_bytes(path: pathlib.Path) -> bytes:
    """The content of a plain file; reading anything else could block forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file")
    return path.read_bytes()


def read_json(path: pathlib.Path) -> Any:
    """What `write_json` wrote, or None if the file is missing or unreadable."""
    try:
        return json.loads(_read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None


class Store:
    """The folder of a study.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(as_path(folder, "folder"))
        self.runs, self.failures, self.running, self.checkpoints, self.policies = (self.folder / name for name in _FOLDERS)
        self.index = self.folder / "index.jsonl"
        self.stop_file = self.folder / "stop"
        self.driver_file = self.folder / "driver.json"

    # -- the study -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """The store of an existing folder."""
        store = cls(folder)
        if not os.path.isfile(store.folder / "study.json"):
            raise StoreError(f"{os.fspath(folder)!r} is not the folder of a study (it has no study.json)")
        return store

    def prepare(self, study: Study) -> None:
        """Make the folder, or update the study that it holds."""
        known = read_json(self.folder / "study.json")
        name = _name_of(known)
        if name is not None and name != study.name:
            raise StoreError(f"{os.fspath(self.folder)!r} holds the study {name!r}, not {study.name!r}: name another folder with --out")
        for part in _FOLDERS:
            with explaining(self.folder / part, "made"):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
        data = {"format": FORMAT, "version": 1, "root": os.fspath(study.root.resolve()), "study": study.to_dict()}
        if data != known:
            write_json(self.folder / "study.json", data)
        else:
            # A folder that cannot be written is refused now, not after hours of work.
            with storing(self.folder / ".probe", durable=False):
                pass
            (self.folder / ".probe").unlink(missing_ok=True)

    def study(self) -> Study:
        """The study that the folder holds."""
        path = self.folder / "study.json"
        try:
            data = json.loads(_read_bytes(path))
            if data["format"] != FORMAT:
                raise KeyError(data["format"])
            return Study.from_dict(data["study"], data["root"])
        except OSError as error:
            raise StoreError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{os.fspath(path)!r} is damaged ({error}): run the study file again, which restores it without repeating finished runs"
            ) from None

    # -- the process that drives it ------------------------------------------------------------------------------------

    def _lock(self, timeout: float) -> Any:
        try:
            import filelock
        except ImportError:
            raise OpoError(f"studies need filelock: {install('study')}") from None
        return filelock.FileLock(self.folder / "lock", timeout=timeout)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; the system releases the lock when the process ends, even if it is killed."""
        lock = self._lock(_GRACE)
        held = self._acquire(lock)
        try:
            write_json(self.driver_file, this_process(), durable=False)
            yield
        finally:
            with contextlib.suppress(OSError):
                self.driver_file.unlink(missing_ok=True)
            if held:
                lock.release()

    def _acquire(self, lock: Any) -> bool:
        """Take the lock; returns False on a file system without locks."""
        try:
            lock.acquire()
        except TimeoutError:
            driver = read_json(self.driver_file)
            known = isinstance(driver, dict) and driver.keys() >= {"host", "pid"}
            who = f"{driver['host']}, process {driver['pid']}" if known else "unknown"
            raise StoreError(
                f"{os.fspath(self.folder)!r} is being run by another process ({who}): see it with 'opo-fast study status'"
            ) from None
        except NotImplementedError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            with explaining(self.folder / "lock", "locked"):
                raise
        return True

    def busy(self) -> bool:
        """Whether a process on this machine drives the study now."""
        driver = read_json(self.driver_file)
        if not isinstance(driver, dict) or driver.get("host") != socket.gethostname() or not alive(driver):
            return False
        # That may be another process with the same number.
        lock = self._lock(0.0)
        try:
            lock.acquire()
        except (OSError, NotImplementedError):
            return True
        lock.release()
        return False

    def clean(self) -> None:
        """Remove the files that dead processes left behind."""
        self.stop_file.unlink(missing_ok=True)
        for folder in (self.folder, *(self.folder / name for name in _FOLDERS)):
            for path in folder.glob(TEMPORARY):
                with contextlib.suppress(OSError):
                    if _left_over(path):
                        path.unlink()
        for path in self.running.glob("*.json"):
            sign = read_json(path)
            if not is_sign(sign) or not alive(sign):
                with contextlib.suppress(OSError):
                    path.unlink()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def write_run(self, meta: Meta, columns: Mapping[str, Array], format: str) -> None:
        """Store a finished run."""
        path = self.runs / f"{meta['id']}.{format}"
        with storing(path) as file:
            write_run(file, meta, columns, format)
        for other in (self.runs / f"{meta['id']}.{name}" for name in ("parquet", "npz") if name != format):
            other.unlink(missing_ok=True)
        self._append(_line({**meta, "file": path.name, "size": path.stat().st_size}))

    def _append(self, line: bytes) -> None:
        # The index only saves time: a line that cannot be written now is restored from the run file later.
        with contextlib.suppress(OSError):
            handle = os.open(self.index, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def finished(self) -> tuple[dict[str, Meta], list[str]]:
        """The metadata of every finished run by id, and a message for each damaged file.

        A file is only opened if the index does not list it with its size.
        """
        found: dict[str, Meta] = {}
        unknown = dict(self._files())
        for meta in self._indexed():
            if unknown.get(meta["file"]) == meta["size"]:
                found[meta["id"]] = meta
        for meta in found.values():
            del unknown[meta["file"]]
        messages = []
        for name, size in unknown.items():
            try:
                # The columns are read too, since the file may be truncated anywhere.
                meta = self._read(self.runs / name).meta
                found[meta["id"]] = {**meta, "file": name, "size": size}
            except StoreError as error:
                messages.append(str(error))
        return found, messages

    def _indexed(self) -> list[Meta]:
        """The lines of the index whose checksums are right."""
        try:
            lines = _read_bytes(self.index).splitlines()
        except OSError:
            return []
        texts = [line[:-_CHECK_SIZE] + b"}" for line in lines if line[-_CHECK_SIZE:] == _check(line[:-_CHECK_SIZE])]
        return list(json.loads(b"[" + b",".join(texts) + b"]"))

    def _files(self) -> Iterator[tuple[str, int]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.runs) as entries:
            for entry in entries:
                if entry.name.endswith((".parquet", ".npz")) and not entry.name.startswith(".") and entry.is_file():
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat().st_size

    def reindex(self) -> list[str]:
        """Complete the index, and rename damaged run files, so that their runs are done again. Returns messages."""
        known, _ = self.finished()
        messages = []
        lines = []
        for name, _size in self._files():
            path = self.runs / name
            if path.stem not in known or known[path.stem]["file"] != name:
                aside = path.with_name(f"{name}.damaged")
                with explaining(path, "put aside"):
                    os.replace(path, aside)
                messages.append(f"{os.fspath(path)!r} is damaged; it was put aside as {aside.name!r} and its run is done again")
            else:
                lines.append(_line(known[path.stem]))
        text = b"".join(lines)
        with contextlib.suppress(OSError):
            if text and _read_bytes(self.index) == text:
                return messages
        if text:
            with storing(self.index) as file:
                file.write(text)
        return messages

    def read_run(self, meta: Meta, columns: Sequence[str] | None = None) -> StoredRun:
        """A finished run with all its columns, or with the given ones."""
        return self._read(self.runs / meta["file"], columns)

    def _read(self, path: pathlib.Path, wanted: Sequence[str] | None = None) -> StoredRun:
        try:
            return read_run(path, wanted)
        except OpoError:
            raise
        except FileNotFoundError:
            raise StoreError(f"the run file {os.fspath(path)!r} is gone: resume the study to run it again") from None
        except Exception as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            raise StoreError(f"the run file {os.fspath(path)!r} is damaged ({reason}): resume the study to run it again") from None

    # -- failures and signs of life --------------------------------------------------------------------------------------

    def write_failure(self, id: str, failure: Meta) -> None:
        """Store why a run failed."""
        write_json(self.failures / f"{id}.json", failure)

    def failed(self) -> dict[str, Meta]:
        """Failures by run id."""
        return _all(self.failures, is_failure)

    def under_way(self) -> dict[str, Meta]:
        """Signs of life by run id."""
        return _all(self.running, is_sign)


def _name_of(known: Any) -> Any:
    """The name of the study in the content of a study.json, or None if it has none."""
    study = known.get("study") if isinstance(known, dict) else None
    return study.get("name") if isinstance(study, dict) else None


def _all(folder: pathlib.Path, known: Callable[[Any], bool]) -> dict[str, Meta]:
    """The contents of the JSON files in a folder by id; files with other content are ignored."""
    found = ((path.stem, read_json(path)) for path in sorted(folder.glob("[!.]*.json")))
    return {id: value for id, value in found if known(value)}


def _check(body: bytes) -> bytes:
    """The end of a line of the index: the checksum of what precedes it."""
    return _CHECK + hashlib.blake2b(body, digest_size=8).hexdigest().encode() + b'"}'


def _line(meta: Meta) -> bytes:
    body = json.dumps(meta).encode()[:-1]
    return body + _check(body) + b"\n"


def _left_over(temporary: pathlib.Path) -> bool:
    """Whether the writer of a temporary file is gone; for a writer on another machine, whether the file has not changed for long."""
    writer = writer_of(temporary)
    if writer is not None and writer[0] == socket.gethostname():
        gone = running(writer[1])
        if gone is not None:
            return not gone
    return time.time() - temporary.stat().st_mtime > 10 * STALE
