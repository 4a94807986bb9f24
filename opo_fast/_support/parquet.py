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
    # Pages that carry a checksum are compared with it before they are decoded: pyarrow has crashed on damaged ones.
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        meta, names = file.metadata, file.schema_arrow.names
        chosen = names if wanted is None else [name for name in names if name in wanted]
        # The counts of single columns are not asked for: pyarrow ends the process where a damaged footer lies about them.
        total = 8 * meta.num_rows * len(chosen)
        if total > most_of(path):
            raise OpoError(f"it unpacks to {total} bytes, more than is read from a file of this size")
        return file.read(columns=None if wanted is None else chosen)
