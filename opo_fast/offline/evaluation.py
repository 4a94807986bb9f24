"""Off-policy evaluation: what a policy would have cost, from a log of another policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, instance, one_of
from ..errors import OpoError
from ..oracles.log import TrajectoryLog
from . import importance
from .estimators import Estimation

__all__ = ["ESTIMATORS", "Estimate", "OffPolicyWarning", "PolicyEvaluation", "evaluate_policy"]

Array = npt.NDArray[Any]
ESTIMATORS = ("dm", "pdis", "snpdis", "dr", "fqe")


class OffPolicyWarning(UserWarning):
    """The log says little or nothing about the policy that is evaluated."""


@dataclass(frozen=True)
class Estimate:
    """One estimate of V(s_1), the expected sum of losses, averaged over the contexts of the log.

    Attributes
    ----------
    name : str
    value, standard_error : float
    low, high : float
        Percentile bootstrap interval over episodes.
    supported : bool
        Whether the log supports the estimate. If not, estimators without a function class give NaN, and the others extrapolate.
    """

    name: str
    value: float
    standard_error: float
    low: float
    high: float
    supported: bool = True

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"{self.name:7s} not supported by the log"
        spread = "" if math.isnan(self.low) else f" [{self.low:.4f}, {self.high:.4f}], standard error {self.standard_error:.4f}"
        return f"{self.name:7s} {self.value:.4f}{spread}{'' if self.supported else ' (extrapolated by the class)'}"


@dataclass(frozen=True)
class PolicyEvaluation:
    """The result of `evaluate_policy`: a mapping from the names of estimators to `Estimate`.

    Attributes
    ----------
    estimates : dict of Estimate
    level : float
        Confidence level of the intervals.
    episodes : int
        Number of logged episodes.
    logged_value : float
        Mean sum of losses of the logged episodes: the value of the behavior policy.
    effective_sample_size : ndarray, shape (H,)
        Effective sample size of the cumulative importance weights at each step.
    left : float
        Estimated probability that an episode of the policy visits a state-action pair that was never logged for its context group. The
        log says nothing about the rest of such an episode.
    bounds : tuple of float
        Value in the model of frequencies, with the smallest and with the largest possible losses in the rest of such episodes.
    propensities : {"logged", "given", "estimated"}
        Where the propensities come from.
    notes : tuple of str
        Reasons not to trust the estimates; each is also a warning.
    """

    estimates: dict[str, Estimate]
    level: float
    episodes: int
    logged_value: float
    effective_sample_size: Array
    left: float
    bounds: tuple[float, float]
    propensities: str
    notes: tuple[str, ...]

    @property
    def supported(self) -> bool:
        """Whether the log supports all estimates."""
        return all(estimate.supported for estimate in self.estimates.values())

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def __str__(self) -> str:
        least = float(self.effective_sample_size.min())
        lines = [
            f"{self.episodes:,} logged episodes, which cost {self.logged_value:.4f}; values with {self.level:.0%} intervals",
            *map(str, self.estimates.values()),
            f"{self.propensities} propensities; effective sample size {least:.0f} or more; probability of leaving the log {self.left:.2%}",
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def evaluate_policy(
    log: TrajectoryLog,
    policy: Any,
    *,
    estimators: Sequence[str] | None = None,
    loss_class: Any = None,
    dynamics_class: Any = None,
    q_class: Any = None,
    behavior: Any = None,
    smoothing: float = 0.0,
    groups: Callable[[Any], Hashable] | None = None,
    folds: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    refits: int = 100,
    tolerance: float = 0.05,
    seed: int = 0,
) -> PolicyEvaluation:
    """Estimate V(s_1) of a policy, averaged over the contexts of a log, from the log alone.

    Parameters
    ----------
    log : TrajectoryLog
        Its episodes must be independent, with actions from a fixed policy that depends on context and state.
    policy : callable, array (n_states, A), or anything with ``policy(context)``
        The policy to evaluate.
    estimators : sequence of {"dm", "pdis", "snpdis", "dr", "fqe"}, optional
        Direct method, per-decision importance sampling, its self-normalised (weighted) form, doubly robust, fitted Q evaluation. Default:
        all except "fqe", which with tables equals "dm" (Y. Duan, Z. Jia and M. Wang, ICML 2020); if `q_class` is given, "fqe" as well.
    loss_class, dynamics_class : function classes, optional
        Their fits are the model of "dm" and "dr". Default: frequencies and mean losses, in one table for each context group; from a pair
        without data on, each step costs as much as an average step of the log.
    q_class : function class of losses, optional
        The class for "fqe", scaled by H. Default: one table for each context.
    behavior : callable or array (n_states, A), optional
        The behavior policy of the log. Default: the log's propensities, or if it has none, the frequencies of the actions in each state and
        context group.
    smoothing : float
        Added to each count of these frequencies. With 0 the only bias of the estimates comes from actions that were not logged.
    groups : callable, optional
        Contexts with equal ``groups(context)`` share their tables. Default: each context is its own group if the log has at least 20
        episodes per context on average; otherwise there is one group.
    folds : int
        Number of folds for "dr", whose Q is fitted on the other folds (cross-fitting); at most the number of episodes is used. With 1 it is
        fitted on the whole log.
    level : float
        Confidence level of the intervals.
    resamples : int
        Bootstrap resamples of episodes. Tables are estimated again in each; propensities and the Q of "dr" are not.
    refits : int
        Resamples for estimators that have to fit a function class again in each: "fqe", and "dm" with classes that are not finite. With 0
        they have no interval.
    tolerance : float
        Estimates count as supported up to this probability of leaving the log (`PolicyEvaluation.left`).
    seed : int
        Seed of resamples and folds.

    Returns
    -------
    PolicyEvaluation

    Raises
    ------
    OpoError
        An argument is wrong, or the policy plays a masked action (absorbing states have only one action).

    Warns
    -----
    OffPolicyWarning
        The policy leaves the log, or few episodes carry most of the weight.
    """
    instance(log, "log", TrajectoryLog)
    names = _names(estimators, q_class)
    if (loss_class is None) != (dynamics_class is None):
        raise OpoError(f"{'loss' if loss_class is None else 'dynamics'}_class is missing: the model needs both, or none")
    estimation = Estimation(log, policy, groups, behavior, as_number(smoothing, "smoothing"), as_integer(seed, "seed", least=0, most=None))
    level, tolerance = as_number(level, "level", most=1.0, strict=True), as_number(tolerance, "tolerance", most=1.0)
    counts = as_integer(resamples, "resamples", least=2), as_integer(refits, "refits", least=0)
    supported = estimation.left <= tolerance
    classes = (loss_class, dynamics_class)
    found = {}
    for name in names:
        if name in ("pdis", "snpdis"):
            value, error, replicates = estimation.importance(name, counts[0])
        elif name == "dr":
            value, error, replicates = estimation.doubly_robust(classes, min(as_integer(folds, "folds", least=1), len(log)), counts[0])
        elif name == "fqe":
            value, error, replicates = estimation.fitted_q(q_class, counts[1])
        else:
            value, error, replicates = estimation.tables_value(counts[0]) if loss_class is None else estimation.class_value(classes, counts)
        extrapolates = loss_class is not None if name in ("dm", "dr") else q_class is not None and name == "fqe"
        low, high = _interval(replicates, level)
        if not supported and not extrapolates:
            value = error = low = high = math.nan
        found[name] = Estimate(name, value, error, low, high, supported)
    notes = estimation.notes(tolerance, any(name in names for name in ("pdis", "snpdis", "dr")))
    for note in notes:
        warnings.warn(note, OffPolicyWarning, stacklevel=2)
    return PolicyEvaluation(
        found,
        level,
        len(log),
        float(log.losses.sum(axis=1).mean()),
        importance.effective_sample_size(estimation.weights),
        estimation.left,
        estimation.bounds,
        estimation.source,
        notes,
    )


def _names(estimators: Any, q_class: Any) -> list[str]:
    if estimators is None:
        return list(ESTIMATORS if q_class is not None else ESTIMATORS[:-1])
    names = as_items(estimators, "estimators", "names", some=True)
    for i, name in enumerate(names):
        one_of(name, f"estimators[{i}]", ESTIMATORS)
    return names


def _interval(replicates: Array, level: float) -> tuple[float, float]:
    if replicates.size < 2:
        return math.nan, math.nan
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
