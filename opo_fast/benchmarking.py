"""Speed tests that compare a function with an alternative: both are timed in interleaved pairs, and the ratio is judged.

Absolute times depend on the machine and its load. Both sides of a pair run under the same conditions, so their ratio hardly depends on
them. Put ``pytest_plugins = ["opo_fast.benchmarking"]`` into ``conftest.py``; then::

    def test_evaluate_is_faster_than_numpy(guard):
        guard(lambda: of.evaluate(mdp, policy), lambda: numpy_evaluate(mdp, policy), most=0.5)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from ._support.checks import as_integer, as_number
from .errors import OpoError

__all__ = ["PairedRatio", "paired_ratio"]

BLOCK = 10
"""Pairs between two evaluations of the interval."""
ROUND = 2e-3
"""Each timing takes at least so many seconds; shorter calls are repeated."""


class PairedRatio(NamedTuple):
    """The time of a function divided by that of its alternative.

    Attributes
    ----------
    median, low, high : float
        The median ratio of the pairs, and a distribution-free confidence interval for it, from order statistics.
    pairs : int
    """

    median: float
    low: float
    high: float
    pairs: int


def paired_ratio(
    run: Callable[[], Any],
    alternative: Callable[[], Any],
    *,
    most: float | None = None,
    pairs: int = 60,
    level: float = 0.999,
) -> PairedRatio:
    """Time `run` and `alternative` in turn, in pairs whose order alternates.

    Parameters
    ----------
    run, alternative : callable
        Functions without arguments. Each is called once before it is timed, so that compilation does not count.
    most : float, optional
        Stop as soon as the interval lies on one side of this ratio.
    pairs : int
        The largest number of pairs, at least 10.
    level : float
        Confidence of the interval.
    """
    for name, function in (("run", run), ("alternative", alternative)):
        if not callable(function):
            raise OpoError(f"{name} is a {type(function).__name__}: pass a function without arguments")
    pairs = as_integer(pairs, "pairs", least=BLOCK)
    level = as_number(level, "level", least=0.0, most=1.0, strict=True)
    limit = None if most is None else as_number(most, "most", strict=True)
    calls = (_calls(run), _calls(alternative))
    ratios: list[float] = []
    while True:
        for _ in range(min(BLOCK, pairs - len(ratios))):
            first = len(ratios) % 2
            times = [0.0, 0.0]
            for side in (first, 1 - first):
                times[side] = _time((run, alternative)[side], calls[side])
            ratios.append(times[0] / times[1])
        found = _interval(np.sort(ratios), level)
        if len(ratios) >= pairs or (limit is not None and not found.low <= limit <= found.high):
            return found


def _calls(function: Callable[[], Any]) -> int:
    """How often to call a function in one timing."""
    function()
    once = min(_time(function, 1) for _ in range(3))
    return max(1, int(np.ceil(ROUND / max(once, 1e-7))))


def _time(function: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls


def _interval(ratios: npt.NDArray[np.float64], level: float) -> PairedRatio:
    """The median of sorted ratios, and the order statistics that enclose the true median with probability `level`."""
    n = ratios.size
    below = int(binom.ppf((1 - level) / 2, n, 0.5))
    lowest = max(0, below - 1)
    return PairedRatio(float(np.median(ratios)), float(ratios[lowest]), float(ratios[n - 1 - lowest]), n)


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def guard() -> Callable[..., PairedRatio]:
        """Fail if ``run`` takes more than ``most`` times as long as ``alternative``: ``guard(run, alternative, most=1.1)``.

        It only fails if the whole interval of the ratio lies above ``most``, so that noise alone does not make it fail.
        """

        def judge(run: Callable[[], Any], alternative: Callable[[], Any], *, most: float, pairs: int = 200) -> PairedRatio:
            found = paired_ratio(run, alternative, most=most, pairs=pairs)
            if found.low > most:
                pytest.fail(
                    f"takes {found.median:.3g} times as long as its alternative ({found.low:.3g} to {found.high:.3g} in {found.pairs} "
                    f"pairs); at most {most:g} times was allowed",
                    pytrace=False,
                )
            return found

        return judge
