"""Logs in npz and Parquet files."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_path, frozen
from .._support.files import reading, writing
from .._support.parquet import read_table
from .._support.state import read_state, write_state
from ..errors import OpoError, install
from ..model.layout import Layout
from .log_rows import rows_to_log
from .log_tables import Columns

__all__ = ["as_contexts", "context_columns", "load_log", "read_parquet", "save_log"]

Array = npt.NDArray[Any]
_FORMAT = "opo_fast.TrajectoryLog"
_OPTIONAL = ("action_mask", "propensities", "episodes")


def save_log(log: Any, path: Any) -> None:
    """See `TrajectoryLog.save`."""
    column = context_column(log.contexts)
    meta = {"format": _FORMAT, "version": 1, "layer_sizes": list(log.layout.layer_sizes), "n_actions": log.layout.n_actions}
    if _kind(path) == "npz":
        arrays = {"contexts": column, "states": log.states, "actions": log.actions, "losses": log.losses}
        arrays.update({name: np.asarray(getattr(log, name)) for name in _OPTIONAL if getattr(log, name) is not None})
        write_state(path, {"log": {**meta, "state_labels": log.state_labels, "action_labels": log.action_labels}, **arrays})
        return
    pa, pq = _pyarrow()
    if column.ndim > 2:
        raise OpoError(f"contexts have shape {column.shape[1:]}: Parquet takes numbers, strings and arrays with one axis; use .npz")
    context = np.repeat(column, log.layout.horizon, axis=0)
    columns = {name: values for name, values in log.to_columns(labels=False).items() if not name.startswith("context")}
    columns["context"] = pa.array(list(context)) if context.ndim == 2 else pa.array(context)
    table = pa.table(columns, metadata={"opo_fast": json.dumps({**meta, "context_dtype": column.dtype.str})})
    with writing(path) as file:
        pq.write_table(table, file)


def load_log(path: Any, layout: Layout | None) -> dict[str, Any]:
    """The arguments of the `TrajectoryLog` in a file."""
    read_file = _read_npz if _kind(path) == "npz" else _read_parquet
    with reading(path, "a log"):
        meta, read = read_file(path)
        found = None if meta is None else Layout(meta["layer_sizes"], meta["n_actions"])
    if layout is None and found is None:
        raise OpoError(f"layout is missing: {os.fspath(path)!r} does not contain its layers")
    if layout is not None and found is not None and layout != found:
        raise OpoError(f"layout is {layout!r}: the log {os.fspath(path)!r} has {found!r}")
    layout = layout or found
    if isinstance(read, dict):
        return {"layout": layout, **read}
    columns = Columns(propensity="propensity" if "propensity" in read.column_names else None)
    arguments = rows_to_log(read, layout, columns)
    if isinstance(arguments["contexts"], np.ndarray) and meta is not None:
        arguments["contexts"] = arguments["contexts"].astype(meta["context_dtype"])
    return arguments


def read_parquet(path: Any) -> Any:
    """The table of a Parquet file."""
    pq = _pyarrow()[1]
    with reading(path, "a Parquet file"):
        return read_table(pq, path)


def context_columns(contexts: Any) -> dict[str, Array]:
    """Contexts as columns: one, or one for each entry if contexts are arrays or tuples."""
    first = contexts[0]
    if isinstance(first, (tuple, np.ndarray)):
        table = list(zip(*(np.ravel(context) if isinstance(context, np.ndarray) else context for context in contexts), strict=True))
        return {f"context_{i}": np.array(column) for i, column in enumerate(table)}
    return {"context": context_column(contexts)}


def context_column(contexts: Any) -> Array:
    """Contexts as an array (n, ...) that a file can hold."""
    if isinstance(contexts, np.ndarray):
        return contexts
    kinds = {bool: "b", int: "i", float: "f", str: "U"}
    if len({type(context) for context in contexts}) != 1 or type(contexts[0]) not in kinds:
        raise OpoError(
            f"contexts: {contexts[0]!r} and others cannot be written: numbers or strings of one type, or arrays of one shape, are needed"
        )
    column = np.array(contexts)
    if column.dtype.kind != kinds[type(contexts[0])]:
        raise OpoError(f"contexts: dtype {column.dtype} cannot be written to a file")
    return column


def _kind(path: Any) -> str:
    name = as_path(path)
    for ending in ("npz", "parquet"):
        if name.endswith(f".{ending}"):
            return ending
    raise OpoError(f"path is {name!r}: a name that ends in .npz or .parquet is needed")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise OpoError(f"Parquet files need pyarrow: {install('parquet')}") from None
    return pa, pq


def _read_npz(path: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    state = read_state(path, "a log")
    meta = state["log"]
    if (meta["format"], meta["version"]) != (_FORMAT, 1):
        raise ValueError(f"format {meta['format']!r}, version {meta['version']!r}")
    found: dict[str, Any] = {name: state[name] for name in ("contexts", "states", "actions", "losses")}
    found.update({name: state[name] for name in _OPTIONAL if name in state})
    if "episodes" in found:
        found["episodes"] = np.asarray(found["episodes"]).tolist()
    return meta, {**found, "state_labels": meta.get("state_labels"), "action_labels": meta.get("action_labels")}


def _read_parquet(path: Any) -> tuple[dict[str, Any] | None, Any]:
    _, pq = _pyarrow()
    table = read_table(pq, path)
    metadata = (table.schema.metadata or {}).get(b"opo_fast")
    return None if metadata is None else json.loads(metadata), table


def as_contexts(contexts: Any) -> Any:
    """A list of scalars, or an array (n, ...) of array contexts."""
    if isinstance(contexts, np.ndarray):
        if contexts.dtype.hasobject:
            raise OpoError("contexts is an array of objects: numbers or strings are needed")
        return contexts.tolist() if contexts.ndim == 1 else frozen(contexts.copy())
    values = [context.item() if isinstance(context, np.generic) else context for context in contexts]
    first = values[0]
    if isinstance(first, np.ndarray) and all(
        isinstance(c, np.ndarray) and (c.shape, c.dtype) == (first.shape, first.dtype) for c in values
    ):
        return frozen(np.stack(values))
    return values
