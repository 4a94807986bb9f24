"""How often the intervals of off-policy estimates contain the exact value.

python bench/interval_coverage.py [SEEDS] [EPISODES]    # defaults: 500 and 500
"""

from __future__ import annotations

import pathlib
import sys
import time
import warnings

import numpy as np
from scipy import stats

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "offline"))
from offline_worlds import WORLDS, World, finite_classes, world

from opo_fast.offline import evaluate_policy


def coverage(
    of_world: World, seeds: int, episodes: int, *, propensities: bool, classes: bool = False, **options: object
) -> dict[str, tuple[float, float, float]]:
    """For each estimator the share of seeds whose 95 % interval contains the exact value, the bias in standard errors, and the width."""
    held: dict[str, list[tuple[bool, float, float]]] = {}
    if classes:
        options.update(zip(("loss_class", "dynamics_class"), finite_classes(of_world), strict=True))
    for seed in range(seeds):
        log = of_world.draw(episodes, seed, propensities=propensities)
        found = evaluate_policy(log, lambda c: of_world.policy[c], seed=seed, **options)
        for name, e in found.estimates.items():
            held.setdefault(name, []).append((e.low <= of_world.value <= e.high, e.value - of_world.value, e.high - e.low))
    result = {}
    for name, rows in held.items():
        inside, miss, width = (np.array(column, float) for column in zip(*rows, strict=True))
        told = np.isfinite(miss)  # a log that does not support the policy counts as a miss
        result[name] = inside.mean(), miss[told].mean() / (miss[told].std(ddof=1) / np.sqrt(told.sum())), width[told].mean()
    return result


def main() -> None:
    seeds, episodes = (int(x) for x in (*sys.argv[1:], 500, 500)[:2] if x) if len(sys.argv) > 1 else (500, 500)
    low, high = stats.binom.ppf([0.005, 0.995], seeds, 0.95) / seeds
    print(f"{seeds} seeds of {episodes} episodes; 95 % intervals; a share from {low:.3f} to {high:.3f} is what chance allows")
    warnings.simplefilter("ignore")
    for name in WORLDS:
        for propensities in (True, False):
            began = time.perf_counter()
            found = coverage(world(name), seeds, episodes, propensities=propensities, estimators=["dm", "pdis", "snpdis", "dr"])
            told = ", ".join(f"{key} {share:.3f} (bias {bias:+.1f} s.e., width {width:.3f})" for key, (share, bias, width) in found.items())
            print(f"{name:8s} {'logged' if propensities else 'estimated':9s} {told}; {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
