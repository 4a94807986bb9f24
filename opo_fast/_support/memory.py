"""How much memory this process may use; larger requests are refused before anything is allocated."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys

from ..errors import OpoError

__all__ = ["check_room", "memory"]


@functools.cache
def memory() -> int:
    """Bytes of memory of this machine, or the limit of the process or its control group if that is less."""
    least = sys.maxsize
    with contextlib.suppress(AttributeError, OSError, ValueError):
        least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            least = min(least, int(pathlib.Path("/", file).read_text()))
    with contextlib.suppress(ImportError):
        import resource

        for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            granted = resource.getrlimit(limit)[0]
            if granted != resource.RLIM_INFINITY:
                least = min(least, granted)
    return least


def check_room(numbers: int, what: str) -> None:
    """Refuse so many float64 `numbers` if they would take more than half of the memory; the other half is for results as large.

    `what` is a plural noun for the message that names the arguments that determine the size.
    """
    if 16 * numbers > memory():
        raise OpoError(f"{what} take {8 * numbers / 2**30:.4g} GiB, more than half of the {memory() / 2**30:.4g} GiB of memory")
