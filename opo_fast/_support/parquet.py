"""Reading of Parquet files, within the same limit on size as other archives."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import OpoError
from .state import most_of

__all__ = ["read_table"]


def read_table(pq: Any, path: Any, wanted: Collection[str] | None = None) -> Any:
    """The table of a Parquet file, or only the `wanted` columns that it has. `pq` is the module pyarrow.parquet.

    A few bytes can encode millions of equal numbers, so the size according to the file's metadata is checked first.
    """
    # pyarrow has crashed while decoding damaged pages, so those with a checksum are verified first.
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        meta, names = file.metadata, file.schema_arrow.names
        chosen = names if wanted is None else [name for name in names if name in wanted]
        # Not the counts of single columns: if a damaged footer has them wrong, pyarrow ends the process.
        total = 8 * meta.num_rows * len(chosen)
        if total > most_of(path):
            raise OpoError(f"it unpacks to {total} bytes, more than is read from a file of this size")
        return file.read(columns=None if wanted is None else chosen)
