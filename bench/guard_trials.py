"""How often the guard of `opo_fast.benchmarking` raises false alarms, and what it misses, while other processes keep the machine busy.

python bench/guard_trials.py [TRIALS] [BUSY PROCESSES]
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import time
from collections.abc import Callable

import numpy as np
from problems import csr_mdp, dense_mdp

import opo_fast as of
from opo_fast.benchmarking import paired_ratio

MOST, PAIRS = 1.1, 200
"""The ratio that a test allows, and the number of pairs of the fixture `guard`."""
CALLS = 4
"""Calls of the function in one run; one call more makes a run slower by a quarter."""


def busy() -> None:
    rng = np.random.default_rng()
    while True:
        a = rng.random((rng.integers(20, 600), 300))
        (a.T @ a).sum()
        if rng.random() < 0.1:
            time.sleep(rng.random() / 5)


def problems() -> list[tuple[str, Callable[[], object]]]:
    small, dense, sparse = dense_mdp([1] + [20] * 19, 4), dense_mdp([1] + [100] * 49, 10), csr_mdp([1] + [200] * 99, 4, 8)
    return [
        (name, functools.partial(of.evaluate, mdp, mdp.uniform_policy()))
        for name, mdp in (("small", small), ("dense", dense), ("CSR", sparse))
    ]


def runs(function: Callable[[], object], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            function()

    return run


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    others = [multiprocessing.Process(target=busy, daemon=True) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 2)]
    cases = problems()
    for other in others:
        other.start()
    print(f"{trials} trials of each kind beside {len(others)} busy processes; alarm: the whole interval is above {MOST}")
    for kind, calls in (("clean", CALLS), ("slower by 1.25", CALLS + 1)):
        alarms, taken, ratios = 0, [], []
        for i in range(trials):
            name, function = cases[i % len(cases)]
            began = time.perf_counter()
            found = paired_ratio(runs(function, calls), runs(function, CALLS), most=MOST, pairs=PAIRS)
            taken.append(time.perf_counter() - began)
            ratios.append(found.median)
            alarms += found.low > MOST
            print(f"  {kind}, {name}: {found.median:.3f} ({found.low:.3f} to {found.high:.3f}) in {found.pairs} pairs, {taken[-1]:.1f} s")
        print(
            f"{kind}: {alarms} alarms in {trials} trials; medians {min(ratios):.3f} to {max(ratios):.3f}, {np.median(taken):.1f} s a trial"
        )
    for other in others:
        other.terminate()


if __name__ == "__main__":
    main()
