"""How time grows with the size of the problem, how much memory is used, and how long compilation takes; prints one line per figure.

python bench/scaling.py                 # all
python bench/scaling.py fresh memory    # some: fresh, returning, transitions, long, horizon, memory, compile
"""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from problems import constant_history, csr_mdp, dense_mdp, engine_of
from work import MixedModels

import opo_fast as of


def best(function, repeats=3):
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def exponent(sizes, times):
    """Slope of the log-log fit."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def run_of(env, episodes):
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=episodes, bonus_scale=2e-6, eta_scale=50)
    return of.simulate(env, agent, episodes, progress=False), agent


def fresh():
    """T episodes with a fresh context each."""
    env = MixedModels([1, 3, 3, 3], 3, 10)
    run_of(env, 50)
    sizes = [500, 1000, 2000, 4000, 8000]
    times = [best(lambda n=n: run_of(env, n), 1 if n > 2000 else 2) for n in sizes]
    print(
        "fresh contexts, seconds for T =",
        dict(zip(sizes, np.round(times, 2), strict=True)),
        f"exponent {exponent(sizes, times):.2f} (aim: 2.1 or less)",
    )


def returning():
    """T episodes with two returning contexts."""
    models = [dense_mdp([1, 3, 3, 3], 3, seed) for seed in range(2)]
    env = of.FiniteContexts(models)
    env.loss_class = of.FiniteLossClass([lambda c: models[1 - c].losses, lambda c: models[c].losses])
    env.dynamics_class = of.FiniteDynamicsClass([lambda c: models[1 - c].transitions, lambda c: models[c].transitions])
    run_of(env, 50)
    sizes = [500, 1000, 2000, 4000, 8000]
    times = [best(lambda n=n: run_of(env, n), 2) for n in sizes]
    print(
        "two returning contexts, seconds for T =",
        dict(zip(sizes, np.round(times, 2), strict=True)),
        f"exponent {exponent(sizes, times):.2f} (aim: 1.1 or less)",
    )


def transitions():
    """One chain step on CSR models of growing size."""
    sizes, times = [], []
    for states in (300, 3_000, 30_000, 300_000):
        mdp = csr_mdp([1] + [states] * 10, 4, 8, band=min(states, 1000))
        engine, history = engine_of([mdp]), constant_history(100)
        engine.chain(0, history, 3)
        steps = iter(range(4, 100))
        times.append(best(lambda e=engine, s=steps, h=history: e.chain(0, h, next(s)), 8))
        sizes.append(mdp.transitions.n_transitions)
    print(
        "one step, seconds for transitions =",
        dict(zip(sizes, np.round(times, 5), strict=True)),
        f"exponent {exponent(sizes, times):.2f} (aim: 1.05 or less)",
    )


def long():
    """T = 10,000 fresh contexts in one run, and the share of Python."""
    env = MixedModels([1, 3, 3, 3], 3, 10)
    run_of(env, 50)
    began = time.perf_counter()
    result, _ = run_of(env, 10_000)
    total = time.perf_counter() - began
    # Only the steps, in packs of eight fresh contexts on all threads, with the same numbers of steps.
    steps = sum(range(10_000))
    models = [env.mdp(c) for c in np.linspace(0.01, 0.99, 64)]
    history = constant_history(5000)
    per_step = best(lambda: engine_of(models).prefetch(range(64), history, 5000)) / (64 * 5000)
    regret = result.cumulative_regret[-1]
    print(f"T = 10,000 fresh contexts: {total:.1f} s (aim: below 15), of which chain steps {per_step * steps:.1f} s; regret {regret:.1f}")


def horizon():
    """H = 2,000 with occupancies below 1e-300 against H = 200, per transition."""
    figures = {}
    for h in (200, 2000):
        layout = of.Layout([1] + [20] * (h - 1), 4)
        block = np.zeros((20, 4, 20))
        block[:, :, 0], block[:, :, 1:] = 1 - 19e-4, 1e-4
        first = block[:1]
        mdp = of.LayeredMDP(layout, np.full(layout.shape, 0.5), [first] + [block] * (h - 2))
        # Every action but one is played with probability 1e-3: after 100 layers the far states are below 1e-300.
        policy = np.full(layout.shape, 1e-3)
        policy[:, 0] = 1 - 3e-3
        q = of.occupancy(mdp, policy)
        assert np.isfinite(q).all()
        engine, history = engine_of([mdp]), constant_history(200)
        engine.chain(0, history, 3)
        steps = iter(range(4, 200))
        figures[h] = best(lambda e=engine, s=steps, k=history: e.chain(0, k, next(s)), 30) / mdp.transitions.n_transitions
        assert np.isfinite(engine.chain(0, history, 150)[0].policy(0)).all()
    print(f"H = 2,000 takes {figures[2000] / figures[200]:.2f} times as long per transition as H = 200 (aim: 1.3 or less)")


MEMORY = """
import ctypes, sys
sys.path.insert(0, {bench!r})
from problems import *
mdp = csr_mdp([1] + [111_111] * 9, 4, 8, band=1000)
base = mdp.transitions.nbytes
pairs = mdp.layout.n_states * 4 * 8
ctypes.CDLL(None).malloc_trim(0)  # what building freed must not hide what the chain takes
import threading, time, psutil
process = psutil.Process()
start = process.memory_info().rss
peak = [start]
stop = []
def watch():
    while not stop:
        peak[0] = max(peak[0], process.memory_info().rss)
        time.sleep(0.002)
thread = threading.Thread(target=watch); thread.start()
engine = engine_of([mdp], 1 << 29)
engine.chain(0, constant_history(20), 20)
stop.append(1); thread.join()
held = base + pairs
print((peak[0] - start + held) / (1.5 * base + 6 * pairs), (peak[0] - start) / pairs)
"""


def memory():
    """Peak memory of a chain on a million states."""
    code = MEMORY.format(bench=str(pathlib.Path(__file__).resolve().parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    share, vectors = done.stdout.split()[-2:]
    print(f"million-state chain: model and chain take {float(share):.2f} of 1.5 models + 6 vectors; the chain {float(vectors):.1f} vectors")


def compile():
    """Seconds of the import and of a first run, with a cold and a warm kernel cache."""
    here = pathlib.Path(__file__).resolve().parent
    for what in ((), ("all",)):
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, NUMBA_CACHE_DIR=cache)
            for label in ("cold", "warm", "warm"):
                command = [sys.executable, str(here / "first_use.py"), *what]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                imported, total = map(float, done.stdout.split())
                work = "every kernel of models and chains" if what else "first simulate of a tiny model"
                print(f"{label} cache: import {imported:.2f} s (aim: 0.6), {work} after {total:.2f} s (aim: 2 warm, 60 cold)")


if __name__ == "__main__":
    parts = {f.__name__: f for f in (fresh, returning, transitions, long, horizon, memory, compile)}
    for name in sys.argv[1:] or parts:
        parts[name]()
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB", file=sys.stderr)
