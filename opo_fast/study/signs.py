"""Signs of life: which process drives a study, and which processes work on its runs."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["STALE", "alive", "is_failure", "is_sign", "running", "this_process"]

STALE = 60.0
"""Seconds without a sign of life after which a process on another machine counts as gone."""

_NUMBER = (int, float)
_SIGN = {"host": str, "pid": int, "label": str, "episode": int, "episodes": int, "started": _NUMBER, "updated": _NUMBER}
_CHOICE = {"label": str}
_FAILURE = {"message": str, "episode": int, "environment": _CHOICE, "agent": _CHOICE, "seed": int, "host": str, "traceback": str}


def _has(value: Any, kinds: Mapping[str, Any]) -> bool:
    """Whether `value` is a mapping with entries of these types; numbers are finite."""
    if not isinstance(value, dict):
        return False
    for name, kind in kinds.items():
        entry = value.get(name)
        if isinstance(kind, dict):
            if not _has(entry, kind):
                return False
        elif not isinstance(entry, kind) or isinstance(entry, bool) or (isinstance(entry, float) and not math.isfinite(entry)):
            return False
    return True


def is_sign(value: Any) -> bool:
    """Whether `value` is a sign of life of a run."""
    return _has(value, _SIGN) and 0 <= value["episode"] <= value["episodes"] and value["episodes"] > 0 and value["pid"] > 0


def is_failure(value: Any) -> bool:
    """Whether `value` is the record of a failed run."""
    return _has(value, _FAILURE)


def this_process() -> dict[str, Any]:
    """Host and number of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def alive(sign: Mapping[str, Any]) -> bool:
    """Whether the process behind a sign of life is running; if that cannot be known, whether the sign is recent.

    The clock is only used for processes on other machines.
    """
    if sign.get("host") == socket.gethostname() and isinstance(sign.get("pid"), int):
        known = running(sign["pid"])
        if known is not None:
            return known
    return time.time() - float(sign.get("updated", 0.0)) < STALE


def running(pid: int) -> bool | None:
    """Whether a process of this machine is running; None if the system does not tell."""
    if os.name == "nt":  # Signal 0 is Ctrl-C there.
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
