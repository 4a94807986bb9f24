"""How often each agent's value estimate lies below the true optimum, with the theory's constants and with fractions of them.

    python bench/optimism.py [SEEDS] [EPISODES]

A run counts as optimistic if the estimate is at most the optimum at every episode's context; the theory guarantees that for a share of
1 - delta = 0.95 of the runs. At the theory's constants most bonuses are saturated and the estimate is 0, so the guarantee holds but says
little; smaller factors show where it fails. Policy optimization (opo, tabular-opo, po-cmab) estimates the value of the policy that it
evaluates, not of the best one, so the estimate lies above the optimum wherever the bonus is smaller than that policy's regret.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.runs.simulation import Simulation

FACTORS = (1.0, 1e-2, 1e-4, 1e-6, 0.0)


def environment(seed: int, *, bandit: bool) -> envs.Environment:
    size = {"horizon": 1, "n_states": 1, "n_actions": 5} if bandit else {"horizon": 3, "n_states": 3, "n_actions": 2}
    return envs.random_finite(n_contexts=3, n_losses=10, n_dynamics=10, seed=seed, **size)


def run(name: str, factor: float, seed: int, episodes: int, *, bandit: bool) -> tuple[bool, float, float]:
    """Whether all estimates were optimistic, the mean of estimate / optimum, and the mean saturation."""
    env = environment(seed, bandit=bandit)
    agent = agents.make(name, env, episodes=episodes, bonus_scale=factor, eta_scale=1.0)
    simulation = Simulation(env, agent, episodes, seed)
    optima = {context: of.solve(env.mdp(context)).v[0] for context in env.contexts}
    kept, ratios = True, []
    for t in range(episodes):
        context = simulation.context(t)
        estimate = agent.value(context)
        kept &= estimate <= optima[context] + 1e-12
        ratios.append(estimate / optima[context])
        simulation.step()
    saturation = simulation.columns["saturation"]
    return kept, float(np.mean(ratios)), float(np.nanmean(saturation)) if not np.isnan(saturation).all() else float("nan")


def main() -> None:
    warnings.simplefilter("ignore")
    of.set_threads(1)
    numbers = [int(x) for x in sys.argv[1:3]]
    seeds, episodes = (numbers + [200, 150][len(numbers) :])[:2]
    print(
        f"{seeds} seeds (an environment each), {episodes} episodes; share of runs that are optimistic throughout (mean estimate / optimum)"
    )
    print(f"{'agent':>14s}" + "".join(f"{f'factor {factor:g}':>18s}" for factor in FACTORS))
    for name, bandit in [("opo", False), ("e-uc3rl", False), ("rm-ucdd", False), ("tabular-opo", False), ("po-cmab", True),
                         ("uccb", True), ("regcb", True)]:  # fmt: skip
        cells = []
        for factor in FACTORS:
            found = [run(name, factor, seed, episodes, bandit=bandit) for seed in range(seeds)]
            cells.append(f"{np.mean([kept for kept, *_ in found]):10.3f} ({np.mean([r for _, r, _ in found]):.3f})")
        print(f"{name:>14s}" + "".join(f"{cell:>18s}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
