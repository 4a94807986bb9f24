"""Transition frequencies and mean losses of a log for each context group, and the value of a policy in that model.

Everything is a function of one weight per episode (a weight of 2 counts an episode twice), so that all resamples of a bootstrap, or all
folds of cross-fitting, are computed in one batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ..oracles.log import TrajectoryLog

__all__ = ["TableModel", "Tables"]

Array = npt.NDArray[Any]


class Tables:
    """Counts of a log, by row (group, state, action) and by cell (row, next state).

    Parameters
    ----------
    log : TrajectoryLog
    groups : ndarray of int64, shape (n,)
        The context group of each episode.

    Attributes
    ----------
    row_of : ndarray of int64, shape (n, H)
        The row of each logged step.
    """

    def __init__(self, log: TrajectoryLog, groups: Array) -> None:
        self.log, layout = log, log.layout
        n, horizon = log.actions.shape
        keys = groups[:, None] * (layout.n_states * layout.n_actions) + log.pairs
        found, inverse = np.unique(keys, return_inverse=True)
        self.row_of: Array = inverse.reshape(n, horizon)
        self.n_rows = found.size
        group, pair = np.divmod(found, layout.n_states * layout.n_actions)
        self.state, self.action = np.divmod(pair, layout.n_actions)
        self._place = group * layout.n_states + self.state
        layer = np.searchsorted(layout.offsets, self.state, side="right") - 1
        self._bounds = np.searchsorted(group * horizon + layer, np.arange((int(groups.max()) + 1) * horizon + 1))
        cells, cell_of = np.unique(self.row_of[:, :-1] * (layout.n_states + 1) + log.states[:, 1:-1], return_inverse=True)
        self._row_of_cell, self._next = np.divmod(cells, layout.n_states + 1)
        self._cell_bounds = np.searchsorted(self._row_of_cell, np.arange(self.n_rows + 1))
        episode = np.repeat(np.arange(n), horizon)
        ones = np.ones(n * horizon)
        self._visits = _incidence(ones, self.row_of.ravel(), episode, (self.n_rows, n))
        self._losses = _incidence(log.losses.ravel(), self.row_of.ravel(), episode, (self.n_rows, n))
        inner = np.repeat(np.arange(n), horizon - 1)
        self._follows = _incidence(np.ones(inner.size), cell_of.ravel(), inner, (cells.size, n))

    def model(self, weights: Array) -> TableModel:
        """The models for several weightings (B, n) of the episodes."""
        visits = self._visits @ weights.T
        safe = np.where(visits > 0, visits, 1.0)
        losses = (self._losses @ weights.T) / safe
        follows = (self._follows @ weights.T) / safe[self._row_of_cell]
        return TableModel(self, losses.T, follows.T, (visits > 0).T)

    def behavior(self, smoothing: float) -> Array:
        """Estimated probability of each logged action, (n, H): (n(g, s, a) + smoothing) / (n(g, s) + smoothing K), K allowed actions."""
        log, layout = self.log, self.log.layout
        visits = np.bincount(self.row_of.ravel(), minlength=self.n_rows)
        starts = np.flatnonzero(np.diff(self._place, prepend=-1) != 0)
        lengths = np.diff(np.append(starts, self.n_rows))
        totals = np.repeat(np.add.reduceat(visits, starts), lengths)
        allowed = layout.n_actions if log.action_mask is None else log.action_mask.sum(axis=1)[self.state]
        rates: Array = (visits + smoothing) / (totals + smoothing * allowed)
        return rates[self.row_of]


class TableModel:
    """Mean losses and frequencies of next states for a batch of weightings; see `Tables`."""

    def __init__(self, tables: Tables, losses: Array, follows: Array, seen: Array) -> None:
        self.tables, self.losses, self.follows, self.seen = tables, losses, follows, seen

    def evaluate(self, policy: Array, group: int, *, unseen: float = 0.0, left: bool = False) -> tuple[Array, Array]:
        """Q (B, rows of all groups; other groups' are 0) and V (B, n_states) of a policy (n_states, A) at contexts of a group.

        Parameters
        ----------
        unseen : float
            Loss, in [0, 1], of each step from a pair without data on.
        left : bool
            Instead of the losses, count 1 when a pair without data is reached: V is then the probability that an episode reaches one.
        """
        t = self.tables
        layout, batch = t.log.layout, len(self.losses)
        q, v = np.zeros((batch, t.n_rows)), np.zeros((batch, layout.n_states))
        for h in reversed(range(layout.horizon)):
            lo, hi = (int(x) for x in t._bounds[group * layout.horizon + h : group * layout.horizon + h + 2])
            absent = 1.0 if left else unseen * (layout.horizon - h)
            v[:, layout.layer(h)] = absent
            if lo == hi:
                continue
            part = np.zeros((batch, hi - lo)) if left else self.losses[:, lo:hi].copy()
            first, last = int(t._cell_bounds[lo]), int(t._cell_bounds[hi])
            if first < last:
                onward = self.follows[:, first:last] * v[:, t._next[first:last]]
                part += np.add.reduceat(onward, t._cell_bounds[lo:hi] - first, axis=1)
            q[:, lo:hi] = np.where(self.seen[:, lo:hi], part, absent)
            state, action = t.state[lo:hi], t.action[lo:hi]
            starts = np.flatnonzero(np.diff(state, prepend=-1) != 0)
            reached, chances = state[starts], policy[state, action]
            rest = policy[reached]
            rest[np.cumsum(np.diff(state, prepend=state[0]) != 0), action] = 0.0
            v[:, reached] = np.add.reduceat(q[:, lo:hi] * chances, starts, axis=1) + rest.sum(axis=1) * absent
        return q, v


def _incidence(data: Array, row: Array, column: Array, shape: tuple[int, int]) -> Any:
    return sp.csr_array((data, (row, column)), shape=shape)
