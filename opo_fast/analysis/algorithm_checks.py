"""Whether steps are those of Algorithm 1: the residuals of the equations that define them.

The inequalities of `lemma_checks` hold for a range of parameters and visits; these equations only hold for the right ones. They are
evaluated with plain NumPy operations, so they also check kernels and engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number, instance
from ..errors import OpoError
from ..model import reference
from ..model.layered import LayeredMDP
from ..model.reference import expected_next
from ..runs.steps import Step, allowed_pairs

__all__ = ["EquationCheck", "algorithm_checks"]

Array = npt.NDArray[Any]

TOLERANCE = 1e-9
"""Largest residual with which an equation counts as satisfied."""

_SOURCES = {
    "visits": "N^t = sum_{i<t} q(s, a | pi^i, P^t) (eq. (2), denominator)",
    "bonus": "b = min{1, (beta_l/2) / (1+N)} + 2H min{1, (beta_P/2) / (1+N)} (eq. (2); Algorithm 1, line 9)",
    "Q": "Q^t = max{0, f^t - b + P^t V^t} (Algorithm 1, line 12)",
    "V": "V^t = sum_a pi^t(a|s) Q^t(s, a) (Algorithm 1, line 13)",
    "policy": "pi^1 uniform, pi^{t+1} proportional to pi^t exp(-eta Q^t) (Algorithm 1, lines 2 and 14)",
}


@dataclass(frozen=True, eq=False, repr=False)
class EquationCheck:
    """One of the defining equations, evaluated at given steps. Its repr shows the largest residual and its step.

    Attributes
    ----------
    source : str
        The equation, and its place in the paper.
    residual : ndarray, shape (t,)
        For each step the largest difference between the two sides over state-action pairs, divided by the larger of 1 and the largest
        entry of the right side.
    """

    source: str
    residual: Array

    @property
    def holds(self) -> bool:
        """Whether the equation holds at every step, up to rounding."""
        return bool((self.residual <= TOLERANCE).all())

    def __repr__(self) -> str:
        worst = int(self.residual.argmax())
        verdict = "holds" if self.holds else "VIOLATED"
        return f"{verdict:8}  residual {self.residual[worst]:.2g} at most (step {worst + 1} of {self.residual.size})  {self.source}"


def algorithm_checks(steps: Iterable[Step], *, eta: float, beta_loss: float, beta_dynamics: float) -> dict[str, EquationCheck]:
    """Residuals of the five equations that define a step of Algorithm 1: visits, bonus, Q, V and policy.

    The right side of each equation is computed from the steps' own arrays, so that an error shows in one equation only.

    Parameters
    ----------
    steps : iterable of Step
        Steps t = 1, 2, ... at one context, from `optimistic_steps` or another implementation.
    eta, beta_loss, beta_dynamics : float
        The parameters with which the steps were computed, at least 0.

    Returns
    -------
    dict of EquationCheck
        With the keys "visits", "bonus", "Q", "V", "policy"; ``print(*checks.values(), sep="\\n")`` shows them all.

    Raises
    ------
    OpoError
        There are no steps, or they have another type or different layouts or action masks, or a parameter is out of range.
    """
    eta, beta_loss, beta_dynamics = as_number(eta, "eta"), as_number(beta_loss, "beta_loss"), as_number(beta_dynamics, "beta_dynamics")
    if not isinstance(steps, Iterable):
        raise OpoError(f"steps is a {type(steps).__name__}: what optimistic_steps gives is needed")
    found: list[tuple[float, ...]] = []
    visits, weights, first = _Visits(), None, None
    for t, step in enumerate(steps):
        instance(step, f"steps[{t}]", Step, needed="a Step of optimistic_steps")
        first = first or step.model
        weights = weights or _Weights(first, eta)
        if step.model.layout != first.layout or not np.array_equal(allowed_pairs(step.model), allowed_pairs(first)):
            raise OpoError(f"steps[{t}] has another layout or action mask than steps[0]: the same is needed")
        bonuses = reference.bonus(step.visits, beta_loss), reference.bonus(step.visits, beta_dynamics)
        found.append((
            _difference(step.visits, visits.under(step.model)),
            max(_difference(step.bonus_loss, bonuses[0]), _difference(step.bonus_dynamics, bonuses[1])),
            _difference(step.q, _optimistic_q(step)),
            _difference(step.v, (step.policy * step.q).sum(axis=1)),
            _difference(step.policy, weights.policy()),
        ))  # fmt: skip
        visits.add(step.policy)
        weights.add(step.q)
    if not found:
        raise OpoError("steps: at least one is needed, got none")
    return {name: EquationCheck(source, column.copy()) for (name, source), column in zip(_SOURCES.items(), np.array(found).T, strict=True)}


class _Visits:
    """Sums of the occupancies of all policies so far, one for each dynamics that a step uses."""

    def __init__(self) -> None:
        self.policies: list[Array] = []
        # Keeping the transitions prevents that their id is used again.
        self.sums: dict[int, tuple[Any, Array, int]] = {}

    def add(self, policy: Array) -> None:
        self.policies.append(policy)

    def under(self, model: LayeredMDP) -> Array:
        key = id(model.transitions)
        _, total, counted = self.sums.get(key, (None, np.zeros(model.layout.shape), 0))
        for policy in self.policies[counted:]:
            total = total + reference.occupancy(model, policy)
        self.sums[key] = model.transitions, total, len(self.policies)
        return total


class _Weights:
    """Exponential weights from the Q of the steps so far."""

    def __init__(self, model: LayeredMDP, eta: float) -> None:
        self.eta, self.sum_q = eta, np.where(allowed_pairs(model), 0.0, np.inf)

    def add(self, q: Array) -> None:
        self.sum_q = self.sum_q + q

    def policy(self) -> Array:
        gaps = self.sum_q - self.sum_q.min(axis=1, keepdims=True)
        weights = np.where(np.isfinite(gaps), np.exp(-self.eta * np.where(np.isfinite(gaps), gaps, 0.0)), 0.0)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _optimistic_q(step: Step) -> Array:
    """The right side of the equation for Q, from the step's own V and bonus."""
    model, layout = step.model, step.model.layout
    q = model.losses - step.bonus
    for h, block in enumerate(model.transitions.arrays()):
        layer = layout.layer(h)
        q[layer] += expected_next(block, step.v[layout.layer(h + 1)], q[layer].shape)
    return np.where(allowed_pairs(model), np.maximum(0.0, q), 0.0)


def _difference(left: Array, right: Array) -> float:
    """Largest difference, relative to the larger of 1 and the largest entry of `right`; infinite if it is not finite."""
    gap = float(np.abs(left - right).max()) / max(1.0, float(np.abs(right).max()))
    return gap if np.isfinite(gap) else float("inf")
