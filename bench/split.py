"""Where the time of a call goes: how long it is inside kernels, and inside functions that are named, on this thread's processor."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core.dispatcher import Dispatcher

from opo_fast._support import threads


class Clock:
    """Seconds by name; the time of a timed function is not that of another one which calls it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function`, whose time counts for `name`."""

        def call(*given: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            began = time.thread_time()
            try:
                return function(*given, **options)
            finally:
                took = time.thread_time() - began
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                self._inner[-1] += took

        call.kernel = function  # type: ignore[attr-defined]
        return call

    @contextlib.contextmanager
    def kernels(self, name: Callable[[Any], str]) -> Iterator[None]:
        """Time all kernels that the package's modules call, which have to be compiled already."""
        before = []
        for module in [m for key, m in sys.modules.items() if key.startswith("opo_fast")]:
            for key, value in list(vars(module).items()):
                if isinstance(value, Dispatcher):
                    before.append((module, key, value))
                    setattr(module, key, self.timed(value, name(value)))
        entrance = threads._entrance
        threads._entrance = functools.cache(
            lambda function: self.timed(entrance(getattr(function, "kernel", function)), name(getattr(function, "kernel", function)))
        )
        try:
            yield
        finally:
            threads._entrance = entrance
            for module, key, value in before:
                setattr(module, key, value)
