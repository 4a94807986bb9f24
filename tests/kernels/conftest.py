"""If an environment variable asks for it, a test run fails unless it has compiled every kernel."""

from __future__ import annotations

import importlib
import os
import pkgutil

import pytest
from numba.core.dispatcher import Dispatcher

import opo_fast.kernels


def left_out() -> list[str]:
    """Kernels that were not compiled in this process, without the parts that are inlined into others."""
    names = []
    for info in pkgutil.iter_modules(opo_fast.kernels.__path__, "opo_fast.kernels."):
        # Kernels that threads share are tested in tests/threads/.
        if info.name.endswith("._sync"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, Dispatcher) and value.py_func.__module__ == info.name and value.targetoptions.get("inline") != "always":
                names += [] if value.signatures else [f"{info.name}.{name}"]
    return names


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Replace a success by a failure."""
    if os.environ.get("ALL_KERNELS") and exitstatus == 0 and (names := left_out()):
        print(f"\nno test runs {', '.join(names)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
