"""Plausible sets: what the data so far leave possible, with the truth inside at all times at once.

Each set follows from its failure probability delta alone. The argument is the same everywhere: a process that is a
nonnegative supermartingale under the truth and begins at 1 reaches 1/delta with probability at most delta (J. Ville, Étude
critique de la notion de collectif, 1939), and several such events cost the sum of their probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import shown
from ..errors import OpoError

__all__ = ["NestedSet", "kept_delta", "missing_delta"]

Array = npt.NDArray[Any]


class NestedSet:
    """The candidates that no data have excluded, and every such set before.

    F_t = {i in F_{t-1} : i passes at time t}, F_0 holding all; where this would be empty, the best candidate alone.

    A set has a version. Version v >= 0 is what v reductions left; version -1 - i is candidate i alone, after the
    candidates ran out.

    Parameters
    ----------
    size : int
        Number of candidates.

    Attributes
    ----------
    version : int
    members : ndarray of int64
        Indices of the current set, ascending.
    """

    def __init__(self, size: int) -> None:
        self._last = np.full(size, size)
        self._newest = 0
        self.version, self.members = 0, np.arange(size)

    def reduce(self, passes: Array, best: int) -> None:
        """Keep the members that pass (bool, one for each candidate); `best` where none does."""
        left = self.members[passes[self.members]]
        if left.size == self.members.size:
            return
        if not left.size:
            self.version, self.members = -1 - best, np.array([best])
            return
        self._last[self.members[~passes[self.members]]] = self._newest
        self._newest += 1
        self.version, self.members = self._newest, left

    def at(self, version: Any) -> Array:
        """Indices of the set of a version, ascending."""
        if version == self.version:
            return self.members
        if not isinstance(version, (int, np.integer)) or not -self._last.size <= version <= self._newest:
            raise OpoError(f"version is {shown(version)}: one that plausible() gave is needed")
        return np.array([-1 - version]) if version < 0 else np.flatnonzero(self._last >= version)

    def copy(self) -> NestedSet:
        """One that goes on by itself."""
        other = NestedSet(self._last.size)
        other._last, other._newest, other.version, other.members = self._last.copy(), self._newest, self.version, self.members
        return other

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {"plausible.last": self._last.copy(), "plausible.version": self.version}

    @classmethod
    def restored(cls, size: int, state: dict[str, Any]) -> NestedSet:
        """Undo `state`."""
        try:
            last, version = np.array(state["plausible.last"], np.int64), int(state["plausible.version"])
        except KeyError as error:
            raise OpoError(f"state has no {error}: what an oracle's state() gave is needed") from None
        if last.shape != (size,):
            raise OpoError(f"state holds a plausible set of {last.size} candidates: {size} are needed")
        result = cls(size)
        result._last, result._newest = last, int(last[last < size].max(initial=-1)) + 1
        result.members = result.at(version)
        result.version = version
        return result


def missing_delta() -> OpoError:
    """For an oracle that is asked for a set that it was not told to keep."""
    return OpoError("this oracle keeps no plausible set: keep_plausible(delta), before any data, is needed")


def kept_delta(state: Mapping[str, Any], delta: float | None) -> float | None:
    """The failure probability in an oracle's state, for an oracle that keeps a set at `delta`, or none yet."""
    stored = state.get("plausible.delta")
    if delta is not None and stored != delta:
        kept = "no plausible set" if stored is None else f"a plausible set at failure probability {stored}"
        raise OpoError(f"state holds {kept}: {delta} is needed")
    return None if stored is None else float(stored)
