"""A policy from a log alone, and how well classes fit it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, instance, one_of
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
    """What `learn_from_logs` learned.

    Attributes
    ----------
    method : {"plan", "pessimistic", "opo"}
    agent : OracleAgent
        Holds the fits; ``agent.save(path)`` writes them, and ``agent.load(path)`` of one built with the same arguments reads them.
    episodes : int
        Of the log.
    """

    method: str
    agent: OracleAgent
    episodes: int

    def policy(self, context: Any) -> Array:
        """The policy (n_states, A) at a context; a warning where the log has no such context."""
        self.agent.check_context(context)
        return np.asarray(self.agent.policy(context))

    def value(self, context: Any) -> float:
        """What the method says that the policy costs (V(s_1)).

        "plan": its value in the fitted model, which tends to be too low, since the plan seeks out what the fit has too low. "pessimistic":
        an upper bound, if the classes hold the truth. "opo": a lower bound of Algorithm 1. `evaluate_policy`, on data that were not learned
        from, is the fair judge.
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
        "plan": the optimum of the fits. "pessimistic": the optimum under the worst that the log leaves plausible (`PessimisticPlan`), for
        logs that do not cover every action. "opo": the policy of Algorithm 1 once it has observed the log's episodes in their order.
    action_mask : array_like of bool (n_states, A), optional
        Default: that of the log. ``log.logged`` allows only what was logged.
    **options
        Of `PessimisticPlan` (``delta``, ``penalty``) or of `OPO`.

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
        Mean squared error, or mean -log P, of a step; infinite where a fit excludes what happened.
    constant : float
        The same of the best constant: the mean loss; the frequencies of the next states of each layer, whatever state and action.
    standard_error : float
        Of the difference of the two, over episodes.
    """

    kind: str
    name: str
    error: float
    constant: float
    standard_error: float

    def __str__(self) -> str:
        what = "squared error" if self.kind == "losses" else "log loss"
        return f"{self.name}: {what} {self.error:.4f} a step on held-out episodes, {self.constant:.4f} of the best constant"


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
        At least 2.
    action_mask : array_like of bool (n_states, A), optional
        Default: that of the log.
    seed : int
        Of the folds.
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
    p = as_transitions(log.layout, oracle.transitions(fit, trajectory.context), log.action_mask).along(
        trajectory.states, trajectory.actions
    )
    with np.errstate(divide="ignore"):
        return abs(float(np.log(p).sum()))


def _constant(kind: str, log: TrajectoryLog, train: Array, test: Array) -> Array:
    """Errors (episodes of the test,) of the best constant on the training episodes; one is added to each count of next states."""
    if kind == "losses":
        return np.asarray(np.square(log.losses[test] - log.losses[train].mean()).sum(axis=1))
    counts = np.bincount(log.states[train, 1:-1].ravel(), minlength=log.layout.n_states) + 1.0
    sizes = np.array(log.layout.layer_sizes)
    totals = np.repeat(np.add.reduceat(counts, log.layout.offsets[:-1]), sizes)
    return np.asarray(-np.log(counts / totals)[log.states[test, 1:-1]].sum(axis=1))
