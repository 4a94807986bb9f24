"""The estimators of `evaluate_policy` on one log and one policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import shown
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.operations import as_policy
from ..oracles import TabularLossClass
from ..oracles.log import TrajectoryLog
from . import importance
from .fits import ClassModel, fitted_q, model_of, resampled_values
from .tables import Tables

__all__ = ["Estimation"]

Array = npt.NDArray[Any]
Found = tuple[float, float, Array]
"""A value, its standard error, and its bootstrap replicates."""
BATCH = 1 << 22
"""Entries of the largest temporary array of the bootstrap."""
LEAST = 30.0
"""A smaller effective sample size is reported in the notes."""


class Estimation:
    """A log and a policy, with everything that the estimators share."""

    def __init__(self, log: TrajectoryLog, policy: Any, groups: Any, behavior: Any, smoothing: float, seed: int) -> None:
        self.log, self.seed = log, seed
        self._drawn: Array | None = None
        self.contexts, self.number = _distinct(log.contexts)
        self.group = _groups(self.contexts, len(log), groups)
        self.policies = [_policy(log, policy, context, "policy") for context in self.contexts]
        self.tables = Tables(log, self.group[self.number])
        self.chances = self._played(self.policies)
        if behavior is not None:
            self.source = "given"
            self.propensities = self._played([_policy(log, behavior, context, "behavior") for context in self.contexts])
            if not (self.propensities > 0).all():
                i, h = (int(x) for x in np.argwhere(self.propensities <= 0)[0])
                raise OpoError(f"behavior: the logged action of trajectory {i}, step {h} has probability 0; a positive one is needed")
        elif log.propensities is not None:
            self.source, self.propensities = "logged", log.propensities
        else:
            self.source, self.propensities = "estimated", self.tables.behavior(smoothing)
        self.weights = importance.step_weights(self.chances, self.propensities)
        self.unseen = float(log.losses.mean())
        once = self.tables.model(np.ones((1, len(log))))
        share = np.bincount(self.number) / len(log)

        def mean(**options: Any) -> float:
            values = [once.evaluate(p, int(g), **options)[1][0, 0] for p, g in zip(self.policies, self.group, strict=True)]
            return float(share @ np.array(values))

        self.left = mean(left=True)
        self.bounds = mean(unseen=0.0), mean(unseen=1.0)

    def _played(self, policies: list[Array]) -> Array:
        """Probabilities (n, H) of the logged actions under policies, one for each distinct context."""
        log, chances = self.log, np.empty(self.log.actions.shape)
        for k, policy in enumerate(policies):
            mine = self.number == k
            chances[mine] = policy[log.states[mine, :-1], log.actions[mine]]
        return chances

    # -- estimators ----------------------------------------------------------------------------------------------------

    def importance(self, name: str, resamples: int) -> Found:
        """Per-decision importance sampling, plain or self-normalised."""
        weights, losses = self.weights, self.log.losses
        if name == "pdis":
            return self._mean(importance.pdis(weights, losses), resamples)
        value = float(importance.snpdis(weights, losses).mean())
        error = _standard_error(importance.influence_of_snpdis(weights, losses))

        def statistic(counts: Array) -> Array:
            sums = counts @ weights
            return np.asarray((counts @ (weights * losses) / np.where(sums > 0, sums, 1.0)).sum(axis=1))

        return value, error, self._bootstrap(statistic, resamples, weights.size)

    def doubly_robust(self, classes: tuple[Any, Any], folds: int, resamples: int) -> Found:
        """Doubly robust, with Q fitted on the other folds."""
        log = self.log
        fold = np.random.default_rng(self.seed).permutation(len(log)) % folds
        q, v = np.zeros(log.actions.shape), np.zeros(log.actions.shape)
        inside = np.array([np.ones(len(log)) if folds == 1 else fold != k for k in range(folds)], np.float64)
        if classes[0] is None:
            model = self.tables.model(inside)
            for k, (policy, group) in enumerate(zip(self.policies, self.group, strict=True)):
                tables_q, tables_v = model.evaluate(policy, int(group), unseen=self.unseen)
                mine = np.flatnonzero(self.number == k)
                q[mine] = tables_q[fold[mine, None], self.tables.row_of[mine]]
                v[mine] = tables_v[fold[mine, None], log.states[mine, :-1]]
        else:
            for part in range(folds):
                fitted = model_of(*classes, log if folds == 1 else log.take(np.flatnonzero(fold != part)), log.action_mask)
                self._fill(fitted, np.flatnonzero(fold == part), q, v)
        return self._mean(importance.doubly_robust(self.weights, log.losses, q, v), resamples)

    def _fill(self, model: ClassModel, episodes: Array, q: Array, v: Array) -> None:
        for k in np.unique(self.number[episodes]):
            mine = episodes[self.number[episodes] == k]
            found = model.evaluate(self.policies[k], self.contexts[k])
            states = self.log.states[mine, :-1]
            q[mine], v[mine] = found[0][states, self.log.actions[mine]], found[1][states]

    def tables_value(self, resamples: int) -> Found:
        """Direct method with frequencies, which are counted again in each resample."""
        size = max(self.log.layout.n_states, self.tables.n_rows, len(self.log))

        def statistic(counts: Array) -> Array:
            model = self.tables.model(counts)
            values = [model.evaluate(p, int(g), unseen=self.unseen)[1][:, 0] for p, g in zip(self.policies, self.group, strict=True)]
            return self._over_contexts(counts, np.array(values).T)

        replicates = self._bootstrap(statistic, resamples, size)
        return float(statistic(np.ones((1, len(self.log))))[0]), float(replicates.std(ddof=1)), replicates

    def class_value(self, classes: tuple[Any, Any], counts: tuple[int, int]) -> Found:
        """Direct method with the fits of function classes."""
        log = self.log
        model = model_of(*classes, log, log.action_mask)
        values = np.array([model.evaluate(p, c)[1][0] for p, c in zip(self.policies, self.contexts, strict=True)])
        value = float(self._over_contexts(np.ones((1, len(log))), values[None])[0])
        weights = self._counts(counts[1])
        again = resampled_values(classes, log, log.action_mask, weights, self.policies, self.contexts)
        error, replicates = self._spread(weights, again)
        return value, error, replicates

    def fitted_q(self, q_class: Any, count: int) -> Found:
        """Fitted Q evaluation."""
        source = TabularLossClass(per_context=True) if q_class is None else q_class

        def values(log: TrajectoryLog, number: Array) -> list[float]:
            return [float(v[0]) for v in fitted_q(source, log, self.policies, self.contexts, number, log.action_mask)[1]]

        everything = np.ones((1, len(self.log)))
        value = float(self._over_contexts(everything, np.array([values(self.log, self.number)]))[0])
        weights, again = self._counts(count), []
        for row in weights:
            at = np.repeat(np.arange(row.size), row.astype(np.int64))
            again.append(values(self.log.take(at), self.number[at]))
        error, replicates = self._spread(weights, np.array(again))
        return value, error, replicates

    # -- uncertainty ---------------------------------------------------------------------------------------------------

    def _over_contexts(self, counts: Array, values: Array) -> Array:
        """Mean of the values (B, contexts) over the episodes of each resample."""
        share = np.stack([np.bincount(self.number, weights=row, minlength=len(self.contexts)) for row in counts])
        return np.asarray((share * values).sum(axis=1) / counts.sum(axis=1))

    def _spread(self, weights: Array, values: Array) -> tuple[float, Array]:
        if len(weights) < 2:
            return math.nan, np.empty(0)
        replicates = self._over_contexts(weights, values)
        return float(replicates.std(ddof=1)), replicates

    def _mean(self, values: Array, resamples: int) -> Found:
        replicates = self._bootstrap(lambda counts: counts @ values / values.size, resamples, values.size)
        return float(values.mean()), _standard_error(values), replicates

    def _counts(self, resamples: int, first: int = 0) -> Array:
        """How often each episode occurs in each resample from `first` on, (B, n); the same for all estimators."""
        n = len(self.log)
        rng = np.random.default_rng((self.seed, first))
        drawn = rng.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
        return np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)

    def _bootstrap(self, statistic: Callable[[Array], Array], resamples: int, size: int) -> Array:
        step = max(1, min(resamples, BATCH // max(size, len(self.log))))
        if step < resamples:
            return np.concatenate([statistic(self._counts(min(step, resamples - first), first)) for first in range(0, resamples, step)])
        if self._drawn is None or len(self._drawn) != resamples:
            self._drawn = self._counts(resamples)
        return statistic(self._drawn)

    def notes(self, tolerance: float, weighted: bool) -> tuple[str, ...]:
        """Reasons not to trust the estimates."""
        found = []
        if self.left > tolerance:
            found.append(
                f"the log does not support this policy: with probability {self.left:.3g} an episode takes an action that was never logged "
                f"in its state, so the frequencies only say that the value is from {self.bounds[0]:.4f} to {self.bounds[1]:.4f}"
            )
        sizes = importance.effective_sample_size(self.weights)
        if weighted and sizes.min() < LEAST:
            h = int(sizes.argmin())
            found.append(
                f"the importance weights rest on few episodes: the effective sample size is {sizes[h]:.1f} of {len(self.log)} at step {h}"
            )
        return tuple(found)


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan


def _distinct(contexts: Any) -> tuple[list[Any], Array]:
    """The distinct contexts in order of first appearance, and for each episode the number of its context."""
    known: dict[Hashable, int] = {}
    listed: list[Any] = []
    number = np.empty(len(contexts), np.int64)
    for i, context in enumerate(contexts):
        key = context_key(context)
        if key not in known:
            known[key] = len(listed)
            listed.append(context)
        number[i] = known[key]
    return listed, number


def _groups(contexts: list[Any], episodes: int, groups: Any) -> Array:
    """The group number of each distinct context."""
    if groups is None:
        return np.arange(len(contexts)) if episodes >= 20 * len(contexts) else np.zeros(len(contexts), np.int64)
    if not callable(groups):
        raise OpoError(f"groups is a {type(groups).__name__}: a callable groups(context) is needed")
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(context_key(groups(context)), len(known)) for context in contexts])


def _policy(log: TrajectoryLog, source: Any, context: Any, name: str) -> Array:
    """A policy (n_states, A) at a context, checked."""
    if hasattr(source, "policy"):
        source = source.policy
    found = source(context) if callable(source) else source
    try:
        return as_policy(log.layout, log.action_mask, found)
    except OpoError as error:
        raise OpoError(f"{name} at context {shown(context)}: {error}") from None
