"""Self-tuning OPO compared with OPO with factors chosen by hand, a greedy planner and E-UC3RL, and whether its guarantees hold.

    python bench/self_tuning.py FOLDER PART [SEEDS]       # measure; finished runs are kept in FOLDER/PART.jsonl and not run again
    python bench/self_tuning.py FOLDER report [PART ...]  # tables of the results

Parts: worlds (finite classes), icu (2,000 episodes on the full ICU model), grid (parametric classes, compared with an 8 x 8 grid of
factors), outside (the truth is left out of both classes), coverage (whether the truth stays plausible), certificate (regret of the chains
in every state against AdaHedge's bound).
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from self_tuning_worlds import FINITE, PARAMETRIC, tabular

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.runs.simulation import Simulation

Entry = dict[str, Any]
Job = tuple[str, Callable[[], Entry]]
BONUSES = [10.0**k for k in range(-9, -1)]
RATES = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]
DELTA = 0.05
LONGER = {"frozen-lake H20": 8, "icu-reduced": 8}
"""Multiples of the number of episodes in the part "outside", for worlds in which learning takes longer."""
OTHERS = ("by hand", "by hand, own factor", "greedy", "e-uc3rl")


def played(env: Any, agent: Any, episodes: int, seed: int) -> Entry:
    run = of.simulate(env, agent, episodes, seed, progress=False)
    gap, tenth = run.uniform_value - run.optimal_value, slice(-max(1, episodes // 10), None)
    return {
        "regret": run.regret.sum(),
        "uniform": gap.sum(),
        "tenths": [part.mean() for part in np.array_split(run.regret, 10)],
        "gap_closed": run.gap_closed(tenth),
    }


def by_name(env: Any, agent: str, episodes: int, seed: int, factors: tuple[float, float] = (2e-6, 50.0)) -> Entry:
    if agent.startswith("by hand"):
        made = agents.make("opo", env, episodes=episodes, bonus_scale=factors[0], eta_scale=factors[1])
    else:
        made = agents.make(agent, env, episodes=episodes)
    return played(env, made, episodes, seed)


def worlds(seeds: int, others: int = 4) -> Iterator[Job]:
    """Self-tuning OPO on all seeds, the other agents on the first few."""
    for seed in range(seeds):
        for world, (make, episodes, own) in FINITE.items():
            for agent in ("opo", *OTHERS) if seed < others else ("opo",):
                factors = (own if agent.endswith("own factor") else 2e-6, 50.0)
                yield (
                    f"{world}|{agent}|{seed}",
                    lambda m=make, a=agent, t=episodes, s=seed, f=factors: by_name(m(s), a, t, s, f),
                )


def icu(seeds: int) -> Iterator[Job]:
    for seed in range(seeds):
        for agent in ("opo", "by hand", "greedy", "e-uc3rl"):
            yield f"icu-sepsis|{agent}|{seed}", lambda a=agent, s=seed: by_name(envs.make("icu-sepsis"), a, 2000, s)


def grid(seeds: int, episodes: int = 1000) -> Iterator[Job]:
    def run(world: str, seed: int, factors: dict[str, float] | None) -> Entry:
        made = PARAMETRIC[world](seed)
        options = {} if factors is None else {"episodes": episodes, **factors}
        return played(made.environment(), of.OPO(made.layout, made.loss_class, made.dynamics_class, **options), episodes, seed)

    def planner(world: str, seed: int) -> Entry:
        made = PARAMETRIC[world](seed)
        return played(made.environment(), agents.Greedy(made.layout, made.loss_class, made.dynamics_class), episodes, seed)

    for seed in range(seeds):
        for world in PARAMETRIC:
            yield f"{world}|auto|{seed}", lambda w=world, s=seed: run(w, s, None)
            yield f"{world}|greedy|{seed}", lambda w=world, s=seed: planner(w, s)
        # Every second factor and the largest rates come first, so that an interrupted run has the most useful part of the grid.
        settings = sorted(((i, j) for i in range(8) for j in range(8)), key=lambda at: (at[0] % 2 + (at[1] + 1) % 2, -at[1], at[0]))
        for i, j in settings:
            for world in PARAMETRIC:
                f = {"bonus_scale": BONUSES[i], "eta_scale": RATES[j]}
                yield f"{world}|{BONUSES[i]:g}, {RATES[j]:g}|{seed}", lambda w=world, s=seed, f=f: run(w, s, f)


def outside(seeds: int) -> Iterator[Job]:
    def run(world: str, agent: str, seed: int) -> Entry:
        make, episodes, _ = FINITE[world]
        env = make(seed)
        losses = [model for i, model in enumerate(env.loss_models) if i != env.true_loss]
        dynamics = [model for i, model in enumerate(env.dynamics_models) if i != env.true_dynamics]
        # A candidate that excludes observed transitions could leave a class without any fit, which is an error.
        dynamics = [model for model in dynamics if not _excludes(env, model)] or list(env.dynamics_models)
        classes = of.FiniteLossClass(losses), of.FiniteDynamicsClass(dynamics)
        made = {"opo": of.OPO, "greedy": agents.Greedy}[agent](env.layout, *classes, action_mask=env.action_mask)
        return played(env, made, LONGER.get(world, 2) * episodes, seed)

    for seed in range(seeds):
        for world in list(FINITE)[:10]:
            for agent in ("opo", "greedy"):
                yield f"{world}|{agent}|{seed}", lambda w=world, a=agent, s=seed: run(w, a, s)


def _excludes(env: Any, model: Callable[[Any], Any]) -> bool:
    """Whether a candidate gives probability 0 to a transition that the truth allows."""
    truth = env.dynamics_models[env.true_dynamics]

    def pairs() -> Iterator[tuple[Any, Any]]:
        for context in env.contexts:
            blocks = of.Transitions(env.layout, model(context)) if isinstance(model(context), list) else model(context)
            yield from zip(truth(context).arrays(), blocks.arrays(), strict=True)

    return any(bool(((real > 0) > (said > 0)).sum()) for real, said in pairs())


# -- promises -------------------------------------------------------------------------------------------------------------


def coverage(runs: int) -> Iterator[Job]:
    """Whether the truth left a plausible set at any time of a run of OPO, which chooses the data."""
    for seed in range(runs):
        yield f"finite|opo|{seed}", lambda s=seed: _finite_coverage(s)
        yield f"parametric|opo|{seed}", lambda s=seed: _parametric_coverage(s)


def _finite_coverage(seed: int, episodes: int = 150) -> Entry:
    env = envs.random_finite(horizon=3, n_states=3, n_actions=2, n_contexts=3, n_losses=20, n_dynamics=20, seed=seed)
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, delta=DELTA)
    of.simulate(env, agent, episodes, seed, progress=False)
    # The sets are nested, so a candidate in the last set was in all of them.
    last = agent.loss_oracle._set.members, agent.dynamics_oracle._set.members
    return {"losses": env.true_loss not in last[0], "dynamics": env.true_dynamics not in last[1]}


def _parametric_coverage(seed: int, episodes: int = 60) -> Entry:
    world = tabular(3, seed)
    env = world.environment()
    agent = of.OPO(world.layout, world.loss_class, world.dynamics_class, delta=DELTA)
    run = Simulation(env, agent, episodes, seed)
    truth = np.concatenate([rows.reshape(-1, rows.shape[-1]) for rows in world.dynamics(None)])
    losses = dynamics = False
    for _ in range(episodes):
        run.step()
        fit, version = agent.dynamics_oracle.plausible()
        rows = np.concatenate([rows.reshape(-1, rows.shape[-1]) for rows in agent.dynamics_oracle.transitions(fit, None)])
        far = 0.5 * np.abs(rows - truth).sum(axis=1)
        radius = agent.dynamics_oracle.radius(version, None).ravel()[: far.size]
        dynamics |= bool((far > radius + 1e-12).any())
        oracle = agent.loss_oracle
        oracle.plausible()
        # The matrix of the newest data, since sets with an older one are larger.
        ball, square = oracle._balls[-1], oracle._regular.reshape(world.d + 1, -1)[:-1, :-1]
        losses |= bool(np.linalg.norm(square @ (world.theta - ball[:-1])) > ball[-1])
    return {"losses": losses, "dynamics": dynamics}


def certificate(seeds: int) -> Iterator[Job]:
    for seed in range(seeds):
        for world in FINITE:
            yield f"{world}|opo|{seed}", lambda w=world, s=seed: _certificate(w, s)


def _certificate(world: str, seed: int, episodes: int = 150) -> Entry:
    """Regret of the chains in every state and context, and 2 Delta, read from the engine step by step."""
    env = FINITE[world][0](seed)
    agent = agents.make("opo", env, episodes=episodes)
    of.simulate(env, agent, episodes, seed, progress=False)
    engine = ChainEngine(agent.layout, agent.action_mask, agent.rule, agent.engine.source, agent.engine.memory)
    largest, states, violated = 0.0, 0, 0
    for context in env.contexts:
        chain, lane = engine.chain(context, agent.history, 0)
        policy, before = chain.policy(lane).copy(), np.zeros(engine.n_rows)
        lost = np.zeros(env.layout.n_states)
        for k in range(1, agent.steps + 1):
            chain, lane = engine.chain(context, agent.history, k)
            # The sums of Q are relative to their minimum, so differences are Q up to a constant, on which the regret does not depend.
            after = chain.sum_q[lane :: chain.lanes].copy()
            lost += np.add.reduceat(policy * (after - before), engine.rows[:-1])
            policy, before = chain.policy(lane).copy(), after
        regret = lost - np.minimum.reduceat(before, engine.rows[:-1])
        bound = 2 * chain.hedge.gap[lane : chain.hedge.size : chain.lanes]
        states += regret.size
        violated += int((regret > bound * (1 + 1e-9) + 1e-9).sum())
        largest = max(largest, float((regret / bound).max()))
    return {"states": states, "violated": violated, "largest": largest}


# -- reports of the results ----------------------------------------------------------------------------------------------------


def read(file: pathlib.Path) -> dict[str, Entry]:
    found = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        entry = json.loads(line)
        found[entry.pop("key")] = entry
    return found


def by_world(found: dict[str, Entry]) -> dict[str, dict[str, list[Entry]]]:
    table: dict[str, dict[str, list[Entry]]] = {}
    for key, entry in found.items():
        world, agent, _ = key.split("|")
        table.setdefault(world, {}).setdefault(agent, []).append(entry)
    return table


def mean(entries: list[Entry], name: str) -> float:
    return float(np.mean([entry[name] for entry in entries]))


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 1 else f"{x:.2f}"


def report_worlds(found: dict[str, Entry]) -> None:
    table = by_world(found)
    names = list(next(iter(table.values())))
    print(f"| world | seeds of opo | uniform | {' | '.join(names)} | share of uniform's, opo | {' | '.join(names[1:])} |")
    print("|---" * (2 * len(names) + 3) + "|")
    shares: dict[str, list[float]] = {name: [] for name in names}
    for world, by_agent in table.items():
        one = [mean(by_agent[name], "regret") / mean(by_agent[name], "uniform") for name in names]
        if world != "icu-sepsis":
            for name, share in zip(names, one, strict=True):
                shares[name].append(share)
        uniform = mean(by_agent["opo"], "uniform")
        cells = [number(mean(by_agent[name], "regret")) for name in names]
        print(f"| {world} | {len(by_agent['opo'])} | {number(uniform)} | {' | '.join(cells)} | {' | '.join(f'{x:.3f}' for x in one)} |")
    for what, function in {"worst": max, "mean": np.mean}.items():
        print(f"{what} share over the first ten: " + ", ".join(f"{name} {function(values):.3f}" for name, values in shares.items()))
    print("worst single run of opo, its share: " + _worst_run(table))


def _worst_run(table: dict[str, dict[str, list[Entry]]]) -> str:
    runs = [(entry["regret"] / entry["uniform"], world) for world, one in table.items() for entry in one["opo"]]
    share, world = max(runs)
    return f"{share:.3f} ({world})"


def report_icu(found: dict[str, Entry]) -> None:
    print("| agent | seeds | regret | mean regret of each tenth | gap closed in the last |\n|---|---|---|---|---|")
    for agent, entries in by_world(found)["icu-sepsis"].items():
        tenths = np.mean([entry["tenths"] for entry in entries], axis=0)
        print(
            f"| {agent} | {len(entries)} | {mean(entries, 'regret'):.1f} | {' '.join(f'{x:.5f}' for x in tenths)} "
            f"| {mean(entries, 'gap_closed'):.3%} |"
        )


def report_grid(found: dict[str, Entry]) -> None:
    print("| world | runs of a setting | uniform | greedy | auto | best by hand | its bonus_scale, eta_scale | auto / best | settings |")
    print("|---" * 9 + "|")
    for world, by_setting in by_world(found).items():
        auto, greedy = by_setting.pop("auto"), by_setting.pop("greedy")
        if not by_setting:
            continue
        best = min(by_setting, key=lambda setting: mean(by_setting[setting], "regret"))
        least, mine = mean(by_setting[best], "regret"), mean(auto, "regret")
        print(
            f"| {world} | {len(by_setting[best])} | {number(mean(auto, 'uniform'))} | {number(mean(greedy, 'regret'))} | {number(mine)} "
            f"| {number(least)} | {best} | {mine / least:.2f} | {len(by_setting)} |"
        )


def report_outside(found: dict[str, Entry]) -> None:
    print("| world | seeds of opo | regret per episode in the last tenth: opo | greedy | opo / greedy |\n|---|---|---|---|---|")
    for world, by_agent in by_world(found).items():
        last = {name: float(np.mean([entry["tenths"][-1] for entry in entries])) for name, entries in by_agent.items()}
        ratio = last["opo"] / last["greedy"]
        print(f"| {world} | {len(by_agent['opo'])} | {last['opo']:.4f} | {last['greedy']:.4f} | {ratio:.3f} |")


def report_coverage(found: dict[str, Entry]) -> None:
    print("| class | runs | runs in which the truth left | share | promised at most | with 2 standard errors |\n|---|---|---|---|---|---|")
    for kind, by_agent in by_world(found).items():
        entries = by_agent["opo"]
        n, half = len(entries), DELTA / 2
        for name in ("losses", "dynamics"):
            left = sum(entry[name] for entry in entries)
            most = half + 2 * math.sqrt(half * (1 - half) / n)
            print(f"| {kind} {name} | {n} | {left} | {left / n:.4f} | {half} | {most:.4f} |")
        left = sum(entry["losses"] or entry["dynamics"] for entry in entries)
        print(f"| {kind}, either | {n} | {left} | {left / n:.4f} | {DELTA} | {DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / n):.4f} |")


def report_certificate(found: dict[str, Entry]) -> None:
    print("| world | runs | states | above 2 Delta | largest regret / 2 Delta |\n|---|---|---|---|---|")
    for world, by_agent in by_world(found).items():
        entries = by_agent["opo"]
        counts = [sum(entry[name] for entry in entries) for name in ("states", "violated")]
        print(f"| {world} | {len(entries)} | {counts[0]} | {counts[1]} | {max(entry['largest'] for entry in entries):.3f} |")


PARTS = {
    "worlds": (worlds, report_worlds, 10),
    "icu": (icu, report_icu, 3),
    "grid": (grid, report_grid, 1),
    "outside": (outside, report_outside, 10),
    "coverage": (coverage, report_coverage, 400),
    "certificate": (certificate, report_certificate, 2),
}


def main() -> None:
    warnings.simplefilter("ignore")
    of.set_threads(1)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if sys.argv[2] == "report":
        for part in sys.argv[3:] or PARTS:
            found = read(folder / f"{part}.jsonl")
            if found:
                print(f"\n## {part}\n")
                PARTS[part][1](found)
        return
    part = sys.argv[2]
    jobs, _, default = PARTS[part]
    file = folder / f"{part}.jsonl"
    done = read(file)
    for key, run in jobs(int(sys.argv[3]) if len(sys.argv) > 3 else default):
        if key not in done:
            entry = run()
            with file.open("a") as out:
                out.write(json.dumps({"key": key, **entry}) + "\n")


if __name__ == "__main__":
    main()
