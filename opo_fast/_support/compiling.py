"""How long Numba compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

__all__ = ["compiling"]


@contextmanager
def compiling() -> Iterator[list[float]]:
    """Yield a list that receives the seconds of each compilation inside the block; kernels that the cache holds take none."""
    seconds: list[float] = []
    with event.install_timer("numba:compile", seconds.append):
        yield seconds
