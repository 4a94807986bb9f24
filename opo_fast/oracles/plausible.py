"""Plausible sets: what the data so far leave possible; they contain the truth at all times simultaneously.

The only parameter of a set is its failure probability delta. The argument is always the same: a process that is a
nonnegative supermartingale under the truth and begins at 1 reaches 1/delta with probability at most delta (J. Ville, Étude
critique de la notion de collectif, 1939), and the probabilities of several such events add up.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_delta, as_integer, shown
from .._support.fields import Fields, agrees
from ..errors import OpoError
from .parametric import ParametricOracle

__all__ = ["NestedSet", "PlausibleOracle", "QuadraticSets", "kept_delta", "late_delta", "missing_delta"]

Array = npt.NDArray[Any]


class NestedSet:
    """The candidates that no data have excluded, and all earlier sets.

    F_t = {i in F_{t-1} : i passes at time t}, where F_0 contains all; if F_t would be empty, it is the best candidate alone.

    Each set has a version. Version v >= 0 is the set after v reductions; version -1 - i is candidate i alone, after all
    candidates were excluded.

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
        """Keep the members that pass (bool, one for each candidate), or only `best` if none does."""
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
            raise OpoError(f"version is {shown(version)}: a version returned by plausible() is needed")
        return np.array([-1 - version]) if version < 0 else np.flatnonzero(self._last >= version)

    def copy(self) -> NestedSet:
        """An independent copy."""
        other = NestedSet(self._last.size)
        other._last, other._newest, other.version, other.members = self._last.copy(), self._newest, self.version, self.members
        return other

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {"plausible.last": self._last.copy(), "plausible.version": self.version}

    @classmethod
    def restored(cls, size: int, fields: Fields) -> NestedSet:
        """Undo `state`."""
        last = fields.positions("plausible.last", (None,), most=size)
        if last.shape != (size,):
            raise OpoError(f"state holds a plausible set of {last.size} candidates: {size} are needed")
        result = cls(size)
        result._last, result._newest = last, int(last[last < size].max(initial=-1)) + 1
        fields.check("plausible.last", bool((last == size).any()), "excludes every candidate")
        version = as_integer(fields.value("plausible.version"), fields.place("plausible.version"), least=-size, most=result._newest)
        result.members = result.at(version)
        result.version = version
        return result


def missing_delta() -> OpoError:
    """The error for a request for a plausible set that the oracle was not told to keep."""
    return OpoError("this oracle keeps no plausible set: call keep_plausible(delta) before any data")


def late_delta() -> OpoError:
    """The error of an oracle that is told too late, or twice, to keep a set."""
    return OpoError("keep_plausible was called after data or for a second time: call it once, before any data")


def kept_delta(fields: Fields, delta: float | None) -> float | None:
    """The failure probability in an oracle's state, for an oracle that keeps a set at `delta` or was not yet told to."""
    stored = fields.state.get("plausible.delta")
    if delta is not None and not agrees(stored, delta):
        kept = "no plausible set" if stored is None else f"a plausible set at failure probability {shown(stored)}"
        raise OpoError(f"state holds {kept}: {delta} is needed")
    return None if stored is None else as_delta(stored, fields.place("plausible.delta"))


class PlausibleOracle(ParametricOracle):
    """A parametric oracle that keeps plausible sets: version 0 is the set without data, and new data give the next version.

    The sets are not nested; each is computed from all data up to its time, and with probability at least 1 - delta all of
    them contain the truth. A subclass has ``_begin()``, which prepares for the first data, ``_note(version)``, which stores
    what the set of the data so far needs, ``_sets()``, the stored arrays, and ``_sets_restored(fields, delta, versions)``.

    Attributes
    ----------
    delta : float or None
        Failure probability of the plausible sets, if they are kept.
    """

    delta: float | None = None

    def keep_plausible(self, delta: float) -> None:
        """From now on keep the sets of parameters that are plausible given the data, at failure probability `delta`."""
        delta = as_delta(delta)
        if self.delta is not None or self.episodes:
            raise late_delta()
        self.delta = delta
        self._centres, self._noted = [0], 0
        self._begin()

    def plausible(self) -> tuple[int, int]:
        """The fit on all data so far, and the version of the plausible set around it."""
        self._kept()
        fit = self.fit()
        if self.episodes != self._noted:
            self._noted = self.episodes
            self._centres.append(fit)
            self._note(len(self._centres) - 1)
        return self._centres[-1], len(self._centres) - 1

    def plausible_count(self, version: Hashable) -> float:
        """nan: the class is not finite."""
        self._version(version)
        return float("nan")

    def _kept(self) -> float:
        if self.delta is None:
            raise missing_delta()
        return self.delta

    def _version(self, version: Hashable) -> int:
        self._kept()
        if isinstance(version, (int, np.integer)) and 0 <= version < len(self._centres):
            return int(version)
        raise OpoError(f"version is {shown(version)}: a version returned by plausible(), 0 to {len(self._centres) - 1}, is needed")

    def _centre(self, version: Hashable) -> int:
        """The fit that came with a version."""
        number = self._version(version)
        return self._centres[number]

    def _kept_state(self) -> dict[str, Any]:
        if self.delta is None:
            return {}
        centres = np.array(self._centres, np.int64)
        return {"plausible.delta": self.delta, "plausible.noted": self._noted, "plausible.centres": centres, **self._sets()}

    def _kept_restored(self, fields: Fields) -> dict[str, Any]:
        delta = kept_delta(fields, self.delta)
        if delta is None:
            return {"delta": None}
        centres = fields.positions("plausible.centres", (None,), most=fields.integer("number")).tolist()
        fields.check("plausible.centres", bool(centres) and centres[0] == 0, "does not begin with the fit on no data")
        sets = self._sets_restored(fields, delta, len(centres))
        return {"delta": delta, "_noted": fields.integer("plausible.noted", most=fields.integer("episodes")), "_centres": centres, **sets}

    def _begin(self) -> None:
        raise NotImplementedError

    def _note(self, version: int) -> None:
        raise NotImplementedError

    def _sets(self) -> dict[str, Any]:
        raise NotImplementedError

    def _sets_restored(self, fields: Fields, delta: float, versions: int) -> dict[str, Any]:
        """Attributes that hold the sets of `versions` versions at failure probability `delta`."""
        raise NotImplementedError


class QuadraticSets(PlausibleOracle):
    """Plausible sets of a likelihood: l(w) >= l(fit) - r, r = log(1/delta) + (d/2) log n, n observed transitions, d parameters.

    The radius is that of the mixture of likelihood ratios over a smooth prior, whose logarithm is below the greatest
    log-likelihood by (d/2) log n + O(1) (G. Schwarz, Annals of Statistics 6, 1978); Ville's inequality turns it into a bound
    for all times. The set is approximated by (w - fit)' H (w - fit) <= 2 r with the Hessian H of -l at the fit. Both the
    omitted O(1) and the quadratic form are approximations, which are good once the data determine w. Each version stores
    d^2 numbers; a refit schedule keeps the number of versions small.

    A subclass has ``_curvature()``, which returns H and r including its prior knowledge, with H positive definite.
    """

    def _begin(self) -> None:
        self._roots: list[Array] = []
        self._note(0)

    def _note(self, version: int) -> None:
        hessian, radius = self._curvature()
        values, vectors = np.linalg.eigh(hessian)
        # Rounding may turn a small eigenvalue into 0.
        self._roots.append(vectors * np.sqrt(2.0 * radius / np.maximum(values, np.finfo(float).eps * values.max(initial=0.0))))

    def _curvature(self) -> tuple[Array, float]:
        raise NotImplementedError

    def _root(self, version: Hashable) -> Array:
        """M of a version: the greatest <x, w - fit> over the set is |x' M|."""
        number = self._version(version)
        return self._roots[number]

    def _penalty(self, n: float, dimension: int) -> float:
        return 0.5 * dimension * math.log(max(n, 1.0)) - math.log(self._kept())

    def _sets(self) -> dict[str, Any]:
        return {"plausible.roots": np.array(self._roots)}

    def _sets_restored(self, fields: Fields, delta: float, versions: int) -> dict[str, Any]:
        dimension = self._roots[0].shape[0] if self.delta is not None else None
        return {"_roots": list(fields.numbers("plausible.roots", (versions, dimension, dimension)))}
