"""Time per episode (observe and fit) of every oracle after 100 and after 10,000 episodes.

python -m pytest bench/bench_oracles.py    # with pytest-benchmark
python bench/bench_oracles.py              # the ratios, from interleaved measurements, so that other load affects both alike
"""

from __future__ import annotations

import copy
import statistics
import time

import numpy as np
import pytest

import opo_fast as of
from opo_fast.oracles import (
    DisjointLinearLossClass,
    LinearLossClass,
    MixtureDynamicsClass,
    SoftmaxDynamicsClass,
    TabularDynamicsClass,
    TabularLossClass,
    TrajectoryLog,
)

LAYOUT = of.Layout([1, 10, 10, 10], 3)
RNG = np.random.default_rng(0)
N_CONTEXTS, SHORT, LONG, BLOCK = 8, 100, 10_000, 50


def blocks() -> list[np.ndarray]:
    return [RNG.dirichlet(np.ones(10), size=(n, 3)) for n in LAYOUT.layer_sizes[:-1]]


TABLE = RNG.random((N_CONTEXTS, *LAYOUT.shape, 8))
BASES = [blocks() for _ in range(4)]
PSI = [RNG.normal(size=(*block.shape, 4)) for block in BASES[0]]
LOSSES = RNG.random((10, *LAYOUT.shape))

CLASSES = {
    "finite losses": lambda: of.FiniteLossClass([lambda c, x=x: x for x in LOSSES]),
    "finite dynamics": lambda: of.FiniteDynamicsClass([lambda c, x=x: x for x in BASES]),
    "linear losses": lambda: LinearLossClass(lambda c: TABLE[c], 8),
    "disjoint linear losses": lambda: DisjointLinearLossClass(lambda c: TABLE[c, 0, 0], 8),
    "tabular losses": lambda: TabularLossClass(per_context=True),
    "tabular dynamics": lambda: TabularDynamicsClass(per_context=True),
    "softmax dynamics": lambda: SoftmaxDynamicsClass(lambda c: [psi * (1 + c) / 8 for psi in PSI], 4),
    "mixture dynamics": lambda: MixtureDynamicsClass(BASES, N_CONTEXTS),
}
PROMISED = [name for name in CLASSES if not name.startswith(("softmax", "mixture"))]
"""Oracles whose cost must not grow; that of the others grows with the number of distinct rows in the data."""


def log(n: int) -> TrajectoryLog:
    cmdp = of.FiniteContexts([of.LayeredMDP(LAYOUT, LOSSES[c], BASES[c % 4]) for c in range(N_CONTEXTS)])
    return TrajectoryLog.collect(cmdp, n)


def prepared(name: str, episodes: int, trajectories: list[of.Trajectory]):
    """An oracle that has observed so many episodes, with a fit after each."""
    oracle = CLASSES[name]().oracle(LAYOUT, None)
    for trajectory in trajectories[:episodes]:
        oracle.observe(trajectory)
        oracle.fit()
    return oracle


def block(oracle, trajectories: list[of.Trajectory]) -> None:
    for trajectory in trajectories:
        oracle.observe(trajectory)
        oracle.fit()


@pytest.fixture(scope="module")
def trajectories() -> list[of.Trajectory]:
    return list(log(LONG + BLOCK))


@pytest.mark.parametrize("episodes", [SHORT, LONG])
@pytest.mark.parametrize("name", PROMISED)
def test_episode(benchmark, name, episodes, trajectories):
    oracle = prepared(name, episodes, trajectories)
    benchmark.group = f"one episode of {name}"
    benchmark.extra_info.update(per=BLOCK, episodes=episodes)
    benchmark.pedantic(block, setup=lambda: ((copy.deepcopy(oracle), trajectories[-BLOCK:]), {}), rounds=10, warmup_rounds=1)


def main() -> None:
    trajectories = list(log(LONG + 20 * BLOCK))
    for name in CLASSES:
        promised = name in PROMISED
        long = LONG if promised else 1000
        pair = [prepared(name, episodes, trajectories) for episodes in (SHORT, long)]
        # Each block starts from a copy, so that all of its episodes are timed near the same number of past episodes.
        times: list[list[float]] = [[], []]
        for turn in range(20):
            part = trajectories[long + turn * BLOCK : long + (turn + 1) * BLOCK]
            for i, oracle in enumerate(pair):
                fresh = copy.deepcopy(oracle)
                began = time.perf_counter()
                block(fresh, part)
                times[i].append((time.perf_counter() - began) / BLOCK)
        short, late = (statistics.median(x) for x in times)
        best = [min(x) for x in times]
        print(
            f"{name:24} after {SHORT}: {short * 1e6:7.1f} us   after {long}: {late * 1e6:7.1f} us   "
            f"ratio of medians {late / short:5.2f}, of minima {best[1] / best[0]:5.2f}"
        )


if __name__ == "__main__":
    main()
