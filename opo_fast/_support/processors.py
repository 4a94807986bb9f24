"""How many processors this process may use: by its affinity, and by its control group."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib

__all__ = ["granted", "granted_below", "processors", "quota_of"]


def quota_of(text: str) -> float:
    """Processors that a control group grants: `cpu.max` (version 2), or the quota and the period of version 1."""
    quota, *period = text.split()
    if quota == "max" or int(quota) <= 0:
        return float("inf")
    return int(quota) / int(period[0] if period else 100_000)


def _cgroups(text: str) -> list[tuple[bool, str]]:
    """The control groups in /proc/self/cgroup that may limit processors: (version 2, path)."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    return [(number == "0" and not names, path) for number, names, path in lines if not names or "cpu" in names.split(",")]


def granted_below(root: pathlib.Path) -> float:
    """Processors that the control groups of this process grant: the smallest limit among the groups and their parents."""
    least = float("inf")
    with contextlib.suppress(OSError):
        for new, path in _cgroups((root / "proc/self/cgroup").read_text()):
            for mount in ("", "unified") if new else ("cpu", "cpu,cpuacct"):
                top = root / "sys/fs/cgroup" / mount
                inner = top / path.lstrip("/")
                for folder in (inner, *inner.parents):
                    with contextlib.suppress(OSError, ValueError, IndexError):
                        if new:
                            least = min(least, quota_of((folder / "cpu.max").read_text()))
                        else:
                            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                            least = min(least, quota_of(f"{quota} {period}"))
                    if folder == top:
                        break
    return least


@functools.cache
def granted() -> float:
    """Processors that the control groups of this process grant; infinite if they set no limit."""
    return granted_below(pathlib.Path("/"))


def processors() -> int:
    """Processors that this process may use at once: those in its affinity, at most as many whole ones as its control group grants."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(usable, granted())))
