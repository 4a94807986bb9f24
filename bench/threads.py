"""Whether threads help, and never harm: calls on the default number of threads against the same calls on one.

All processes switch between the two settings at the same moments, so that both run under the same load. The report has medians and 99th
percentiles: on an idle machine, without and with pauses between the calls; while other processes keep processors busy; and with several
processes of this package at once.

    python bench/threads.py [--seconds 10] [--blind] [--calls NAME ...] [--loads NAME ...] [--json FILE]

A ratio is the time on the default number of threads divided by that on one thread. The aims are medians of at most 1.1, 99th percentiles
of at most 1.5, and for the calls in `GAIN` on an idle machine medians of at most 0.77.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time

import numpy as np
from problems import csr_mdp, dense_mdp, rng

import opo_fast as of
from opo_fast._support import threads

SLOT = 0.2
"""Seconds between two switches of the setting."""
GAIN = ("layered CSR, evaluate", "dense, evaluate")
LOADS = {
    "idle": (0, 0.0, 1),
    "pauses of 1 ms": (0, 0.001, 1),
    "pauses of 60 ms": (0, 0.06, 1),
    "1 busy": (1, 0.0, 1),
    "2 busy": (2, 0.0, 1),
    "3 busy": (3, 0.0, 1),
    "2 of ours": (0, 0.0, 2),
    "3 of ours": (0, 0.0, 3),
    "4 of ours": (0, 0.0, 4),
}
"""Number of busy processes, seconds of pause before each call, number of calling processes."""


def stationary_dense(n_states, n_actions, horizon):
    generator = rng(3)
    p = generator.dirichlet(np.ones(n_states), (n_states, n_actions))
    return of.LayeredMDP.stationary(p, generator.random((n_states, n_actions)), horizon)


def evaluation(mdp):
    policy = mdp.uniform_policy()
    return lambda: of.evaluate(mdp, policy)


def forward(mdp):
    policy = mdp.uniform_policy()
    return lambda: of.occupancy(mdp, policy)


def planning(mdp):
    return lambda: of.solve(mdp)


def chain(mdp):
    return lambda: of.policy_chain([mdp] * 4, eta=0.5, beta_loss=0.4, beta_dynamics=0.1)


CALLS = {
    "small dense, evaluate": lambda: evaluation(dense_mdp([1] + [20] * 19, 4)),
    "layered CSR, evaluate": lambda: evaluation(csr_mdp([1] + [200] * 99, 4, 8)),
    "layered CSR, occupancy": lambda: forward(csr_mdp([1] + [200] * 99, 4, 8)),
    "layered CSR, chain": lambda: chain(csr_mdp([1] + [200] * 99, 4, 8)),
    "short CSR, evaluate": lambda: evaluation(csr_mdp([1] + [300] * 9, 4, 8)),
    "dense, evaluate": lambda: evaluation(stationary_dense(100, 10, 50)),
    "dense, occupancy": lambda: forward(stationary_dense(100, 10, 50)),
    "dense, solve": lambda: planning(stationary_dense(200, 10, 50)),
    "wide CSR, solve": lambda: planning(csr_mdp([1] + [20_000] * 9, 4, 8)),
}


def timed(call, pause, seconds, blind, wait=lambda: None):
    """Seconds of the calls on one thread (even slots) and on the default (odd slots), beginning after all processes have `wait`ed."""
    if blind:
        threads._load.file = None
    times = ([], [])
    for number in (1, None) * 20:
        of.set_threads(number)
        call()
    wait()
    now = time.time()
    end = now + seconds
    while now < end:
        default = int(now / SLOT) % 2
        of.set_threads(None if default else 1)
        if pause:
            time.sleep(pause)
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
        now = time.time()
        # A call that runs into the next slot is dropped, since the load there belongs to the other setting.
        if int(now / SLOT) % 2 == default:
            times[default].append(took)
    return times


def member(name, pause, seconds, blind, barrier, results):
    results.put(timed(CALLS[name](), pause, seconds, blind, barrier.wait))


def measure(name, busy, pause, processes, seconds, blind):
    """Times of all processes on one thread and on the default."""
    call = CALLS[name]() if processes == 1 else None
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        if call is not None:
            return timed(call, pause, seconds, blind, lambda: time.sleep(0.5))
        context = multiprocessing.get_context("spawn")
        results, barrier = context.Queue(), context.Barrier(processes)
        team = [context.Process(target=member, args=(name, pause, seconds, blind, barrier, results)) for _ in range(processes)]
        for one in team:
            one.start()
        each = [results.get(timeout=seconds + 300) for _ in team]
        for one in team:
            one.join()
        return tuple([took for times in each for took in times[setting]] for setting in (0, 1))
    finally:
        for load in loads:
            load.kill()
            load.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--calls", nargs="*", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--blind", action="store_true", help="as where the system does not tell how many threads run")
    parser.add_argument("--json", help="where to write the rows")
    options = parser.parse_args()
    rows = []
    print(f"{'call':24} {'load':16} {'calls':>11} {'one thread, us':>18} {'default, us':>18} {'median':>7} {'99th':>6}")
    print(f"{'':24} {'':16} {'':11} {'median     99th':>18} {'median     99th':>18} {'ratio':>7} {'ratio':>6}")
    for name in options.calls:
        for load in options.loads:
            one, default = (np.array(times) * 1e6 for times in measure(name, *LOADS[load], options.seconds, options.blind))
            (m1, p1), (mn, pn) = (np.quantile(times, [0.5, 0.99]) for times in (one, default))
            limit = 1 / 1.3 if name in GAIN and load == "idle" else 1.1
            missed = (mn / m1 > limit, pn / p1 > 1.5)
            rows.append({"call": name, "load": load, "one": [m1, p1], "default": [mn, pn], "calls": [one.size, default.size]})
            print(
                f"{name:24} {load:16} {one.size:5} {default.size:5} {m1:9.1f}{p1:9.1f} {mn:9.1f}{pn:9.1f} {mn / m1:7.2f} {pn / p1:6.2f}"
                f"{'  median!' if missed[0] else ''}{'  99th!' if missed[1] else ''}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
