"""Threads when the interpreter ends and when the process forks."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from thread_cases import expected, forks, halved, together

import opo_fast as of
from opo_fast._support import lru as store_module
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_all
from opo_fast.algorithm import engine as chain_module

SCRIPT = """
import atexit, os, sys, threading
import numpy as np
import {patch}
def early():
    print("early", of.solve(mdp).v[0] == value, flush=True)
atexit.register(early)
import opo_fast as of
sys.path.insert(0, {tests!r})
import thread_cases
from strategies import random_model
from opo_fast._support import threads
look = threads._look
thread_cases.share_always()
# The load of the machine must not matter in this test.
threads._look = look
threads._load.running = lambda: 1
of.set_threads(2)
mdp = random_model(np.random.default_rng(3), [1, 40, 40], 3, "csr", density=0.5)
of.set_threads(1)
value = of.solve(mdp).v[0]
of.set_threads(2)
assert of.solve(mdp).v[0] == value
def late():
    print("late", of.solve(mdp).v[0] == value, threads.run_all(abs, [(-1,), (-2,)]), flush=True)
atexit.register(late)
{body}
"""


def run(body, tmp_path, patch="os", **env):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=textwrap.dedent(body), patch=patch, tests=str(pathlib.Path(__file__).parent)))
    env = {**os.environ, **env, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, env=env)
    return done.returncode, done.stdout.split("\n"), done.stderr


AT_EXIT = ["late True [1, 2]", "early True", ""]


def test_calls_at_exit(tmp_path):
    assert run("", tmp_path) == (0, AT_EXIT, "")


def test_daemon_threads_at_exit(tmp_path):
    body = """
    def go_on():
        while True:
            of.solve(mdp)
    for _ in range(3):
        threading.Thread(target=go_on, daemon=True).start()
    for _ in range(20):
        assert of.solve(mdp).v[0] == value
    """
    assert run(body, tmp_path) == (0, AT_EXIT, "")


def test_threads_that_outlive_the_main_one(tmp_path):
    body = """
    import time
    def go_on():
        for _ in range(50):
            assert of.solve(mdp).v[0] == value
            assert threads.run_all(abs, [(-1,), (-2,)]) == [1, 2]
            time.sleep(0.002)
        print("ended", flush=True)
    threading.Thread(target=go_on).start()
    """
    assert run(body, tmp_path) == (0, ["ended", *AT_EXIT], "")


@together
def test_workers_poll_if_the_system_cannot_wait_on_memory(tmp_path):
    (tmp_path / "elsewhere.py").write_text("import platform\nplatform.machine = lambda: 'unknown'\n")
    body = """
    from opo_fast.kernels import _sync
    assert not _sync.KEEP
    # Compile first, since workers end after a second without work.
    of.set_threads(1)
    assert thread_cases.halved() == (thread_cases.expected(), False)
    of.set_threads(2)
    assert thread_cases.halved() == (thread_cases.expected(), True)
    (worker,) = threads._crew.workers
    worker.join(60)
    assert not worker.is_alive()
    assert thread_cases.halved() == (thread_cases.expected(), True)
    """
    assert run(body, tmp_path, "elsewhere", NUMBA_CACHE_DIR=str(tmp_path / "cache")) == (0, AT_EXIT, "")


def in_child(work):
    """Exit status of a forked child that calls `work`; a child that hangs is killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_finds_stores_whole():
    """Other threads use the stores all the time."""
    store, stop = store_module.LRU(1000), threading.Event()

    def use():
        i = 0
        while not stop.is_set():
            i += 1
            store.put(i % 40, i, 50)
            store.get((i * 7) % 40)

    def check():
        assert store.nbytes == sum(size for _, size in store._values.values())
        store.put("child", 1, 50)
        assert store.get("child") == 1

    users = [threading.Thread(target=use, daemon=True) for _ in range(3)]
    for user in users:
        user.start()
    try:
        assert [in_child(check) for _ in range(30)] == [0] * 30
    finally:
        stop.set()
        for user in users:
            user.join()


@forks
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_wait_for_chains_of_another_thread(shared_always):
    layout = of.Layout([1, 3, 3], 2)
    generator = np.random.default_rng(5)
    costs = generator.random(layout.shape)
    losses = of.FiniteLossClass([lambda c: costs])
    blocks = [generator.dirichlet(np.ones(3), (n, 2)) for n in (1, 3)]
    agent = of.OPO(layout, losses, of.FiniteDynamicsClass([lambda c: blocks]), episodes=10, bonus_scale=1e-3, eta_scale=10)
    for _ in range(5):
        agent.observe(of.Trajectory(0, np.array([0, 1, 4, 7]), np.array([0, 1, 0]), np.array([0.0, 1.0, 0.0])))
    before = agent.policy(0).tobytes()
    (engine,) = [engine for engine in chain_module._ENGINES if engine.layout is agent.layout]
    held, stop = threading.Event(), threading.Event()

    def hold():
        with engine.lock:
            held.set()
            stop.wait(60)

    def check():
        # The child does not use anything that another thread may have been changing.
        assert not engine._chains
        assert agent.policy(0).tobytes() == before

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert in_child(check) == 0
    finally:
        stop.set()
        holder.join()
    assert agent.policy(0).tobytes() == before
    with engine.lock:
        assert in_child(lambda: agent.policy(0)) == 0


@forks
@together
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_has_workers_of_its_own(shared_always):
    of.set_threads(2)
    assert halved() == (expected(), True)

    def check():
        assert not threads_module._crew.workers
        assert halved() == (expected(), True)
        assert run_all(abs, [(-1,), (-2,)]) == [1, 2]

    statuses = []
    # The thread that forks is the main thread of the child.
    forker = threading.Thread(target=lambda: statuses.append(in_child(check)))
    forker.start()
    forker.join()
    assert [*statuses, in_child(check)] == [0, 0]
    assert halved() == (expected(), True)
