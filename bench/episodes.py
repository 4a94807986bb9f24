"""Whole runs, their own Python, chains model by model, seeds side by side, and runs beyond the memory budget.

python bench/episodes.py [loop] [run] [chain] [seeds] [memory]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from plain import PlainChain, numpy_occupancy
from problems import dense_arrays, rng
from seeds import SEEDS, WORLDS, FreshContexts, in_turn, together
from split import Clock

import opo_fast as of
from opo_fast.algorithm.rules import opo_rule

ROUNDS = 3


def ratio(name: str, ours: Callable[[], object], other: Callable[[], object], target: float) -> None:
    """Print the ratio of the minima of alternating runs."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for side, run in enumerate((ours, other)):
            began = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - began)
    each = ", ".join(f"{b / a:.2f}" for a, b in zip(*times, strict=True))
    print(
        f"{name}: {min(times[1]) / min(times[0]):.2f} times faster (at least {target:g}); {min(times[0]):.3f} s, pairs {each}", flush=True
    )


CHAINS = "packed_steps", "packed_self_tuning_steps", "packed_visits", "packed_ahead", "packed_self_tuning_ahead", "packed_fit_runs"


def own_python(episodes: int = 3000) -> None:
    """What an episode costs beside kernels and the user's functions; that of building its true model counts."""
    of.set_threads(1)
    for label, chosen in (("self-tuning", {}), ("factors by hand", {"episodes": episodes, "bonus_scale": 2e-6, "eta_scale": 50})):
        found = []
        for _ in range(ROUNDS):
            env, clock = FreshContexts([1, 3, 3, 3], 3, 10), Clock()

            def play(episodes: int, env: FreshContexts = env, chosen: dict = chosen) -> None:
                of.simulate(env, of.OPO(env.layout, env.loss_class, env.dynamics_class, **chosen), episodes, progress=False)

            play(300)
            for owner, name in ((env, "truth"), (env, "sample_context"), (env.loss_class, "together"), (env.dynamics_class, "together")):
                setattr(owner, name, clock.timed(getattr(owner, name), "user"))
            with clock.kernels(lambda kernel: "chains" if kernel.py_func.__name__ in CHAINS else "kernels"):
                began = time.thread_time()
                play(episodes)
                whole = time.thread_time() - began
            parts = {name: 1e6 * seconds / episodes for name, seconds in clock.seconds.items()}
            found.append((1e6 * whole / episodes - sum(parts.values()), parts))
        own, parts = min(found, key=lambda one: one[0])
        told = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
        print(f"an episode of T={episodes}, 10 + 10 candidates, {label}: {own:.0f} us of its own Python (at most 100); {told}", flush=True)
    of.set_threads(None)


def whole_run(episodes: int = 3000) -> None:
    env = FreshContexts([1, 3, 3, 3], 3, 6)
    options = {"episodes": episodes, "bonus_scale": 2e-6, "eta_scale": 50}
    for label, chosen in (("factors by hand", options), ("self-tuning", {})):

        def ours(chosen: dict = chosen) -> None:
            of.simulate(env, of.OPO(env.layout, env.loss_class, env.dynamics_class, **chosen), episodes, progress=False)

        def chains_alone() -> None:
            agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, **options)
            generator = rng()
            for t in range(episodes):
                context = float(generator.random())
                arrays, losses = [array[-1] for array in env.arrays(context)], env.losses(context)[-1]
                PlainChain(env.layout, arrays, losses, agent.rule).advance(t)

        ours(), chains_alone()
        ratio(f"whole run, T={episodes}, 6 + 6 candidates, {label}, against its chains alone in plain Numba", ours, chains_alone, 3)


def numpy_chain(layout: of.Layout, models: list, rule) -> np.ndarray:
    """Algorithm 1 in NumPy, one model at a time: one matrix product per layer, and running sums of visits."""
    policy, sum_q, visits = np.full(layout.shape, 1 / layout.n_actions), np.zeros(layout.shape), np.zeros(layout.shape)
    for losses, arrays in models:
        bonus = np.minimum(1, rule.beta_loss / 2 / (1 + visits)) + rule.weight * np.minimum(1, rule.beta_dynamics[0] / 2 / (1 + visits))
        q, v = losses - bonus, np.zeros(layout.n_states)
        for h in range(layout.horizon - 1, -1, -1):
            layer = layout.layer(h)
            if h < layout.horizon - 1:
                q[layer] += arrays[h] @ v[layout.layer(h + 1)]
            np.maximum(q[layer], 0.0, out=q[layer])
            v[layer] = (policy[layer] * q[layer]).sum(axis=1)
        visits += numpy_occupancy(layout, arrays, policy)
        sum_q += q
        weights = np.exp(-rule.eta * (sum_q - sum_q.min(axis=1, keepdims=True)))
        policy = weights / weights.sum(axis=1, keepdims=True)
    return policy


def incremental_chain(steps: int = 400, horizon: int = 10, n_actions: int = 4) -> None:
    for size in (10, 100):
        sizes = [1] + [size] * (horizon - 1)
        generator, layout = rng(), of.Layout(sizes, n_actions)
        arrays = dense_arrays(sizes, n_actions, generator)
        losses = list(generator.random((steps, *layout.shape)))
        mdp = of.LayeredMDP(layout, losses[0], arrays)
        models = [mdp.with_losses(one) for one in losses]
        settings = {"eta": 0.05, "beta_loss": 20.0, "beta_dynamics": 5.0}
        rule = opo_rule(layout, **settings)
        found = []

        def ours(layout=layout, models=models, settings=settings, found=found) -> None:
            chain = of.PolicyChain(layout, **settings)
            for model in models:
                chain.append(model)
                policy = chain.policy()
            found.append(policy)

        def theirs(layout=layout, losses=losses, arrays=arrays, rule=rule, found=found) -> None:
            found.append(numpy_chain(layout, [(one, arrays) for one in losses], rule))

        ours(), theirs()
        assert np.allclose(found[0], found[1], atol=1e-6)
        ratio(f"PolicyChain, S={size}, H={horizon}, A={n_actions}, T={steps}, against a NumPy loop", ours, theirs, 6)


def many_seeds(episodes: int = 400) -> None:
    of.set_threads(1)
    for world in WORLDS:
        ours, theirs = together(world, episodes), in_turn(world, episodes)
        ours(), theirs()
        ratio(f"{SEEDS} seeds side by side, T={episodes}, {world}, against one after the other", ours, theirs, 2.5)
    of.set_threads(None)


def one_run(episodes: int, memory: int, tuning: str) -> None:
    """A run in a separate process: its seconds and its peak memory."""
    env = FreshContexts([1, 3, 3, 3], 3, 10)
    options = {} if tuning == "auto" else {"episodes": episodes, "bonus_scale": 2e-6, "eta_scale": 50}

    def play(episodes: int) -> None:
        agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, memory=memory, **options)
        of.simulate(env, agent, episodes, progress=False)

    play(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    play(episodes)
    print(time.process_time() - began, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def beyond_memory(episodes: int = 20_000) -> None:
    for tuning in ("auto", "by hand"):
        found: dict[int, list[float]] = {}
        for memory in (1 << 29, 1 << 34):
            call = [sys.executable, __file__, "one", str(episodes), str(memory), tuning]
            found[memory] = list(map(float, subprocess.run(call, check=True, capture_output=True, text=True).stdout.split()))
        (bounded, peak), (free, most) = found[1 << 29], found[1 << 34]
        print(
            f"T={episodes}, {tuning}: {bounded:.1f} s with the default memory, {bounded / free:.2f} times that without a bound "
            f"(at most 1.2); peak {peak / 2**29:.2f} of the budget (at most 1.2; {most / 2**29:.2f} without a bound)",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        one_run(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    rows = {"loop": own_python, "run": whole_run, "chain": incremental_chain, "seeds": many_seeds, "memory": beyond_memory}
    for name in sys.argv[1:] or rows:
        rows[name]()


if __name__ == "__main__":
    main()
