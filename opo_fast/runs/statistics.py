"""Statistics over seeds: bootstrap intervals and bands, growth exponents."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "band", "estimate", "growth_exponent"]

Array = npt.NDArray[Any]
RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over seeds with its bootstrap confidence interval, which is NaN for fewer than two seeds."""

    mean: float
    low: float
    high: float
    seeds: int


def estimate(values: Sequence[float] | Array, *, level: float = LEVEL) -> Estimate:
    """Mean with a bias-corrected and accelerated bootstrap interval. The resamples are fixed, so equal values give equal bits.

    Values that are not finite are left out.
    """
    data = np.asarray(values, np.float64)
    data = data[np.isfinite(data)]
    if data.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(data.mean())
    if data.size < 2:
        return Estimate(mean, math.nan, math.nan, 1)
    low, high = _interval(data[:, None], level, "BCa")
    return Estimate(mean, float(low[0]), float(high[0]), data.size)


def band(curves: Array, *, level: float = LEVEL) -> tuple[Array, Array, Array]:
    """Mean and pointwise percentile bootstrap band of curves (runs, points)."""
    curves = np.asarray(curves, np.float64)
    mean = curves.mean(axis=0)
    if len(curves) < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    low, high = _interval(curves, level, "percentile")
    return mean, low, high


def _interval(data: Array, level: float, method: str) -> tuple[Array, Array]:
    """Bootstrap interval of the mean of each column; if all values of a column are equal, both ends are that value."""
    from scipy import stats

    low, high = data.mean(axis=0), data.mean(axis=0)
    varied = np.ptp(data, axis=0) > 0
    if varied.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap(
                (data[:, varied],),
                np.mean,
                axis=0,
                n_resamples=RESAMPLES,
                batch=max(1, 10_000_000 // data.size),
                confidence_level=level,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        low[varied], high[varied] = found.low, found.high
    return low, high


def growth_exponent(episodes: Array, regret: Array, *, start: float = 0.1) -> float:
    """b of the least-squares fit log R(t) = a + b log t over the episodes from `start` T on; NaN if R is not positive there.

    1 is linear growth, 1/2 is the theory's rate. The fit uses points that are evenly spaced in log t, so that the many late episodes do
    not outweigh the rest.
    """
    episodes, regret = np.asarray(episodes, np.float64), np.asarray(regret, np.float64)
    if episodes.size < 3:
        return math.nan
    first = max(start * episodes[-1], episodes[0])
    at = np.unique(np.searchsorted(episodes, np.geomspace(first, episodes[-1], 50)).clip(0, episodes.size - 1))
    if at.size < 3 or not (regret[at] > 0).all():
        return math.nan
    return float(np.polyfit(np.log(episodes[at]), np.log(regret[at]), 1)[0])
