"""Checked reading of the fields of a saved state; an error names the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError
from .checks import LARGEST, as_array, as_bool, as_integer, as_items, as_number

__all__ = ["Fields", "agrees", "as_fit"]

Array = npt.NDArray[Any]


class Fields:
    """The fields of a state. All are read and checked before an object takes any of them over.

    Parameters
    ----------
    state : mapping
    source : str
        What gives such a state, for messages.
    name : str
        Name of the state in messages.
    """

    def __init__(self, state: Any, source: str, name: str = "state") -> None:
        self.source, self.name = source, name
        if not isinstance(state, Mapping):
            raise OpoError(f"{name} is a {type(state).__name__}: {source} is needed")
        self.state = state

    def place(self, key: str) -> str:
        """The name of a field in messages."""
        return f"{self.name}[{key!r}]"

    def fault(self, key: str, what: str) -> OpoError:
        """An error that names the field."""
        return OpoError(f"{self.place(key)} {what}")

    def value(self, key: str) -> Any:
        """The field, unchecked."""
        if key not in self.state:
            raise OpoError(f"{self.name} has no {key!r}: {self.source} is needed")
        return self.state[key]

    def inner(self, key: str) -> Fields:
        """A field that is itself a state."""
        return Fields(self.value(key), self.source, self.place(key))

    def plain(self) -> dict[str, Any]:
        """All fields, unchecked."""
        return dict(self.state)

    def integer(self, key: str, *, least: int = 0, most: int = LARGEST) -> int:
        """A whole number within [least, most]."""
        return as_integer(self.value(key), self.place(key), least=least, most=most)

    def exactly(self, key: str, wanted: int, why: str) -> int:
        """A whole number that must equal `wanted`, since the rest of the state determines it."""
        found = self.integer(key)
        if found != wanted:
            raise self.fault(key, f"is {found}: {wanted} is needed, {why}")
        return found

    def number(self, key: str, *, least: float = 0.0, most: float = np.inf) -> float:
        """A finite number within [least, most]."""
        return as_number(self.value(key), self.place(key), least=least, most=most)

    def flag(self, key: str) -> bool:
        """True or False."""
        return as_bool(self.value(key), self.place(key))

    def listed(self, key: str, length: int | None = None) -> list[Any]:
        """A sequence, with `length` entries if that is given."""
        value = self.value(key)
        found = value.tolist() if isinstance(value, np.ndarray) else as_items(value, self.place(key), "entries")
        if not isinstance(found, list) or (length is not None and len(found) != length):
            raise self.fault(key, f"has {len(found) if isinstance(found, list) else 'no'} entries: {length} are needed")
        return found

    def numbers(self, key: str, shape: Sequence[int | None], *, least: float = -np.inf, most: float = np.inf, finite: bool = True) -> Array:
        """A float64 copy of an array of this shape (None: any length) with finite entries within [least, most].

        ``finite=False`` allows infinite entries; NaN is always refused.
        """
        array = self._array(key, shape, "iuf").astype(np.float64)
        inside = (array >= least) & (array <= most)
        if finite:
            inside &= np.isfinite(array)
        span = f"from {least:g} to {most:g}" if np.isfinite([least, most]).all() else f"of at least {least:g}" if np.isfinite(least) else ""
        self._refuse(key, array, ~inside, f"a {'finite ' if finite else ''}number {span}".rstrip())
        return array

    def positions(self, key: str, shape: Sequence[int | None], *, least: int = 0, most: int = LARGEST) -> Array:
        """An int64 copy of an array of this shape (None: any length) with entries within [least, most]."""
        array = self._array(key, shape, "iu")
        self._refuse(key, array, (array < least) | (array > most), f"a whole number from {least} to {most}")
        return array.astype(np.int64)

    def _array(self, key: str, shape: Sequence[int | None], kinds: str) -> Array:
        array = as_array(self.value(key), self.place(key))
        if not array.size and 0 in [n for n in shape if n is not None] + [0] * (None in shape):
            # An empty list stands for an empty array of any shape and dtype.
            return np.zeros([n or 0 for n in shape])
        if array.dtype.kind not in kinds:
            raise self.fault(key, f"has dtype {array.dtype}: {'whole ' if kinds == 'iu' else ''}numbers are needed")
        if array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise self.fault(key, f"has shape {array.shape}: ({wanted}) is needed, as this one has")
        return array

    def _refuse(self, key: str, array: Array, bad: Array, needed: str) -> None:
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise self.fault(key, f"holds {array[place].item()!r} at {list(place)}: {needed} is needed")

    def check(self, key: str, good: bool, what: str | Callable[[], str]) -> None:
        """Refuse the field if `good` is False."""
        if not good:
            raise self.fault(key, what if isinstance(what, str) else what())


def as_fit(value: Any) -> Any:
    """A fit read from JSON, with its lists turned back into tuples."""
    fit = tuple(map(as_fit, value)) if isinstance(value, list) else value
    try:
        hash(fit)
    except TypeError:
        raise OpoError(f"a fit is a {type(value).__name__}: something hashable is needed") from None
    return fit


def agrees(found: Any, wanted: Any) -> bool:
    """Whether a stored value, of whatever type, equals a plain one."""
    try:
        return bool(found == wanted)
    except (TypeError, ValueError):
        return False
