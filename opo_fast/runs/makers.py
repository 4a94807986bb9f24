"""Agents from a user's function ``make(seed)``."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from .._support.checks import having, shown
from ..errors import OpoError

__all__ = ["Maker"]


class Maker:
    """Calls ``make(seed)``, and refuses an agent that it has returned before.

    Parameters
    ----------
    make : callable
    name : str
        Name of the function in error messages.
    """

    def __init__(self, make: Callable[[int], Any], name: str) -> None:
        self._make, self._name = make, name
        if not callable(make):
            raise OpoError(f"{name} is a {type(make).__name__}: a callable {name}(seed) is needed")
        try:
            inspect.signature(make).bind(0)
        except TypeError as error:
            raise OpoError(
                f"{name} cannot be called with a seed ({error}): a callable {name}(seed), such as lambda seed: ..., is needed"
            ) from None
        except ValueError:
            pass  # Some built-in callables have no signature.
        self._given: list[weakref.ref[Any]] = []

    def __call__(self, seed: int) -> Any:
        agent = self._make(seed)
        having(agent, f"the result of {self._name}({shown(seed)})", ("policy", "observe"), "an Agent")
        if any(earlier() is agent for earlier in self._given):
            raise OpoError(
                f"{self._name}({shown(seed)}) returns the same {type(agent).__name__} as before, which has already learned: it must make "
                "a new agent each time"
            )
        with contextlib.suppress(TypeError):  # Classes with slots may not support weak references.
            self._given.append(weakref.ref(agent))
        return agent
