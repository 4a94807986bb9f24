"""One attempt for each seed: something valid, made wrong in one or two places, is tried; what comes of it is judged.

An attempt is good where it is refused with `OpoError` (the command line: with a line and a status), or accepted and then
works: policies are policies, numbers agree with the reference. Everything else is a finding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import worlds
from mutate import mutated, pick

import opo_fast as of

Attempt = Callable[[np.random.Generator], str]


class Finding(AssertionError):
    """What must not happen: a wrong answer, or an error of the wrong kind."""


def twice(rng: np.random.Generator, value: Any) -> Any:
    """Mutated in one place, sometimes in two."""
    changed = mutated(rng, value)
    return mutated(rng, changed) if rng.random() < 0.25 else changed


def check_policy(layout: of.Layout, mask: Any, policy: Any) -> None:
    policy = np.asarray(policy)
    if policy.shape != layout.shape or not (np.isfinite(policy).all() and (policy >= 0).all()):
        raise Finding(f"no policy came out: {policy!r}")
    if not np.allclose(policy.sum(axis=1), 1, atol=1e-6) or (mask is not None and policy[~mask].any()):
        raise Finding(f"no policy came out: rows sum to {policy.sum(axis=1)!r}")


def restored_state(rng: np.random.Generator) -> str:
    """An agent's state, mutated, into a fresh agent that then goes on."""
    name = pick(rng, worlds.AGENTS)
    env, agent = worlds.trained(name)
    state = twice(rng, agent.state())
    _, fresh = worlds.make_agent(name)
    before = str(fresh.state())
    try:
        fresh.restore(state)
    except of.OpoError:
        if str(fresh.state()) != before:
            raise Finding(f"{name}: a refused state changed the agent") from None
        return "refused"
    go_on(env, fresh)
    return "accepted"


def go_on(env: Any, agent: Any, episodes: int = 2) -> None:
    """Play on with an agent whose state was accepted."""
    for context in env.contexts:
        check_policy(env.layout, env.action_mask, agent.policy(context))
    of.simulate(env, agent, episodes, seed=4)
    agent.state()


def restored_run(rng: np.random.Generator) -> str:
    """The state of a run with its chains, mutated, into a fresh run that then goes on."""
    name = pick(rng, ["opo", "rm-ucdd", "e-uc3rl", "opo single", "opo tabular", "opo doubling", "lolipop"])
    env, state = worlds.run_state(name)
    state = dict(state)
    key = pick(rng, [key for key in ("chains", "chains", "columns", "episode", "seconds", "agent", "seed") if key in state])
    state[key] = twice(rng, state[key])
    if key == "chains" and rng.random() < 0.7:
        state[key] = worlds.run_state(name)[1][key]
        i = int(rng.integers(len(state[key]["chains"])))
        chains = list(state[key]["chains"])
        chains[i] = twice(rng, chains[i])
        state[key] = {**state[key], "chains": chains}
    _, agent = worlds.make_agent(name)
    run = of.runs.simulation.Simulation(env, agent, 40, 3)
    before = str(run.state())
    try:
        run.restore(state)
    except of.OpoError:
        if str(run.state()) != before:
            raise Finding(f"{name}: a refused state changed the run") from None
        return "refused"
    go_on(env, agent)
    run.step()
    run.result()
    return "accepted"


def attempt(kind: Attempt, seed: int) -> str:
    """One attempt, with warnings aside; an error that is not documented becomes a finding."""
    rng = np.random.default_rng([seed, sum(kind.__name__.encode())])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return kind(rng)
        except Finding:
            raise
        except of.OpoError as error:
            return f"refused later: {error}"
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error


STATES: list[Attempt] = [restored_state, restored_run]
