"""Importance-sampling estimators on plain arrays: one value for each episode, whose mean is the estimate.

There are n episodes of H steps. Weights are cumulative, w_h = prod_{k <= h} pi(a_k | s_k) / b(a_k | s_k), where pi is the policy to
evaluate and b is the behavior policy. The names are those of OBP and SCOPE-RL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["doubly_robust", "effective_sample_size", "influence_of_snpdis", "pdis", "snpdis", "step_weights"]

Array = npt.NDArray[Any]


def step_weights(chosen: Array, propensities: Array) -> Array:
    """Cumulative weights (n, H) from the probabilities (n, H) of the logged actions under the policy and in the log."""
    return np.asarray(np.cumprod(chosen / propensities, axis=1))


def pdis(weights: Array, losses: Array) -> Array:
    """Per-decision importance sampling: sum_h w_h l_h (D. Precup, R. Sutton and S. Singh, ICML 2000), (n,). Unbiased."""
    return np.asarray((weights * losses).sum(axis=1))


def snpdis(weights: Array, losses: Array) -> Array:
    """Self-normalised (weighted) per-decision importance sampling: the weights of each step are divided by their mean, (n,)."""
    return pdis(weights / _means(weights), losses)


def influence_of_snpdis(weights: Array, losses: Array) -> Array:
    """Influence of each episode on the self-normalised estimate, (n,), for its standard error by the delta method. The mean is 0."""
    normal = weights / _means(weights)
    ratios = (normal * losses).mean(axis=0)
    return np.asarray((normal * (losses - ratios)).sum(axis=1))


def doubly_robust(weights: Array, losses: Array, q: Array, v: Array) -> Array:
    """sum_h w_h (l_h - Q_h(s_h, a_h)) + w_{h-1} V_h(s_h) (N. Jiang and L. Li, ICML 2016), (n,).

    Parameters
    ----------
    weights, losses : ndarray, shape (n, H)
    q, v : ndarray, shape (n, H)
        Estimates of the policy's Q at the logged state-action pairs and of its V at the logged states. The result is unbiased for any
        estimates that do not depend on the episode itself.
    """
    before = np.concatenate([np.ones((len(weights), 1)), weights[:, :-1]], axis=1)
    return np.asarray((weights * (losses - q) + before * v).sum(axis=1))


def effective_sample_size(weights: Array) -> Array:
    """(sum w)^2 / sum w^2 at each step, (H,): the number of equally weighted episodes that say as much (L. Kish, 1965)."""
    squares = np.square(weights).sum(axis=0)
    return np.asarray(np.square(weights.sum(axis=0)) / np.where(squares > 0, squares, 1.0))


def _means(weights: Array) -> Array:
    means = weights.mean(axis=0)
    return np.where(means > 0, means, 1.0)
