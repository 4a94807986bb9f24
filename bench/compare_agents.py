"""The comparison table and curves of the README: all agents on environments that none was tuned on, on common random numbers.

    python bench/compare_agents.py FOLDER [SEEDS] [ENVIRONMENT ...]

Finished runs are kept in FOLDER, so that an interrupted comparison goes on where it stopped. Multipliers are the practical
settings of `opo_fast.agents`, chosen by `tune_agents.py` on other environments.
"""

from __future__ import annotations

import math
import pathlib
import sys
import warnings

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.errors import OpoError
from opo_fast.runs.compare import Comparison, compare

ENVIRONMENTS = {
    "random": (lambda: envs.make("random-finite", n_contexts=10, n_losses=20, n_dynamics=20, seed=7), 2000),
    "combination-lock": (lambda: envs.make("combination-lock"), 2000),
    "frozen-lake": (lambda: envs.make("frozen-lake"), 1000),
    "icu-reduced": (lambda: envs.make("icu-reduced"), 1000),
    "icu-sepsis": (lambda: envs.make("icu-sepsis"), 150),
    "trial": (lambda: envs.make("trial"), 2000),
    "linear-bandit": (lambda: envs.make("random-linear", horizon=1, n_states=1, n_actions=5, n_contexts=20, n_losses=40, seed=8), 2000),
}
"""Environment and episodes."""
TUNED = {"opo": {"bonus_scale": 2e-6, "eta_scale": 15.0}}
"""What `tune_agents.py` found best; the other agents' practical settings are that already."""


def fitting(cmdp: envs.Environment, episodes: int) -> list[str]:
    names = []
    for name in agents.names(cmdp.layout):
        try:
            agents.make(name, cmdp, episodes=episodes)
        except OpoError as error:
            print(f"  without {name}: {error}")
        else:
            names.append(name)
    return [name for name in names if name != "optimum"]


def markdown(found: Comparison, episodes: int, seeds: int) -> str:
    lines = [
        f"**{found.environment}**, T = {episodes:,}, {seeds} seeds",
        "",
        "| agent | regret | growth T^b | gap closed at the end | plans | ms per episode |",
        "|---|---|---|---|---|---|",
    ]
    for line in found.summary():
        growth = line.exponent
        exponent = "" if math.isnan(growth.mean) else f"{growth.mean:z.2f} [{growth.low:z.2f}, {growth.high:z.2f}]"
        regret, spent = line.regret, line.milliseconds
        lines.append(
            f"| {line.agent} | {regret.mean:.1f} [{regret.low:.1f}, {regret.high:.1f}] | {exponent} | {line.gap_closed.mean:.0%} "
            f"| {line.planning_calls:,.0f} | {spent.mean:.2f} [{spent.low:.2f}, {spent.high:.2f}] |"
        )
    return "\n".join(lines)


def overview(found: dict[str, Comparison]) -> str:
    """All environments in one table: regret with its interval, and the agent's time per episode."""
    lines = {name: {line.agent: line for line in one.summary()} for name, one in found.items()}
    heads = [f"{name} (T = {ENVIRONMENTS[name][1]:,})" for name in found]
    rows = [f"| agent | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for agent in agents.names():
        if not any(agent in one for one in lines.values()):
            continue
        cells = []
        for one in lines.values():
            if agent not in one:
                cells.append("too large")
                continue
            line = one[agent]
            mean, low, high = (f"{x:.0f}" if x >= 100 else f"{x:.1f}" for x in line.regret[:3])
            best = "**" if line is next(iter(one.values())) else ""
            cells.append(f"{best}{mean}{best} [{low}, {high}]; {line.milliseconds.mean:.2f} ms")
        rows.append(f"| `{agent}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    warnings.simplefilter("ignore")
    of.set_threads(1)
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "runs/comparison")
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    everything = {}
    for name in sys.argv[3:] or ENVIRONMENTS:
        build, episodes = ENVIRONMENTS[name]
        cmdp = build()
        found = compare(cmdp, fitting(cmdp, episodes), episodes, seeds, options=TUNED, folder=folder / name)
        found.plot(folder / f"{name}.png")
        text = markdown(found, episodes, seeds)
        (folder / f"{name}.md").write_text(text + "\n")
        print(text + "\n", flush=True)
        if found.interrupted:
            return
        everything[name] = found
    print(overview(everything))


if __name__ == "__main__":
    main()
