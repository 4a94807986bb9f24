"""The file of a finished run: its columns, its settings, and checksums of both, as Parquet or npz."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .._support.files import check_plain
from .._support.parquet import read_table
from .._support.seal import checksum, opened, sealed
from .._support.state import members_of
from ..errors import OpoError, install

__all__ = ["FORMAT", "StoredRun", "default_format", "read_run", "require_pyarrow", "write_run"]

Array = npt.NDArray[Any]
Meta = dict[str, Any]

FORMAT = "opo_fast.study"


class StoredRun:
    """A finished run.

    Attributes
    ----------
    meta : dict
        Settings, seed, versions, origin, host, times and a summary.
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


def default_format() -> str:
    """The format "parquet" if pyarrow is installed, else "npz"."""
    import importlib.util

    return "parquet" if importlib.util.find_spec("pyarrow") is not None else "npz"


def require_pyarrow() -> Any:
    """The module pyarrow, with pyarrow.parquet imported."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise OpoError(f'parquet files need pyarrow: {install("parquet")}, or set format = "npz" in the study') from None
    return pyarrow


def write_run(file: BinaryIO, meta: Meta, columns: Mapping[str, Array], format: str) -> None:
    """Write a run to an open file, as "parquet" or "npz"."""
    text = json.dumps(meta)
    sums, total = sealed(text, columns)
    texts = {"opo_fast": text, "opo_fast.columns": sums, "opo_fast.sum": total}
    if format == "parquet":
        pa = require_pyarrow()
        table = pa.table(dict(columns)).replace_schema_metadata(texts)
        pa.parquet.write_table(table, file, compression="zstd", write_page_checksum=True)
    else:
        arrays: dict[str, Any] = {**{name: np.array(text) for name, text in texts.items()}, **columns}
        np.savez_compressed(file, **arrays)


def read_run(path: pathlib.Path, wanted: Sequence[str] | None = None) -> StoredRun:
    """The run in a file, with all its columns or with the `wanted` ones.

    Raises
    ------
    OpoError
        The run does not have a wanted column.
    Exception
        Any other exception if the file is damaged.
    """
    check_plain(os.fspath(path), os.stat(path))
    read = _read_npz if path.suffix != ".parquet" else functools.partial(_read_parquet, require_pyarrow())
    try:
        texts, columns = read(path, wanted)
    except OpoError as error:
        raise ValueError(str(error)) from None
    meta = _unseal(texts, columns, wanted)
    if meta["format"] != FORMAT or path.stem != meta["id"]:
        raise ValueError("it is not the run that its name says")
    return StoredRun(meta, columns)


def _unseal(texts: Mapping[str, str], columns: Mapping[str, Array], wanted: Sequence[str] | None) -> Meta:
    """The metadata of a run file; raises an error if a checksum is wrong."""
    text = texts["opo_fast"]
    try:
        known = opened(text, texts["opo_fast.columns"], texts["opo_fast.sum"])
    except OpoError as error:
        raise ValueError(str(error)) from None
    for name in known if wanted is None else wanted:
        if name not in known:
            raise OpoError(f"run {json.loads(text)['id']} has no column {name!r}: one of {', '.join(known)} is needed")
        if name not in columns or checksum(columns[name]) != known[name]:
            raise ValueError(f"its column {name!r} is gone, or has a wrong checksum")
    meta: Meta = json.loads(text)
    return meta


def _read_parquet(pa: Any, path: pathlib.Path, wanted: Sequence[str] | None) -> tuple[dict[str, str], dict[str, Array]]:
    table = read_table(pa.parquet, path, wanted)
    texts = {key.decode(): text.decode() for key, text in (table.schema.metadata or {}).items()}
    return texts, {name: table.column(name).to_numpy() for name in table.column_names}


def _read_npz(path: pathlib.Path, wanted: Sequence[str] | None) -> tuple[dict[str, str], dict[str, Array]]:
    with members_of(path) as file:
        texts = {name: str(file[name]) for name in file if name.startswith("opo_fast")}
        names = [name for name in file if name not in texts and (wanted is None or name in wanted)]
        return texts, {name: file[name] for name in names}
