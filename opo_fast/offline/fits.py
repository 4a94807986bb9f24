"""Models that function classes fit to a log or to resamples of it, and fitted Q evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..agents.oracle_agent import make_oracle
from ..model.conversion import as_transitions
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.operations import evaluate
from ..oracles import FiniteDynamicsClass, FiniteLossClass
from ..oracles.log import TrajectoryLog
from ..oracles.schedule import add_all

__all__ = ["ClassModel", "fitted", "fitted_q", "model_of", "resampled_values"]

Array = npt.NDArray[Any]
_LARGE = 1e300
"""Replaces infinite errors, so that a weight of 0 times an error is 0."""


def fitted(source: Any, log: TrajectoryLog, action_mask: Array | None, name: str, answer: str) -> Any:
    """An oracle of a class that has observed the log."""
    oracle = make_oracle(source, log.layout, action_mask, name, ("observe", "fit", answer))
    add_all(oracle, log)
    return oracle


class ClassModel:
    """The model from the fits of a loss oracle and a dynamics oracle."""

    def __init__(self, layout: Layout, losses: Any, dynamics: Any, action_mask: Array | None) -> None:
        self.layout, self.action_mask = layout, action_mask
        self._losses, self._dynamics = losses, dynamics
        self.fits = losses.fit(), dynamics.fit()

    def mdp(self, context: Any, fits: tuple[Any, Any] | None = None) -> LayeredMDP:
        """The model at a context."""
        loss_fit, fit = fits or self.fits
        transitions = as_transitions(self.layout, self._dynamics.transitions(fit, context), self.action_mask, own_mask=True)
        return LayeredMDP(self.layout, self._losses.losses(loss_fit, context), transitions)

    def evaluate(self, policy: Array, context: Any, fits: tuple[Any, Any] | None = None) -> tuple[Array, Array]:
        """Q (n_states, A) and V (n_states,) of a policy at a context."""
        found = evaluate(self.mdp(context, fits), policy)
        return found.q, found.v


def model_of(loss_class: Any, dynamics_class: Any, log: TrajectoryLog, action_mask: Array | None) -> ClassModel:
    """The model that two classes fit to a log."""
    losses = fitted(loss_class, log, action_mask, "loss_class", "losses")
    dynamics = fitted(dynamics_class, log, action_mask, "dynamics_class", "transitions")
    return ClassModel(log.layout, losses, dynamics, action_mask)


def resampled_values(
    classes: tuple[Any, Any], log: TrajectoryLog, action_mask: Array | None, weights: Array, policies: list[Array], contexts: list[Any]
) -> Array:
    """V(s_1) (B, contexts) of one policy per context, in the model fitted to each weighting (B, n) of the episodes.

    Finite classes are scored once on each episode; others are fitted again for each weighting.
    """
    pairs = list(zip(policies, contexts, strict=True))
    if not (isinstance(classes[0], FiniteLossClass) and isinstance(classes[1], FiniteDynamicsClass)):
        values = []
        for row in weights:
            model = model_of(*classes, log.take(np.repeat(np.arange(row.size), row.astype(np.int64))), action_mask)
            values.append([model.evaluate(policy, context)[1][0] for policy, context in pairs])
        return np.array(values)
    oracles = [source.oracle(log.layout, action_mask) for source in classes]
    model = ClassModel(log.layout, oracles[0], oracles[1], action_mask)
    best = [np.argmin(weights @ np.minimum(_errors(oracle, log), _LARGE), axis=1).tolist() for oracle in oracles]
    chosen = list(zip(*best, strict=True))
    known = {fits: [model.evaluate(policy, context, fits)[1][0] for policy, context in pairs] for fits in set(chosen)}
    return np.array([known[fits] for fits in chosen])


def _errors(oracle: Any, log: TrajectoryLog) -> Array:
    """The error of each candidate along each episode, (n, candidates)."""
    errors = np.empty((len(log), len(oracle.function_class)))
    for i, trajectory in enumerate(log):
        oracle.check(trajectory)
        errors[i] = [oracle.error(fit, trajectory) for fit in range(errors.shape[1])]
    return errors


def fitted_q(
    q_class: Any, log: TrajectoryLog, policies: list[Array], contexts: list[Any], number: Array, action_mask: Array | None
) -> tuple[list[Array], list[Array]]:
    """Fitted Q evaluation (H. Le, C. Voloshin and Y. Yue, ICML 2019): Q and V of one policy per context.

    Starting from Q = 0, (l_h + V(s_{h+1})) / H, which lies in [0, 1], is regressed on context and state-action pair H times. Each
    regression makes one more layer final, beginning with the last.

    Parameters
    ----------
    q_class
        Function class of losses; Q is H times a member.
    policies, contexts : lists
        The policy (n_states, A) of each distinct context.
    number : ndarray of int64, shape (n,)
        The position in `contexts` of each episode's context.
    """
    layout = log.layout
    horizon = layout.horizon
    values = np.zeros((len(contexts), layout.n_states + 1))
    q: list[Array] = []
    for _ in range(horizon):
        targets = (log.losses + values[number[:, None], log.states[:, 1:]]) / horizon
        oracle = fitted(q_class, log.with_losses(np.minimum(targets, 1.0)), action_mask, "q_class", "losses")
        fit = oracle.fit()
        q = [horizon * np.asarray(oracle.losses(fit, context)) for context in contexts]
        values[:, :-1] = [(policy * table).sum(axis=1) for policy, table in zip(policies, q, strict=True)]
    return q, list(values[:, :-1])
