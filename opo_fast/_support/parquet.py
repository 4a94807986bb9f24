"""Parquet files within the bound on archives."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import OpoError
from .state import most_of

__all__ = ["read_table"]


def read_table(pq: Any, path: Any, wanted: Collection[str] | None = None) -> Any:
    """The table of a Parquet file, or those of its columns that are wanted and there, with pyarrow's module `pq`.

    A few bytes can stand for millions of equal numbers: what the file's own counts come to is compared with the bound before.
    """
    with pq.ParquetFile(path) as file:
        meta, names = file.metadata, file.schema_arrow.names
        chosen = names if wanted is None else [name for name in names if name in wanted]
        total = 0
        for group in range(meta.num_row_groups):
            chunks = map(meta.row_group(group).column, range(meta.num_columns))
            total += sum(8 * chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] in chosen)
        if total > most_of(path):
            raise OpoError(f"it unpacks to {total} bytes, more than is read from a file of this size")
        return file.read(columns=None if wanted is None else chosen)
