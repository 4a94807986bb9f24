"""Oracles that a user passes as objects: which agent each belongs to, and which settings identify it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._support.checks import instance, shown
from .._support.seal import checksum
from ..errors import OpoError
from .schedule import ScheduledOracle

__all__ = ["check_free", "foreign_settings", "take"]

_OWNERS: dict[int, tuple[Any, object]] = {}
"""For the id of each live oracle: a weak reference to it, and the mark of the agent that has learned with it."""


def take(oracle: Any, name: str, mark: object) -> None:
    """Record that the agent with this mark learns with an oracle; refuse one with which another agent has learned."""
    oracle = _within(oracle)
    check_free(oracle, name, mark)
    if id(oracle) not in _OWNERS:
        key = id(oracle)
        try:
            _OWNERS[key] = weakref.ref(oracle, lambda _: _OWNERS.pop(key, None)), mark
        except TypeError:
            return  # Its class has __slots__ without __weakref__.


def check_free(oracle: Any, name: str, mark: object = None) -> None:
    """Refuse an oracle with which an agent with another mark has learned, even if that agent no longer exists."""
    oracle = _within(oracle)
    known = _OWNERS.get(id(oracle))
    if known is not None and known[0]() is oracle and known[1] is not mark:
        raise OpoError(
            f"{name} is a {type(oracle).__name__} with which another agent has learned: their data would be mixed; make a new oracle for "
            "each agent, or pass a class with oracle(layout, action_mask), which makes one"
        )


def foreign_settings(oracle: Any) -> dict[str, Any] | None:
    """The settings that identify an oracle from outside the package, as JSON values; None for the package's own oracles.

    They are its class and the result of its ``settings()`` or, without that method, its attributes that are numbers, strings,
    booleans or arrays.
    """
    oracle = _within(oracle)
    if type(oracle).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return None
    found: dict[str, Any] = {"class": type(oracle).__name__}
    if not callable(getattr(oracle, "settings", None)):
        plain = {str(name): _plain(value) for name, value in getattr(oracle, "__dict__", {}).items()}
        return {**found, **{name: value for name, value in plain.items() if value is not None}}
    given, place = oracle.settings(), f"settings() of the {type(oracle).__name__}"
    instance(given, place, Mapping, needed="a dict of numbers, strings, booleans or arrays")
    for name, value in given.items():
        found[str(name)] = _plain(value)
        if found[str(name)] is None:
            raise OpoError(f"{place} has {name!r}: {shown(value)}; numbers, strings, booleans or arrays are needed")
    return found


def _within(oracle: Any) -> Any:
    while isinstance(oracle, ScheduledOracle):
        oracle = oracle.oracle
    return oracle


def _plain(value: Any) -> Any:
    """A number, string or boolean as it is, an array as its shape and checksum; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else f"array {value.shape} {checksum(value)}"
    # nan is not equal to itself, but settings are compared for equality.
    return (value if value == value else "nan") if isinstance(value, (bool, int, float, str)) else None
