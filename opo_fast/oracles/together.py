"""Finite oracles of several agents with the same class: each operation is done once for all of them, and for several episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .fingerprint import LOOKED_AT
from .finite import FiniteDynamicsOracle, FiniteLossOracle

__all__ = ["OraclesTogether", "alike"]

Array = npt.NDArray[Any]


def alike(oracles: Sequence[Any]) -> bool:
    """Whether these are finite oracles of the same class of functions, with the same failure probability."""
    first = oracles[0]
    if type(first) not in (FiniteLossOracle, FiniteDynamicsOracle):
        return False
    known, delta = first.function_class, first.delta
    return all(
        type(oracle) is type(first)
        and oracle.delta == delta
        and (oracle.function_class is known or (oracle.function_class.models == known.models and oracle.function_class.together is None))
        and oracle.layout == first.layout
        for oracle in oracles
    )


class OraclesTogether:
    """Finite oracles that are `alike`.

    The oracles stay usable: their scores become rows of one array, and each keeps its own plausible set.

    Attributes
    ----------
    scores : ndarray, shape (B, n)
    fit : ndarray of int64, shape (B,)
        The best candidate of each oracle.
    version : ndarray of int64, shape (B,)
        The version of each plausible set, if they are kept.
    count : ndarray, shape (B,)
        Number of candidates in each plausible set.
    """

    def __init__(self, oracles: Sequence[Any]) -> None:
        self.oracles = list(oracles)
        self.scores = np.stack([oracle.scores for oracle in oracles])
        for oracle, line in zip(oracles, self.scores, strict=True):
            oracle.scores = line
            # The candidates at a context are the same for all.
            oracle._answers = oracles[0]._answers
        self.nested = oracles[0]._set is not None
        self.radius = oracles[0]._radius() if self.nested else 0.0
        self.sign = 1.0 if isinstance(oracles[0], FiniteLossOracle) else -1.0
        self.members = np.ones(self.scores.shape, bool)
        self.version, self.count = np.zeros(len(oracles), np.int64), np.full(len(oracles), np.nan)
        self._unseen = list(oracles)
        self.look()

    def look(self) -> None:
        """Read the current state of the oracles, which may have changed on their own."""
        for i in range(len(self.oracles)):
            self._take(i)
        self._choose(self._costs())

    def _take(self, i: int) -> None:
        if self.nested:
            nested = self.oracles[i]._set
            self.members[i] = False
            self.members[i, nested.members] = True
            self.version[i], self.count[i] = nested.version, nested.members.size

    def _costs(self) -> Array:
        return self.scores if self.sign > 0 else -self.scores

    def _choose(self, costs: Array) -> None:
        self.fit = (np.where(self.members, costs, np.inf) if self.nested else costs).argmin(axis=1)

    def coming(self, gains: Array) -> tuple[Array, Array]:
        """What the next episodes come to, which have gained `gains`, shape (B, k, n); nothing is added.

        Returns
        -------
        scores : ndarray, shape (B, k, n)
            After each of them.
        changed : ndarray of bool, shape (B, k)
            Whether the fit, or the plausible set, differs from the present one.
        """
        sums = np.concatenate([self.scores[:, None], gains], axis=1)
        # One after the other, as `add` does.
        scores = np.add.accumulate(sums, axis=1)[:, 1:]
        costs = scores if self.sign > 0 else -scores
        if not self.nested:
            return scores, costs.argmin(axis=2) != self.fit[:, None]
        members = self.members[:, None]
        passes = costs <= costs.min(axis=2, keepdims=True) + self.radius
        fit = np.where(members, costs, np.inf).argmin(axis=2)
        return scores, (fit != self.fit[:, None]) | (members & ~passes).any(axis=2)

    def take(self, scores: Array, contexts: Sequence[Sequence[Any]]) -> None:
        """Take over the scores after some episodes that have changed nothing else."""
        self.scores[...] = scores
        for some in contexts:
            if self._unseen:
                self._see(some)

    def add(self, gains: Array, contexts: Sequence[Any]) -> None:
        """Add the gains of one episode of each oracle, shape (B, n)."""
        self.scores += gains
        if self._unseen:
            self._see(contexts)
        costs = self._costs()
        if self.nested:
            passes = costs <= costs.min(axis=1, keepdims=True) + self.radius
            for i in np.flatnonzero((self.members & ~passes).any(axis=1)).tolist():
                self.oracles[i]._set.reduce(passes[i], int(costs[i].argmin()))
                self._take(i)
        self._choose(costs)

    def _see(self, contexts: Sequence[Any]) -> None:
        for oracle, context in zip(self.oracles, contexts, strict=True):
            oracle._fingerprint.see(context)
        if all(len(oracle._fingerprint._contexts) >= LOOKED_AT for oracle in self.oracles):
            self._unseen = []
