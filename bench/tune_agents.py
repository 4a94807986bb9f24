"""Choose each agent's practical multipliers on one set of environments; `compare_agents.py` reports on another.

    python bench/tune_agents.py [EPISODES] [SEEDS] [AGENT ...]

Every agent has a grid of about the same size. The score of a setting is its regret divided by that of the uniform policy, averaged over
the environments: 1 is the uniform policy, 0 the optimum.
"""

from __future__ import annotations

import itertools
import sys
import warnings

import numpy as np

import opo_fast as of
from opo_fast import agents, envs

TUNING = {
    "random-finite": lambda: envs.make("random-finite", horizon=4, n_contexts=8, n_losses=20, n_dynamics=20, seed=101),
    "random-softmax": lambda: envs.make("random-softmax", horizon=6, n_losses=20, n_dynamics=20, seed=102),
    "combination-lock": lambda: envs.make("combination-lock", horizon=5, seed=103),
    "combination-lock, long": lambda: envs.make("combination-lock", horizon=8, n_actions=2, seed=104),
}
GRIDS = {
    "opo": {"bonus_scale": [1e-7, 5e-7, 2e-6, 1e-5], "eta_scale": [15.0, 50.0, 150.0]},
    "e-uc3rl": {"bonus_scale": [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1]},
    "rm-ucdd": {"bonus_scale": [1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0]},
    "lolipop": {"eta_scale": [1e2, 1e3, 1e4, 1e5], "trust_scale": [1e2, 1e3, 1e5]},
    "tabular-opo": {"bonus_scale": [3e-4, 1e-3, 3e-3, 1e-2], "eta_scale": [10.0, 30.0, 100.0]},
    "epsilon-greedy": {"scale": [0.01, 0.03, 0.1, 0.3, 1.0]},
    "opo-no-bonus": {"eta_scale": [5.0, 15.0, 50.0, 150.0, 500.0]},
}
BANDITS = {
    "linear": lambda: envs.make("random-linear", horizon=1, n_states=1, n_actions=5, n_losses=20, seed=105),
    "finite": lambda: envs.make("random-finite", horizon=1, n_states=1, n_actions=8, n_losses=40, seed=106),
    "wine": lambda: envs.make("bandit", data="wine"),
}
BANDIT_GRIDS = {
    "po-cmab": {"bonus_scale": [1e-7, 1e-6, 1e-5, 1e-4], "eta_scale": [15.0, 50.0, 150.0]},
    "uccb": {"bonus_scale": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]},
    "squarecb": {"eta_scale": [1.0, 3.0, 10.0, 30.0, 100.0]},
    "falcon": {"eta_scale": [10.0, 30.0, 100.0, 300.0, 1000.0]},
    "regcb": {"bonus_scale": [0.01, 0.03, 0.1, 0.3, 1.0]},
}


def score(name: str, env: object, setting: dict[str, float], episodes: int, seeds: int) -> float:
    shares = []
    for seed in range(1000, 1000 + seeds):
        run = of.simulate(env, agents.make(name, env, episodes=episodes, seed=seed, **setting), episodes, seed, progress=False)
        shares.append(run.regret.sum() / (run.uniform_value - run.optimal_value).sum())
    return float(np.mean(shares))


def tune(environments: dict, grids: dict, episodes: int, seeds: int, chosen: list[str]) -> None:
    made = {name: build() for name, build in environments.items()}
    for name, grid in grids.items():
        if chosen and name not in chosen:
            continue
        found = []
        for values in itertools.product(*grid.values()):
            setting = dict(zip(grid, values, strict=True))
            scores = [score(name, env, setting, episodes, seeds) for env in made.values()]
            found.append((float(np.mean(scores)), setting, scores))
        found.sort(key=lambda entry: entry[0])
        print(f"{name}: {', '.join(made)}")
        for mean, setting, scores in found:
            print(f"  {mean:.3f}  {setting}  {' '.join(f'{x:.3f}' for x in scores)}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    of.set_threads(1)
    numbers = [int(x) for x in sys.argv[1:3]]
    episodes, seeds = (numbers + [1000, 3][len(numbers) :])[:2]
    tune(TUNING, GRIDS, episodes, seeds, sys.argv[3:])
    tune(BANDITS, BANDIT_GRIDS, episodes, seeds, sys.argv[3:])
