"""Least squares for dynamics over a finite class (RM-UCDD)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.numbers import log_loss
from ..model.contextual import Trajectory
from ..model.layout import Layout
from ..model.transitions import Transitions
from .finite import FiniteDynamicsOracle, along

__all__ = ["FiniteSquaredOracle"]

Array = npt.NDArray[Any]


class FiniteSquaredOracle(FiniteDynamicsOracle):
    """Least squares over a finite class of dynamics; `scores` holds the sums of squared errors.

    A transition's error is sum_{s'} (P(s'|s,a) - 1{s' = s_{h+1}})^2 = |P(.|s,a)|^2 - 2 P(s_{h+1}|s,a) + 1. Data that are
    impossible under a candidate raise its error but do not exclude it.

    Radius of the plausible set: log(|P| / delta), as for the log loss. With d = P(.|s,a) - P*(.|s,a), L(P*) - L(P) grows by
    2 <d, 1{s'} - P*> - |d|^2, whose exponential has mean at most 1: the squared range of d is at most 2 |d|^2, so
    Hoeffding's lemma gives E exp(2 <d, 1{s'} - P*>) <= exp(|d|^2).
    """

    _score_range = 0.0, float(np.finfo(np.float64).max)

    def _costs(self) -> Array:
        return self.scores

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P of candidate `fit` along a trajectory; infinite if the candidate excludes it."""
        p = along(self._answer(trajectory.context).models[fit], trajectory, self.layout)
        return log_loss(p)

    def _gains(self, trajectory: Trajectory) -> Array:
        answers = self._answer(trajectory.context).models
        states, actions = trajectory.states.tolist(), trajectory.actions.tolist()
        observed = self._along(trajectory)
        norms = np.array([self._norms(answer, states, actions) for answer in answers])
        return np.asarray((norms - 2.0 * observed + 1.0).sum(axis=1))

    def _norms(self, answer: Any, states: list[int], actions: list[int]) -> list[float]:
        """|P(.|s_h, a_h)|^2 for h = 1..H-1."""
        norms = []
        for h in range(self.layout.horizon - 1):
            row = stored_row(answer, h, states[h], actions[h], self.layout)
            norms.append(float(np.dot(row, row)))
        return norms


def stored_row(transitions: Any, h: int, state: int, action: int, layout: Layout) -> Array:
    """The stored probabilities of P(.|s,a) out of layer h, float64, from transitions of any form."""
    local = state - int(layout.offsets[h])
    if isinstance(transitions, Transitions):
        t, mask = transitions, transitions.action_mask
        row = int(t.rows[state]) + (action if mask is None else int(mask[state, :action].sum())) - int(t.rows[layout.offsets[h]])
        start, n_rows = int(t.block[h]), t.layer_rows[h]
        if t.kind == 0:
            found = t.data[start + row : start + n_rows * layout.layer_sizes[h + 1] : n_rows]
        else:
            found = t.data[t.indptr[start + row] : t.indptr[start + row + 1]]
    elif sp.issparse(transitions[h]):
        # CSR arrays may store duplicates, which add up: converting to dense sums them.
        found = transitions[h].tocsr()[[local * layout.n_actions + action]].toarray().ravel()
    else:
        found = transitions[h][local, action]
    return np.asarray(found, np.float64)
