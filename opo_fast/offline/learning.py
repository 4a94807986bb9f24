"""Learning a policy from a log, and held-out errors of function classes on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, instance, one_of
from .._support.numbers import log_loss
from ..agents.baselines import Greedy
from ..agents.opo import OPO
from ..agents.oracle_agent import OracleAgent
from ..model.contextual import Trajectory
from ..model.conversion import as_transitions
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.names import Names
from ..oracles.log import TrajectoryLog
from ..oracles.log_rows import START
from .fits import fitted
from .pessimism import PessimisticPlan

__all__ = ["FitLine", "LearnedPolicy", "Method", "fit_report", "learn_from_logs"]

Array = npt.NDArray[Any]
Method = Literal["plan", "pessimistic", "opo"]
_AGENTS: dict[str, Any] = {"plan": Greedy, "pessimistic": PessimisticPlan, "opo": OPO}


@dataclass(frozen=True)
class LearnedPolicy:
    """The result of `learn_from_logs`.

    Attributes
    ----------
    method : {"plan", "pessimistic", "opo"}
    agent : OracleAgent
        Has the fits. ``agent.save(path)`` writes them, and ``load(path)`` of an agent built with the same arguments reads them.
    episodes : int
        Number of episodes in the log.
    """

    method: str
    agent: OracleAgent
    episodes: int

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) at a context; warns if the log has no such context."""
        self.agent.check_context(context)
        return np.asarray(self.agent.policy(context))

    def value(self, context: Any) -> float:
        """The method's own estimate of the policy's value V(s_1).

        "plan": the value in the fitted model, which tends to be too low, since the plan prefers actions whose cost the fit underestimates.
        "pessimistic": an upper bound, if the classes contain the truth. "opo": the lower bound of Algorithm 1. For a fair estimate use
        `evaluate_policy` with data that the policy was not learned from.
        """
        self.agent.check_context(context)
        return float(self.agent.value(context))  # type: ignore[attr-defined]

    def model(self, context: Any) -> LayeredMDP:
        """The fitted model at a context."""
        self.agent.check_context(context)
        return self.agent.model(self.agent.fits, context)

    def __call__(self, context: Any) -> Array:
        return np.asarray(self.agent.policy(context))


def learn_from_logs(
    layout: Layout,
    loss_class: Any,
    dynamics_class: Any,
    log: TrajectoryLog,
    method: Method = "plan",
    *,
    action_mask: npt.ArrayLike | None = None,
    **options: Any,
) -> LearnedPolicy:
    """Learn a policy from logged trajectories, without a simulator.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        Function classes or oracles without data.
    log : TrajectoryLog or sequence of Trajectory
    method : {"plan", "pessimistic", "opo"}
        "plan": the optimum of the fitted model. "pessimistic": the optimum for the worst model that the log leaves plausible
        (`PessimisticPlan`), for logs that do not cover every action. "opo": the policy of Algorithm 1 after it has observed the episodes
        of the log in order.
    action_mask : array_like of bool (n_states, A), optional
        Default: the mask of the log. ``log.logged`` only allows actions that were logged.
    **options
        Keyword arguments of `PessimisticPlan` (``delta``, ``penalty``) or of `OPO`.

    Returns
    -------
    LearnedPolicy
    """
    one_of(method, "method", _AGENTS)
    if action_mask is None:
        action_mask = getattr(log, "action_mask", None)
    agent = _AGENTS[method](layout, loss_class, dynamics_class, action_mask=action_mask, **options)
    log = TrajectoryLog.of(layout, log, agent.action_mask)
    states = None if log.state_labels is None else [str(label) for layer in log.state_labels for label in layer]
    actions = None if log.action_labels is None else [str(label) for label in log.action_labels]
    agent.names = Names(states, actions, start_layer=log.state_labels is not None and log.state_labels[0] == (START,))
    if method == "opo":
        for trajectory in log:
            agent.observe(trajectory)
    else:
        agent.warm_start(log)
    return LearnedPolicy(method, agent, len(log))


class FitLine(NamedTuple):
    """How well a class fits episodes that it has not seen.

    Attributes
    ----------
    kind : {"losses", "dynamics"}
    name : str
    error : float
        Mean squared error, or mean -log P, per step; infinite if a fit gives an observed step probability 0.
    constant : float
        The same for the best constant: the mean loss, or the frequencies of the next states in each layer whatever the state and action.
    standard_error : float
        Standard error of the difference between the two, over episodes.
    """

    kind: str
    name: str
    error: float
    constant: float
    standard_error: float

    def __str__(self) -> str:
        what = "squared error" if self.kind == "losses" else "log loss"
        return f"{self.name}: {what} {self.error:.4f} per step on held-out episodes, {self.constant:.4f} for the best constant"


def fit_report(
    log: TrajectoryLog,
    loss_classes: Any = None,
    dynamics_classes: Any = None,
    *,
    folds: int = 5,
    action_mask: npt.ArrayLike | None = None,
    seed: int = 0,
) -> list[FitLine]:
    """Held-out errors of function classes on a log, by cross-validation over episodes.

    Parameters
    ----------
    log : TrajectoryLog
    loss_classes, dynamics_classes : function class, or mapping from names to function classes, optional
    folds : int
        Number of folds, at least 2.
    action_mask : array_like of bool (n_states, A), optional
        Default: the mask of the log.
    seed : int
        Seed of the folds.
    """
    instance(log, "log", TrajectoryLog)
    folds = as_integer(folds, "folds", least=2, most=len(log))
    log = log if action_mask is None else TrajectoryLog.of(log.layout, log, action_mask)
    fold = np.random.default_rng(as_integer(seed, "seed", least=0, most=None)).permutation(len(log)) % folds
    lines = []
    for kind, classes in (("losses", loss_classes), ("dynamics", dynamics_classes)):
        steps = log.layout.horizon - (kind == "dynamics")
        named = classes if isinstance(classes, Mapping) else {} if classes is None else {type(classes).__name__: classes}
        constants = np.zeros(len(log))
        for k in range(folds):
            constants[fold == k] = _constant(kind, log, np.flatnonzero(fold != k), np.flatnonzero(fold == k))
        for name, source in named.items():
            errors = np.zeros(len(log))
            for k in range(folds):
                answer = "losses" if kind == "losses" else "transitions"
                oracle = fitted(source, log.take(np.flatnonzero(fold != k)), log.action_mask, f"{kind} class {name!r}", answer)
                fit = oracle.fit()
                errors[fold == k] = [_error(kind, oracle, fit, log[int(i)], log) for i in np.flatnonzero(fold == k)]
            with np.errstate(invalid="ignore"):
                spread = (errors - constants).std(ddof=1) / math.sqrt(len(log))
            lines.append(FitLine(kind, str(name), *(float(x / max(steps, 1)) for x in (errors.mean(), constants.mean(), spread))))
    return lines


def _error(kind: str, oracle: Any, fit: Any, trajectory: Trajectory, log: TrajectoryLog) -> float:
    if hasattr(oracle, "error"):
        return float(oracle.error(fit, trajectory))
    if kind == "losses":
        f = np.asarray(oracle.losses(fit, trajectory.context))[trajectory.states[:-1], trajectory.actions]
        return float(np.square(f - trajectory.losses).sum())
    transitions = as_transitions(log.layout, oracle.transitions(fit, trajectory.context), log.action_mask)
    return log_loss(transitions.along(trajectory.states, trajectory.actions))


def _constant(kind: str, log: TrajectoryLog, train: Array, test: Array) -> Array:
    """Errors of the best constant of the training episodes on each test episode; 1 is added to each count of next states."""
    if kind == "losses":
        return np.asarray(np.square(log.losses[test] - log.losses[train].mean()).sum(axis=1))
    counts = np.bincount(log.states[train, 1:-1].ravel(), minlength=log.layout.n_states) + 1.0
    sizes = np.array(log.layout.layer_sizes)
    totals = np.repeat(np.add.reduceat(counts, log.layout.offsets[:-1]), sizes)
    return np.asarray(-np.log(counts / totals)[log.states[test, 1:-1]].sum(axis=1))
