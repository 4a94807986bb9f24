"""The rows of the benchmarks: each has the package's function and alternatives that do the same work in the same process.

A maker builds the inputs of a contender and returns the function to time together with `per`, the number of units of work (chain steps,
episodes) in one call, so that contenders may do different amounts per call. `target` is the aim: the package is at least that many times
faster than the fastest alternative, or for "within" rows at most that many times slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from many import rows as rows_of_batches
from plain import PlainChain, numpy_occupancy
from problems import constant_history, csr_mdp, dense_mdp, engine_of, rng, self_tuning_engine_of
from seeds import rows as rows_of_seeds
from single import rows as rows_of_operations

import opo_fast as of
from opo_fast.model.slices import ROWS_WORTH

Timed = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """One row of the report."""

    name: str
    group: str
    ours: Callable[[], tuple[Timed, float]]
    others: dict[str, Callable[[], tuple[Timed, float]]]
    target: float
    within: bool = False
    rounds: int = 7
    slow: bool = field(default=False)
    """Left out of quick runs, since an alternative takes more than a few seconds."""


# -- whole runs ------------------------------------------------------------------------------------------------------


class MixedModels:
    """A fresh context in [0, 1] in each episode; each candidate interpolates between two random models, and has its own function."""

    name = "mixed models"

    def __init__(self, sizes, n_actions, candidates, seed=0):
        generator = rng(seed)
        self.layout = of.Layout(sizes, n_actions)
        pairs = list(itertools.pairwise(sizes))
        self._losses = [(x, y - x) for x, y in generator.random((candidates, 2, *self.layout.shape))]
        self._arrays = []
        for _ in range(candidates):
            first, second = ([generator.dirichlet(np.ones(b), (a, n_actions)) for a, b in pairs] for _ in range(2))
            self._arrays.append([(x, y - x) for x, y in zip(first, second, strict=True)])
        self.truth = candidates - 1
        self.loss_class = of.FiniteLossClass([lambda c, i=i: self.losses(i, c) for i in range(candidates)])
        self.dynamics_class = of.FiniteDynamicsClass([lambda c, i=i: self.arrays(i, c) for i in range(candidates)])

    def losses(self, i, context):
        x, slope = self._losses[i]
        return x + context * slope

    def arrays(self, i, context):
        return [x + context * slope for x, slope in self._arrays[i]]

    def sample_context(self, generator):
        return float(generator.random())

    def mdp(self, context):
        return of.LayeredMDP(self.layout, self.losses(self.truth, context), self.arrays(self.truth, context))


def whole_run(episodes, backend="numba"):
    env = MixedModels([1, 3, 3, 3], 3, 10)

    def run():
        agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=episodes, bonus_scale=2e-6, eta_scale=50, backend=backend)
        return of.simulate(env, agent, episodes, progress=False, backend=backend)

    return run, float(episodes)


# -- chain steps -----------------------------------------------------------------------------------------------------


@cache
def chain_models(sizes, n_actions, contexts):
    return [dense_mdp(list(sizes), n_actions, seed) for seed in range(contexts)]


def chain_ours(sizes, n_actions, contexts, steps):
    mdps, history = chain_models(sizes, n_actions, contexts), constant_history(steps)

    def run():
        engine_of(mdps).prefetch(range(contexts), history, steps)

    return run, float(steps * contexts)


def chain_plain(sizes, n_actions, contexts, steps):
    mdps = chain_models(sizes, n_actions, contexts)
    rule = engine_of(mdps).rule
    some = mdps[: max(1, contexts // 8)]

    def run():
        for mdp in some:
            PlainChain(mdp.layout, mdp.transitions.arrays(), mdp.losses, rule).advance(steps)

    return run, float(steps * len(some))


def chain_work(name, sizes, n_actions, contexts, steps, target):
    key = (tuple(sizes), n_actions, contexts, steps)
    return Work(name, "chain", lambda: chain_ours(*key), {"plain Numba chain, one context at a time": lambda: chain_plain(*key)}, target)


@cache
def plausible_models(sizes, n_actions, contexts, candidates):
    return [[dense_mdp(list(sizes), n_actions, seed + 1000 * i) for i in range(max(2, candidates))] for seed in range(contexts)]


def self_tuning_work(label, sizes, n_actions, contexts, steps, candidates, within):
    """A step of self-tuning OPO compared with one with given parameters, both under one constant fit."""

    def ours():
        mdps = plausible_models(tuple(sizes), n_actions, contexts, candidates)
        history = constant_history(steps, candidates)
        return (lambda: self_tuning_engine_of(mdps).prefetch(range(contexts), history, steps)), float(steps * contexts)

    name = f"self-tuning chain step, {candidates} plausible dynamics, {label}"
    hand = {"factors by hand": lambda: chain_ours(tuple(sizes), n_actions, contexts, steps)}
    return Work(name, "self-tuning", ours, hand, within, within=True)


def icu_run(**factors):
    from opo_fast import agents, envs

    env = envs.make("icu-sepsis")
    return (lambda: of.simulate(env, agents.make("opo", env, episodes=2000, **factors), 2000, progress=False)), 2000.0


def self_tuning_items():
    packed, single = ("H=10, 5 states, 3 actions, 64 contexts", [1] + [5] * 9, 3, 64), ("H=20, 20 states, 4 actions", [1] + [20] * 19, 4, 4)
    for (label, *sizes), steps in ((packed, 1000), (single, 300)):
        for candidates, within in ((1, 1.6), (2, 2.6), (5, 5.0), (10, 9.0)):
            yield self_tuning_work(label, *sizes, steps, candidates, within)
    hand = {"factors by hand": lambda: icu_run(bonus_scale=2e-6, eta_scale=50.0)}
    yield Work("whole run, ICU-Sepsis, T=2,000, self-tuning", "episodes", icu_run, hand, 1.0, within=True, rounds=1, slow=True)


@cache
def large(name):
    if name == "dense":
        return dense_mdp([1] + [900] * 13, 4)
    return csr_mdp([1] + [111_111] * 9, 4, 8, band=1000 if name == "band" else None)


def large_step(name):
    """A step after those by which a CSR model has the copies in slices that it will have."""
    engine, history = engine_of([large(name)]), constant_history(10_000)
    steps = [ROWS_WORTH + 1]
    engine.chain(0, history, steps[0])

    def run():
        steps[0] += 1
        engine.chain(0, history, steps[0])

    return run, 1.0


def read_twice(name):
    """The time of reading the model twice, measured as a pass over that many bytes."""
    from concurrent.futures import ThreadPoolExecutor

    from stream import read_sum

    threads = of.get_threads()
    array = np.ones(2 * large(name).transitions.nbytes // 8)
    share = array.size // threads
    pool = ThreadPoolExecutor(threads)
    return (lambda: list(pool.map(lambda i: read_sum(array, i * share, (i + 1) * share), range(threads)))), 1.0


def large_work(label, name, within):
    return Work(
        label, "chain", lambda: large_step(name), {"reading the model twice": lambda: read_twice(name)}, within, within=True, slow=True
    )


@cache
def catch_up_problem(policies):
    mdp = of.LayeredMDP.stationary(rng().dirichlet(np.ones(200), (200, 10)), rng(1).random((200, 10)), 20)
    store = rng(2).random((policies, mdp.layout.n_states, 10))
    store /= store.sum(axis=2, keepdims=True)
    return mdp, store.reshape(policies, -1)


def catch_up(policies, batched):
    mdp, store = catch_up_problem(policies)
    engine = engine_of([mdp])
    chain = engine._create([(0, 0)])
    chain.policies.lines = store
    visits = np.zeros(engine.n_rows)

    def all_at_once():
        chain._visit(mdp.transitions, visits, 0, policies)

    def one_by_one():
        for k in range(policies):
            chain._visit(mdp.transitions, visits, k, 1)

    return (all_at_once if batched else one_by_one), float(policies)


def catch_up_numpy():
    """A tenth of the policies, since it is slow."""
    mdp, store = catch_up_problem(1000)
    arrays = mdp.transitions.arrays()
    policies = store[:100].reshape(100, *mdp.layout.shape)
    return (lambda: sum(numpy_occupancy(mdp.layout, arrays, policy) for policy in policies)), 100.0


def work_items() -> list[Work]:
    """All rows of the report."""
    return [
        Work(
            "whole run, T=300, fresh contexts, H=4, 3 states, 3 actions, 10+10 candidates",
            "episodes",
            lambda: whole_run(300),
            {"literal Algorithm 1 in NumPy": lambda: whole_run(300, "numpy")},
            1000,
            slow=True,
        ),
        chain_work("chain step, H=4, 3 states, 3 actions, 64 fresh contexts", [1, 3, 3, 3], 3, 64, 8000, 6),
        chain_work("chain step, H=10, 5 states, 3 actions, 64 fresh contexts", [1] + [5] * 9, 3, 64, 1000, 5),
        chain_work("chain step, H=20, 20 states, 4 actions, 16 contexts", [1] + [20] * 19, 4, 16, 300, 4),
        *rows_of_operations(Work),
        large_work("chain step, dense, model of 300 MB", "dense", 1.3),
        large_work("chain step, CSR, a million states, band of 1,000, H=10", "band", 1.8),
        large_work("chain step, CSR, a million states, random successors, H=10", "random", 3.5),
        Work(
            "catch-up of 1,000 policies, dense, S=200",
            "chain",
            lambda: catch_up(1000, True),
            {
                "NumPy, a matrix-vector product per policy and layer": catch_up_numpy,
                "our own pass, one policy at a time": lambda: catch_up(1000, False),
            },
            5,
            rounds=3,
        ),
        *self_tuning_items(),
        *rows_of_seeds(Work),
        *rows_of_batches(Work),
    ]
