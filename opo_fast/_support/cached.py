"""Properties that are computed once, without a lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """`functools.cached_property` as it is from Python 3.12 on.

        That of 3.11 holds one lock for all objects while it computes: a child process that is forked meanwhile would wait for it
        forever.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

        def __get__(self, owner: Any, kind: Any = None) -> Any:
            if owner is None:
                return self
            # Another thread may have computed it meanwhile; all get the same object.
            return owner.__dict__.setdefault(self.name, self.function(owner))
