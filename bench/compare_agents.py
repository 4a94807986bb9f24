"""The comparison tables and curves of docs/agents.md: all agents that fit, on every packaged environment with H > 1.

    python bench/compare_agents.py FOLDER [SEEDS] [ENVIRONMENT ...]

Finished runs are kept in FOLDER, so that an interrupted comparison can be continued. The other agents have the practical settings of
`opo_fast.agents`, which `tune_agents.py` chose on other environments; `opo` tunes itself, and "opo, by hand" has the factors that the
same search found for it. All agents see the same contexts and random numbers.
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
    "random-finite": (lambda: envs.make("random-finite", n_contexts=10, n_losses=20, n_dynamics=20, seed=7), 500),
    "combination-lock": (lambda: envs.make("combination-lock"), 300),
    "frozen-lake": (lambda: envs.make("frozen-lake"), 200),
    "cliff-walking": (lambda: envs.make("cliff-walking"), 200),
    "icu-reduced": (lambda: envs.make("icu-reduced"), 200),
    "random-linear": (lambda: envs.make("random-linear", seed=7), 200),
    "random-softmax": (lambda: envs.make("random-softmax", seed=7), 200),
    "resource-gathering": (lambda: envs.make("resource-gathering"), 60),
    "inventory": (lambda: envs.make("inventory"), 60),
    "queue-network": (lambda: envs.make("queue-network"), 60),
    "icu-sepsis": (lambda: envs.make("icu-sepsis"), 40),
    "icu-formulary": (lambda: envs.make("icu-formulary"), 20),
    "taxi": (lambda: envs.make("taxi"), 20),
    "icu-wards": (lambda: envs.make("icu-wards"), 10),
}
"""Environments and their numbers of episodes, fewer if an episode takes long."""
BY_HAND = "opo, by hand"
TUNED = {BY_HAND: {"bonus_scale": 2e-6, "eta_scale": 50.0}}


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


def contenders(cmdp: envs.Environment, episodes: int) -> dict[str, str]:
    """The name of each agent by its label."""
    return {label: label.split(",")[0] for name in fitting(cmdp, episodes) for label in ([name, BY_HAND] if name == "opo" else [name])}


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
    """One line per environment: the regret of each agent with its interval, with the least in bold."""
    lines = {name: {line.agent: line.regret for line in one.summary()} for name, one in found.items()}
    labels = [label for label in ("opo", BY_HAND, *agents.names()[1:]) if any(label in one for one in lines.values())]
    rows = [f"| environment | {' | '.join(f'`{label}`' for label in labels)} |", "|---" * (len(labels) + 1) + "|"]
    for name, one in lines.items():
        best = min(one.values()).mean
        cells = []
        for label in labels:
            if label not in one:
                cells.append("")
                continue
            mean, low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in one[label][:3])
            cells.append(f"**{mean}** [{low}, {high}]" if one[label].mean == best else f"{mean} [{low}, {high}]")
        seeds = next(iter(one.values())).seeds
        rows.append(f"| {name}, T = {ENVIRONMENTS[name][1]:,}, {seeds} seeds | {' | '.join(cells)} |")
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
        found = compare(cmdp, contenders(cmdp, episodes), episodes, seeds, options=TUNED, folder=folder / name)
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
