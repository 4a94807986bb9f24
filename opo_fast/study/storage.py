"""The folder of a study: one file per finished run, written whole or not at all.

study.json            the study
index.jsonl           one line per run file, so that a listing need not open them; made anew from them where it is damaged
runs/ID.parquet       settings, versions, host and the columns of a run (or ID.npz)
failures/ID.json      why a run failed
running/ID.json       how far a run is
checkpoints/ID-EPISODE.ckpt
lock, stop            held by the process that drives the study; asks the workers to stop
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .._support.checks import as_path
from ..errors import OpoError, install
from .file import Study

__all__ = ["StoredRun", "Store", "StoreError", "versions", "write_atomic"]

Array = npt.NDArray[Any]
Meta = dict[str, Any]

_FORMAT = "opo_fast.study"
_FOLDERS = ("runs", "failures", "running", "checkpoints")
STALE = 60.0
"""Seconds without a sign of life after which a run counts as stalled, or a temporary file as left over."""


class StoreError(OpoError):
    """The folder of a study cannot be written or read."""


@contextlib.contextmanager
def explained(path: pathlib.Path, doing: str = "written") -> Iterator[None]:
    """Turn what the system says about `path` into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full (or a quota is used up); free some space and resume the study"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "the folder is read-only for this user; make it writable, or name another with --out"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            reason = "something that is not a folder has that name; name another folder with --out"
        else:
            reason = error.strerror or str(error)
        raise StoreError(f"{os.fspath(path)!r} cannot be {doing}: {reason}. Nothing that was stored before is lost") from None


def write_atomic(path: pathlib.Path, write: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Have `write` fill a temporary file, bring it to the disk, and give it its name; on failure nothing is left behind."""
    temporary = path.with_name(f".{path.name}~{socket.gethostname()}~{os.getpid()}~{time.monotonic_ns()}.part")
    with explained(path):
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    """A rename is on the disk once its folder is; some systems cannot do that for folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: pathlib.Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as JSON, atomically."""
    text = json.dumps(value, indent=None if path.parent.name == "running" else 1)
    write_atomic(path, lambda file: file.write(text.encode()), durable=durable)


def read_json(path: pathlib.Path) -> Any:
    """What `write_json` wrote, or None where the file is gone or unreadable."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def versions() -> dict[str, str]:
    """Versions and machine that a run depends on."""
    import numba
    import scipy

    from .. import __version__

    return {
        "opo_fast": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def default_format() -> str:
    """parquet where pyarrow is installed, else npz."""
    import importlib.util

    return "parquet" if importlib.util.find_spec("pyarrow") is not None else "npz"


class StoredRun:
    """A finished run.

    Attributes
    ----------
    meta : dict
        Settings, seed, versions, host, times and a summary.
    columns : dict of ndarray
        One entry per recorded episode; ``episode`` counts from 1.
    """

    def __init__(self, meta: Meta, columns: dict[str, Array]) -> None:
        self.meta, self.columns = meta, columns

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise OpoError(f"run {self.meta['id']} has no column {name!r}; it has {', '.join(self.columns)}")
        return self.columns[name]

    def __repr__(self) -> str:
        meta = self.meta
        return f"<StoredRun {meta['environment']['label']} / {meta['agent']['label']} / seed {meta['seed']}>"


class Store:
    """The folder of a study.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(as_path(folder, "folder"))
        self.runs, self.failures, self.running, self.checkpoints = (self.folder / name for name in _FOLDERS)
        self.index = self.folder / "index.jsonl"
        self.stop_file = self.folder / "stop"

    # -- the study -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """A folder that exists."""
        store = cls(folder)
        if not (store.folder / "study.json").is_file():
            raise StoreError(f"{os.fspath(folder)!r} is not the folder of a study (it has no study.json)")
        return store

    def prepare(self, study: Study) -> None:
        """Make the folder, or extend the study that it holds."""
        known = read_json(self.folder / "study.json")
        if known is not None and known.get("study", {}).get("name") != study.name:
            raise StoreError(
                f"{os.fspath(self.folder)!r} holds the study {known.get('study', {}).get('name')!r}, not {study.name!r}: "
                "name another folder with --out"
            )
        for name in _FOLDERS:
            with explained(self.folder / name, "made"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        data = {"format": _FORMAT, "version": 1, "root": os.fspath(study.root.resolve()), "study": study.to_dict()}
        if data != known:
            write_json(self.folder / "study.json", data)
        else:
            write_atomic(self.folder / ".probe", lambda file: None, durable=False)
            (self.folder / ".probe").unlink(missing_ok=True)

    def study(self) -> Study:
        """The study that the folder holds."""
        path = self.folder / "study.json"
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != _FORMAT:
                raise KeyError(data["format"])
            return Study.from_dict(data["study"], data["root"])
        except OSError as error:
            raise StoreError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{os.fspath(path)!r} is damaged ({error}): run the study file again, which writes it anew and reruns nothing"
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock ends with the process, however it ends."""
        path = self.folder / "lock"
        with explained(path, "opened"):
            file = open(path, "a+b")  # noqa: SIM115
        with file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # pragma: no cover - not on Windows
                pass
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    yield  # A file system without locks.
                    return
                raise StoreError(
                    f"{os.fspath(self.folder)!r} is being run by another process ({_text(path)}): see it with 'opo-fast study status'"
                ) from None
            with explained(path):
                file.truncate(0)
                file.write(f"{socket.gethostname()}, process {os.getpid()}".encode())
                file.flush()
            yield

    def busy(self) -> bool:
        """Whether a process on this machine drives the study now."""
        try:
            import fcntl

            with open(self.folder / "lock", "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError as error:
                    return error.errno in (errno.EAGAIN, errno.EACCES)
                return False
        except (ImportError, OSError):
            return False

    def clean(self) -> None:
        """Remove what dead processes left behind."""
        self.stop_file.unlink(missing_ok=True)
        for folder in (self.folder, *(self.folder / name for name in _FOLDERS)):
            for path in folder.glob(".*.part"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > STALE or _process_is_gone(path):
                        path.unlink()
        for path in self.running.glob("*.json"):
            if not alive(read_json(path) or {}):
                path.unlink(missing_ok=True)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def write_run(self, meta: Meta, columns: Mapping[str, Array], format: str) -> None:
        """Store a finished run."""
        path = self.runs / f"{meta['id']}.{format}"
        write = _write_parquet if format == "parquet" else _write_npz
        write_atomic(path, lambda file: write(file, meta, columns))
        for other in (self.runs / f"{meta['id']}.{name}" for name in ("parquet", "npz") if name != format):
            other.unlink(missing_ok=True)
        self._append([self._line(path, meta)])

    def _line(self, path: pathlib.Path, meta: Meta) -> bytes:
        return json.dumps({**meta, "file": path.name, "size": path.stat().st_size}).encode() + b"\n"

    def _append(self, lines: list[bytes]) -> None:
        # The index only saves time: what cannot be written now is written from the run files later.
        with contextlib.suppress(OSError):
            handle = os.open(self.index, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, b"".join(lines))
            finally:
                os.close(handle)

    def finished(self) -> tuple[dict[str, Meta], list[str]]:
        """What is known of every finished run, by id, and a message for each damaged file.

        Files are opened only where the index does not know them (or their size is another).
        """
        found: dict[str, Meta] = {}
        unknown = dict(self._files())
        for meta in self._indexed():
            with contextlib.suppress(KeyError, TypeError):
                if unknown.get(meta["file"]) == meta["size"]:
                    found[meta["id"]] = meta
        for meta in found.values():
            del unknown[meta["file"]]
        messages = []
        for name, size in unknown.items():
            try:
                meta = self._read_meta(self.runs / name)
                found[meta["id"]] = {**meta, "file": name, "size": size}
            except StoreError as error:
                messages.append(str(error))
        return found, messages

    def _indexed(self) -> list[Any]:
        """The lines of the index that can be read."""
        try:
            lines = self.index.read_bytes().splitlines()
        except OSError:
            return []
        with contextlib.suppress(ValueError):
            return list(json.loads(b"[" + b",".join(lines) + b"]"))  # All at once takes half the time.
        known = []
        for line in lines:
            with contextlib.suppress(ValueError):
                known.append(json.loads(line))
        return known

    def _files(self) -> Iterator[tuple[str, int]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.runs) as entries:
            for entry in entries:
                if entry.name.endswith((".parquet", ".npz")) and not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat().st_size

    def reindex(self) -> list[str]:
        """Complete the index; damaged run files are put aside, so that they are run again. Returns messages."""
        known, _ = self.finished()
        messages = []
        lines = []
        for name, _size in self._files():
            path = self.runs / name
            if path.stem not in known or known[path.stem]["file"] != name:
                aside = path.with_name(f"{name}.damaged")
                with explained(path, "put aside"):
                    os.replace(path, aside)
                messages.append(f"{os.fspath(path)!r} is damaged; it was put aside as {aside.name!r} and its run is done again")
            else:
                lines.append(json.dumps(known[path.stem]).encode() + b"\n")
        text = b"".join(lines)
        with contextlib.suppress(OSError):
            if text and self.index.exists() and self.index.read_bytes() == text:
                return messages
        if text:
            write_atomic(self.index, lambda file: file.write(text))
        return messages

    def read_run(self, meta: Meta, columns: Sequence[str] | None = None) -> StoredRun:
        """A finished run with its columns, or with some of them."""
        return self._read(self.runs / meta["file"], columns)

    def _read_meta(self, path: pathlib.Path) -> Meta:
        # The columns are read too: a file that the index does not know may be cut off anywhere.
        return self._read(path).meta

    def _read(self, path: pathlib.Path, wanted: Sequence[str] | None = None) -> StoredRun:
        try:
            meta, columns = (_read_parquet if path.suffix == ".parquet" else _read_npz)(path, wanted)
            if meta["format"] != _FORMAT or path.stem != meta["id"]:
                raise ValueError("it is not the run that its name says")
        except OpoError:
            raise
        except FileNotFoundError:
            raise StoreError(f"the run file {os.fspath(path)!r} is gone: resume the study to run it again") from None
        except Exception as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            raise StoreError(f"the run file {os.fspath(path)!r} is damaged ({reason}): resume the study to run it again") from None
        return StoredRun(meta, columns)

    # -- failures and signs of life --------------------------------------------------------------------------------------

    def write_failure(self, id: str, failure: Meta) -> None:
        """Keep why a run failed."""
        write_json(self.failures / f"{id}.json", failure)

    def failed(self) -> dict[str, Meta]:
        """Failures by run id."""
        return self._all(self.failures)

    def under_way(self) -> dict[str, Meta]:
        """Signs of life by run id."""
        return self._all(self.running)

    @staticmethod
    def _all(folder: pathlib.Path) -> dict[str, Meta]:
        found = {}
        for path in sorted(folder.glob("[!.]*.json")):
            value = read_json(path)
            if isinstance(value, dict):
                found[path.stem] = value
        return found


def alive(sign: Meta) -> bool:
    """Whether the process behind a sign of life is there; where that cannot be known, whether the sign is fresh."""
    if sign.get("host") == socket.gethostname() and isinstance(sign.get("pid"), int):
        known = running(sign["pid"])
        if known is not None:
            return known
    return time.time() - float(sign.get("updated", 0.0)) < STALE


def running(pid: int) -> bool | None:
    """Whether a process of this machine is there; None where the system does not tell."""
    if os.name == "nt":  # Signal 0 is Ctrl-C there.
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _process_is_gone(temporary: pathlib.Path) -> bool:
    """Whether the process of this machine that was writing a temporary file is gone."""
    parts = temporary.name.split("~")
    return len(parts) == 4 and parts[1] == socket.gethostname() and running(int(parts[2])) is False


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text() or "unknown"
    except OSError:
        return "unknown"


def require_pyarrow() -> Any:
    """pyarrow and its parquet module."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise OpoError(f'parquet files need pyarrow: {install("parquet")}, or set format = "npz" in the study') from None
    return pyarrow


def _seal(meta: Meta, columns: Mapping[str, Array]) -> dict[str, str]:
    """The texts that a run file holds beside its columns: settings, checksums of the columns, and the checksum of both."""
    text, sums = json.dumps(meta), json.dumps({name: _checksum(column) for name, column in columns.items()})
    return {"opo_fast": text, "opo_fast.columns": sums, "opo_fast.sum": hashlib.sha256((text + sums).encode()).hexdigest()}


def _unseal(texts: Mapping[str, str], columns: Mapping[str, Array], wanted: Sequence[str] | None) -> Meta:
    """The settings of a run file, or an error where it is not what was written."""
    text, sums = texts["opo_fast"], texts["opo_fast.columns"]
    if hashlib.sha256((text + sums).encode()).hexdigest() != texts["opo_fast.sum"]:
        raise ValueError("the checksum of its settings is wrong")
    known = json.loads(sums)
    for name in known if wanted is None else wanted:
        if name not in known:
            raise OpoError(f"run {json.loads(text)['id']} has no column {name!r}: one of {', '.join(known)} is needed")
        if name not in columns or _checksum(columns[name]) != known[name]:
            raise ValueError(f"its column {name!r} is gone, or has a wrong checksum")
    meta: Meta = json.loads(text)
    return meta


def _checksum(column: Array) -> str:
    array = np.ascontiguousarray(column)
    return hashlib.blake2b(array.dtype.str.encode() + array.tobytes(), digest_size=8).hexdigest()


def _write_parquet(file: BinaryIO, meta: Meta, columns: Mapping[str, Array]) -> None:
    pa = require_pyarrow()
    table = pa.table(dict(columns)).replace_schema_metadata(_seal(meta, columns))
    pa.parquet.write_table(table, file, compression="zstd")


def _read_parquet(path: pathlib.Path, wanted: Sequence[str] | None) -> tuple[Meta, dict[str, Array]]:
    pa = require_pyarrow()
    with pa.parquet.ParquetFile(path) as file:
        known = file.schema_arrow
        table = file.read(columns=[name for name in wanted if name in known.names] if wanted is not None else None)
    texts = {key.decode(): text.decode() for key, text in (known.metadata or {}).items()}
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    return _unseal(texts, columns, wanted), columns


def _write_npz(file: BinaryIO, meta: Meta, columns: Mapping[str, Array]) -> None:
    arrays: dict[str, Any] = {name: np.array(text) for name, text in _seal(meta, columns).items()}
    np.savez_compressed(file, **{**arrays, **columns})


def _read_npz(path: pathlib.Path, wanted: Sequence[str] | None) -> tuple[Meta, dict[str, Array]]:
    with np.load(path, allow_pickle=False) as file:
        texts = {name: str(file[name]) for name in file.files if name.startswith("opo_fast")}
        names = [name for name in file.files if name not in texts and (wanted is None or name in wanted)]
        columns = {name: file[name] for name in names}
    return _unseal(texts, columns, wanted), columns
