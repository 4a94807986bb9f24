"""Oracles that a user gives as objects: the agent that each belongs to, and what tells one from another of other settings."""

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
"""By the id of an oracle that is alive: a weak reference to it, and the mark of the agent that has learned with it."""


def take(oracle: Any, name: str, mark: object) -> None:
    """Note that the agent of this mark learns with an oracle; refuse one that another agent has learned with."""
    oracle = _within(oracle)
    check_free(oracle, name, mark)
    if id(oracle) not in _OWNERS:
        key = id(oracle)
        try:
            _OWNERS[key] = weakref.ref(oracle, lambda _: _OWNERS.pop(key, None)), mark
        except TypeError:
            return  # Its class has slots and no weak references.


def check_free(oracle: Any, name: str, mark: object = None) -> None:
    """Refuse an oracle that an agent of another mark has learned with, whether or not that agent is still there."""
    oracle = _within(oracle)
    known = _OWNERS.get(id(oracle))
    if known is not None and known[0]() is oracle and known[1] is not mark:
        raise OpoError(
            f"{name} is a {type(oracle).__name__} that another agent has learned with: their data would be mixed; make a new oracle for "
            "each agent, or give a class with oracle(layout, action_mask), which makes one"
        )


def foreign_settings(oracle: Any) -> dict[str, Any] | None:
    """What tells an oracle that is not the package's from one of other settings, as JSON can hold it; None for the package's own.

    Its class, and what its ``settings()`` says; without that method its attributes that are numbers, texts, booleans or arrays.
    """
    oracle = _within(oracle)
    if type(oracle).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return None
    found: dict[str, Any] = {"class": type(oracle).__name__}
    if not callable(getattr(oracle, "settings", None)):
        plain = {str(name): _plain(value) for name, value in getattr(oracle, "__dict__", {}).items()}
        return {**found, **{name: value for name, value in plain.items() if value is not None}}
    told, place = oracle.settings(), f"settings() of the {type(oracle).__name__}"
    instance(told, place, Mapping, needed="a mapping from names to numbers, texts, booleans or arrays")
    for name, value in told.items():
        found[str(name)] = _plain(value)
        if found[str(name)] is None:
            raise OpoError(f"{place} has {name!r}: {shown(value)}; numbers, texts, booleans or arrays are needed")
    return found


def _within(oracle: Any) -> Any:
    while isinstance(oracle, ScheduledOracle):
        oracle = oracle.oracle
    return oracle


def _plain(value: Any) -> Any:
    """A number, a text or a boolean, an array as its shape and checksum; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else f"array {value.shape} {checksum(value)}"
    # Not a number is equal to nothing, and a state's settings are compared.
    return (value if value == value else "nan") if isinstance(value, (bool, int, float, str)) else None
