"""Self-tuning OPO in plain NumPy: plausible sets for the bonus, AdaHedge for the learning rate.

It needs no scale factors and no number of episodes. The structure of the paper's proof is kept: the optimistic value is the greater
of two lower bounds on the true value, one of which is Algorithm 1's, and the policy step uses exponential weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.reference import Evaluation, bonus, expected_next, occupancy
from ..model.transitions import Transitions
from .parameters import normalized_betas, parameters
from .rules import Bonus, ChainRule

__all__ = ["START_GAP", "AdaHedge", "Plausible", "SelfTuningRule", "optimistic_values", "self_tuning_chain", "self_tuning_rule"]

Array = npt.NDArray[Any]

FAR = 1 << 40
"""A step that no chain reaches."""
START_GAP = 1e-3
"""Initial mixability gap of AdaHedge. The regret bound, twice the sum of gaps, holds for any initial value; with 0, the policy would
jump between actions whose losses differ only by rounding."""


@dataclass(frozen=True)
class SelfTuningRule(ChainRule):
    """The rule of self-tuning OPO. Its betas depend on the step, so `beta_loss` and `beta_dynamics` are ignored.

    Attributes
    ----------
    layer_sizes : tuple of int
    n_actions : int
    loss_class_size, dynamics_class_size : float
    delta : float
    episodes : int or None
        T in the betas. None: the number of the step, rounded up to a power of two.
    plausible : bool
        Whether there are plausible sets. If so, the betas are the paper's, else those of `normalized_betas`.
    """

    layer_sizes: tuple[int, ...] = ()
    n_actions: int = 0
    loss_class_size: float = 1.0
    dynamics_class_size: float = 1.0
    delta: float = 0.05
    episodes: int | None = None
    plausible: bool = True
    hedged: ClassVar[bool] = True

    def bonus(self, step: int) -> Bonus:
        """The bonus of a step, counted from 0.

        With plausible sets, it is not needed if it is at least H for every number of visits up to `end`: f - b + P V is then at
        most 0.
        """
        return _bonus(
            self.layer_sizes,
            self.n_actions,
            (self.loss_class_size, self.dynamics_class_size, self.delta, self.weight),
            self.episodes,
            self.plausible,
            1 << step.bit_length(),
        )


@functools.lru_cache(maxsize=1024)
def _bonus(
    layer_sizes: tuple[int, ...], n_actions: int, numbers: tuple[float, ...], episodes: int | None, plausible: bool, end: int
) -> Bonus:
    """The bonus of steps end / 2 to end - 1, where `end` is a power of two; if not needed, also of later steps that do not need it."""
    layout = Layout(layer_sizes, n_actions)
    *sizes, delta, weight = numbers
    named = dict(zip(("loss_class_size", "dynamics_class_size"), sizes, strict=True))
    if plausible:
        loss, dynamics = parameters(layout, episodes or end, **named, delta=delta)[1:]
    else:
        loss, dynamics = normalized_betas(layout, episodes or end, **named)
    least = min(1.0, loss / 2 / end) + weight * min(1.0, dynamics / 2 / end)
    needed = not plausible or least < layout.horizon * (1 + 1e-6)
    # Steps that need no bonus can share one, so that their runs are not interrupted.
    if not needed and end < FAR and not (following := _bonus(layer_sizes, n_actions, numbers, episodes, plausible, 2 * end)).needed:
        end = following.end
    return Bonus(loss, frozen(np.full(layout.horizon, dynamics)), end, needed)


def self_tuning_rule(
    layout: Layout, *, loss_class_size: float, dynamics_class_size: float, delta: float, episodes: int | None, plausible: bool
) -> SelfTuningRule:
    """OPO with plausible sets instead of its scale factors, and AdaHedge instead of its learning rate."""
    return SelfTuningRule(
        beta_loss=0.0,
        beta_dynamics=np.zeros(layout.horizon),
        weight=2.0 * layout.horizon,
        visits="latest",
        greedy=False,
        layer_sizes=layout.layer_sizes,
        n_actions=layout.n_actions,
        loss_class_size=loss_class_size,
        dynamics_class_size=dynamics_class_size,
        delta=delta,
        episodes=episodes,
        plausible=plausible,
    )


class Plausible(NamedTuple):
    """The losses and dynamics that are plausible at one context, given past data.

    Attributes
    ----------
    model : LayeredMDP
        The best candidates f and P.
    lower : ndarray, shape (n_states, A), or None
        The least plausible loss of each state-action pair; None if there are no plausible sets.
    dynamics : sequence of Transitions, or ndarray, shape (n_states, A)
        The plausible dynamics, one by one; or, for each state-action pair, the largest total variation distance between P and a
        plausible dynamics.
    """

    model: LayeredMDP
    lower: Array | None = None
    dynamics: Sequence[Transitions] | Array = ()


def least_expectation(plausible: Plausible, h: int, v_next: Array) -> Array:
    """min_P sum_{s'} P(s'|s,a) v_next(s') over the plausible P, for each state-action pair; shape (S_h, A)."""
    model, dynamics = plausible.model, plausible.dynamics
    shape = (model.layout.layer_sizes[h], model.layout.n_actions)
    if not isinstance(dynamics, np.ndarray):
        return np.asarray(np.min([expected_next(t.arrays()[h], v_next, shape) for t in dynamics], axis=0))
    array = model.transitions.arrays()[h]
    rows = np.asarray(array.todense() if array.ndim == 2 else array.reshape(-1, v_next.size), np.float64)
    # For each pair, move as much mass as the distance allows, from the largest values first, to the least value.
    falling = np.argsort(-v_next, kind="stable")
    mass, radius = rows[:, falling], dynamics[model.layout.layer(h)].reshape(-1, 1)
    radius = np.where(radius >= 1, np.inf, radius)
    moved = np.diff(np.minimum(np.cumsum(mass, axis=1), radius), axis=1, prepend=0.0)
    least = rows @ v_next - moved @ (v_next[falling] - v_next.min())
    return np.asarray(least.reshape(shape))


def optimistic_values(plausible: Plausible, policy: Array, visits: Array, betas: Bonus) -> Evaluation:
    """Q = max{0, f - b + P V, min_f f + min_P P V} with the paper's bonus b, and V = <policy, Q>, by backward induction."""
    model, layout = plausible.model, plausible.model.layout
    b = bonus(visits, betas.beta_loss) + 2 * layout.horizon * bonus(visits, float(betas.beta_dynamics[0]))
    allowed = np.ones(layout.shape, bool) if model.action_mask is None else model.action_mask
    q, v = np.zeros(layout.shape), np.zeros(layout.n_states)
    for h in reversed(range(layout.horizon)):
        layer = layout.layer(h)
        bounds = [model.losses[layer] - b[layer]]
        if plausible.lower is not None:
            bounds.append(plausible.lower[layer].copy())
        if h < layout.horizon - 1:
            v_next = v[layout.layer(h + 1)]
            bounds[0] += expected_next(model.transitions.arrays()[h], v_next, bounds[0].shape)
            if plausible.lower is not None:
                bounds[1] += least_expectation(plausible, h, v_next)
        q[layer] = np.where(allowed[layer], np.max([np.zeros_like(bounds[0]), *bounds], axis=0), 0.0)
        v[layer] = (policy[layer] * q[layer]).sum(axis=1)
    return Evaluation(q, v)


class AdaHedge:
    """Exponential weights in every state, with the learning rate log|A_s| / Delta_s (de Rooij et al., JMLR 2014, section 2).

    Attributes
    ----------
    loss : ndarray, shape (n_states, A)
        Sums of Q minus their minimum in each state; infinite at masked actions.
    gap : ndarray, shape (n_states,)
        Delta, the sum of the mixability gaps. The regret in a state is at most twice that.
    """

    def __init__(self, uniform: Array) -> None:
        self.allowed = uniform > 0
        self.loss = np.where(self.allowed, 0.0, np.inf)
        self.gap = np.full(len(uniform), START_GAP)
        self.log_actions = np.log(np.maximum(self.allowed.sum(axis=1), 2))
        self.policy = uniform

    def _weights(self) -> Array:
        rate = self.log_actions / self.gap
        return np.asarray(np.where(self.allowed, np.exp(-rate[:, None] * self.loss), 0.0))

    def update(self, q: Array) -> None:
        """Add the Q of a step, and compute the next policy."""
        before = self._weights().sum(axis=1)
        mean = (self.policy * np.where(self.allowed, q, 0.0)).sum(axis=1)
        self.loss = self.loss + q
        least = self.loss.min(axis=1)
        self.loss -= least[:, None]
        # The mix loss -(1/eta) log sum_a pi(a) exp(-eta Q(a)), from the two sums of weights, both at least 1.
        mix = least + self.gap / self.log_actions * (np.log(before) - np.log(self._weights().sum(axis=1)))
        self.gap = self.gap + np.maximum(0.0, mean - mix)
        weights = self._weights()
        self.policy = weights / weights.sum(axis=1, keepdims=True)


def self_tuning_chain(history: Sequence[Plausible], rule: SelfTuningRule) -> AdaHedge:
    """AdaHedge after the steps of `history` at one context: Algorithm 1's inner loop with the two changes."""
    uniform = history[0].model.uniform_policy()
    hedge = AdaHedge(uniform)
    policies: list[Array] = []
    for k, plausible in enumerate(history):
        betas, visits = rule.bonus(k), np.zeros(uniform.shape)
        if betas.needed:
            visits = sum((occupancy(plausible.model, policy) for policy in policies), visits)
        policies.append(hedge.policy)
        hedge.update(optimistic_values(plausible, hedge.policy, visits, betas).q)
    return hedge
