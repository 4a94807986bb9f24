"""Work on several threads: number, order, errors and nesting, and the same bits with any number of threads and processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from strategies import random_model
from thread_cases import bits, bits_elsewhere, expected, halved, joined, together

import opo_fast as of
from opo_fast._support import processors as processors_module
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_all
from opo_fast.kernels import _sync


def test_number_of_threads(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors_module, "granted", lambda: float("inf"))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert of.get_threads() == usable
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    assert of.get_threads() == 5
    of.set_threads(2)
    assert of.get_threads() == 2
    of.set_threads(None)
    assert of.get_threads() == 5
    for nonsense in ("0", "", "many"):
        monkeypatch.setenv("NUMBA_NUM_THREADS", nonsense)
        assert of.get_threads() == usable


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_results_come_in_the_order_of_the_parts(threads, shared_always):
    of.set_threads(threads)

    def work(i):
        time.sleep(0.002 * (7 - i))
        return i * i

    assert run_all(work, [(i,) for i in range(7)]) == [i * i for i in range(7)]
    assert run_all(work, []) == []


def test_parts_run_at_the_same_time(shared_always):
    of.set_threads(3)
    together = threading.Barrier(3, timeout=20)
    assert len(run_all(lambda i: together.wait(), [(i,) for i in range(3)])) == 3


def test_one_thread_is_the_callers():
    of.set_threads(1)
    assert set(run_all(threading.get_ident, [()] * 4)) == {threading.get_ident()}


def test_a_call_inside_a_part_stays_in_its_thread(shared_always):
    of.set_threads(3)

    def outer(i):
        inner = run_all(threading.get_ident, [()] * 5)
        assert set(inner) == {threading.get_ident()}
        return i

    # More parts than threads: no part may wait for a thread that its own inner parts occupy.
    assert run_all(outer, [(i,) for i in range(20)]) == list(range(20))
    assert len(set(run_all(threading.get_ident, [()] * 1))) == 1


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_of_a_part_is_raised_once_all_ended(bad, shared_always):
    of.set_threads(3)
    ended = []

    def work(i):
        if i == bad:
            raise KeyError(i)
        time.sleep(0.05)
        ended.append(i)

    with pytest.raises(KeyError, match=str(bad)):
        run_all(work, [(i,) for i in range(3)])
    assert sorted(ended) == [i for i in range(3) if i != bad]
    assert run_all(lambda i: i, [(i,) for i in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_same_bits_with_any_number_of_threads(here, threads):
    of.set_threads(threads)
    assert bits() == here
    assert joined() == threads or not threads_module._TOGETHER


def test_same_bits_from_many_threads_of_the_caller(here):
    of.set_threads(2)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda i: bits(), range(8))) == {here}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_same_bits_in_another_process(here, start):
    """The process is forked after the workers were used, so the child has their records but no threads."""
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot start processes by {start}")
    of.set_threads(2)
    assert bits() == here
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.apply_async(bits_elsewhere).get(timeout=120) == here


def test_models_travel_to_another_process(here):
    mdp = random_model(np.random.default_rng(3), [1, 6, 5], 3, masked=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        other = pool.apply_async(of.solve, (mdp,)).get(timeout=60)
    assert other.v.tobytes() == of.solve(mdp).v.tobytes()


def test_a_policy_at_the_edge_of_the_tolerance_is_judged_alike_by_any_number_of_threads(shared_always):
    """The sum of this row differs from 1 by less than 1e-8 if it is added as a tree, and by more from left to right."""
    layout = of.Layout([1, 201, 201], 4)
    blocks = [np.full((n, 4, 201), 1 / 201) for n in (1, 201)]
    model = of.LayeredMDP(layout, np.zeros(layout.shape), blocks)
    policy = model.uniform_policy()
    policy[67] = [0.1524847101668998, 0.45161118118305205, 0.18663111019917264, 0.20927300845087554]
    for threads in (1, 2, 3, 4, 5):
        of.set_threads(threads)
        of.occupancy(model, policy)
        of.evaluate(model, policy)


@together
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_read_what_others_wrote_before_a_meeting(threads, shared_always):
    of.set_threads(threads)
    for rounds in (0, 1, 100, 5000):
        # Each thread returns its number, which is true except for the first.
        assert halved(rounds, threads) == (expected(rounds), True)
        assert joined() == threads


@together
def test_a_thread_that_comes_too_late_does_not_join(shared_always, monkeypatch):
    crew = threads_module._Crew()
    monkeypatch.setattr(threads_module, "_crew", crew)
    monkeypatch.setattr(threads_module._Gains, "patience", lambda gains, work: 10**6)
    monkeypatch.setattr(crew, "gather", lambda places: places.n)
    of.set_threads(3)
    assert halved() == (expected(), False)
    assert joined() == 1
    worker = threading.Thread(target=_sync.serve, args=(crew.gate,), daemon=True)
    worker.start()
    time.sleep(0.2)
    monkeypatch.setattr(threads_module._Gains, "patience", lambda gains, work: 10**9)
    # Only one of the two threads has joined.
    assert halved(most=3) == (expected(), True)
    assert joined() == 2
    of.set_threads(2)
    assert halved() == (expected(), True)
    _sync.release(crew.gate)
    worker.join(20)
    assert not worker.is_alive()
    monkeypatch.setattr(threads_module._Gains, "patience", lambda gains, work: 10**6)
    assert halved() == (expected(), False)


@together
def test_impatient_calls_are_right_whether_others_come_or_not(shared_always, monkeypatch):
    of.set_threads(3)
    seen = set()
    for i in range(300):
        monkeypatch.setattr(threads_module._Gains, "patience", lambda gains, work, i=i: 500 * i)
        assert halved(most=3)[0] == expected()
        seen.add(joined())
    assert seen <= {1, 2, 3}


@together
def test_ctrl_c_keeps_no_thread_waiting(shared_always, monkeypatch):
    """Ctrl-C comes again and again, anywhere in the call."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this system has no timer that can press it")
    of.set_threads(2)
    # Neither Numba, while it compiles, nor pytest, while it reports one that came in a callback, can be interrupted safely.
    halved(1000)
    run_all(lambda i: i, [(i,) for i in range(4)])
    monkeypatch.setattr(sys, "unraisablehook", lambda *ignored: None)

    def press(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    pressed = 0
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
                while True:
                    halved(1000)
                    run_all(lambda i: i, [(i,) for i in range(4)])
            except KeyboardInterrupt:
                pressed += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        # The timer fired again before it was stopped.
        pressed += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pressed
    assert halved() == (expected(), True)
    assert joined() == 2
    assert not threads_module._inside
    assert run_all(lambda i: i, [(i,) for i in range(4)]) == [0, 1, 2, 3]


@together
def test_only_the_main_thread_shares(shared_always):
    of.set_threads(2)
    assert halved() == (expected(), True)
    before = int(threads_module._crew.gate[_sync._JOB])
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: halved(), range(6))) == [(expected(), False)] * 6
        assert len(set(pool.submit(run_all, threading.get_ident, [()] * 4).result())) == 1
    told = []
    daemon = threading.Thread(target=lambda: told.append(halved()), daemon=True)
    daemon.start()
    daemon.join(20)
    assert told == [(expected(), False)]
    assert int(threads_module._crew.gate[_sync._JOB]) == before
    assert run_all(lambda i: halved()[1], [(i,) for i in range(3)]) == [False] * 3
