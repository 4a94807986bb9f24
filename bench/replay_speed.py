"""Time of a chain step under the rules of OPO, E-UC3RL and RM-UCDD on the same models, which shows the cost of the sums of visits.

python bench/replay_speed.py
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np

import opo_fast as of
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import ChainRule

SHAPES = [(4, 3, 3, 20_000), (10, 5, 3, 20_000), (6, 20, 4, 4_000), (20, 20, 4, 2_000), (50, 50, 5, 60)]
"""Horizon, states per layer, actions, steps."""
REPEATS = 7


class Source:
    """Fits are positions in lists of models, the same at every context."""

    def __init__(self, models: list[of.LayeredMDP]) -> None:
        self.models = models

    def losses(self, fit: int, context: int) -> np.ndarray:
        return self.models[fit].row_losses

    def transitions(self, fit: int, context: int) -> of.Transitions:
        return self.models[fit].transitions


def rules(horizon: int) -> dict[str, ChainRule]:
    half = np.full(horizon, 0.3)
    return {
        "OPO": ChainRule(1.0, 2 * half, 2.0 * horizon, "latest", greedy=False, eta=0.05),
        "E-UC3RL": ChainRule(1.0, 2 * half, 2.0 * horizon, "contemporaneous", greedy=True),
        "RM-UCDD": ChainRule(1.0, 2 * half, 2.0 * horizon, "actions", greedy=True),
    }


def model(rng: np.random.Generator, horizon: int, size: int, n_actions: int) -> of.LayeredMDP:
    sizes = [1] + [size] * (horizon - 1)
    arrays = [rng.dirichlet(np.ones(m), size=(n, n_actions)) for n, m in pairwise(sizes)]
    layout = of.Layout(sizes, n_actions)
    return of.LayeredMDP(layout, rng.random(layout.shape), arrays)


def seconds_per_step(models: list[of.LayeredMDP], rule: ChainRule, steps: int) -> float:
    """Seconds per step at one context; if the layout is packed, eight contexts run in one pack."""
    history, rng = History(), np.random.default_rng(1)
    fits = np.sort(rng.integers(len(models), size=steps)).tolist()
    for fit in fits:
        history.append(Fits(fit, fit))
    engine = ChainEngine(models[0].layout, None, rule, Source(models), 1 << 30)
    contexts = list(range(8 if engine.packed else 1))
    engine.prefetch(contexts, history, 1)
    began = time.perf_counter()
    for chain in {id(chain): chain for chain, _ in engine._chains.values()}.values():
        chain.advance(history, steps)
    return (time.perf_counter() - began) / (steps - 1) / len(contexts)


def main() -> None:
    of.set_threads(1)
    rng = np.random.default_rng(0)
    print("microseconds of a step at one context, one thread, three fits in turn; ratio to OPO")
    print(f"{'H/S/A':>12s}" + "".join(f"{name:>20s}" for name in rules(2)))
    for horizon, size, n_actions, steps in SHAPES:
        models = [model(rng, horizon, size, n_actions) for _ in range(3)]
        # Rules alternate, and the minimum of each is taken, since other load on the machine only adds to a time.
        found = {name: [] for name in rules(horizon)}
        for _ in range(REPEATS):
            for name, rule in rules(horizon).items():
                found[name].append(seconds_per_step(models, rule, steps))
        best = {name: min(times) for name, times in found.items()}
        cells = "".join(f"{1e6 * t:12.3f} ({t / best['OPO']:4.2f}x)" for t in best.values())
        print(f"{f'{horizon}/{size}/{n_actions}':>12s}{cells}")


if __name__ == "__main__":
    main()
