"""The package's threads: their number, order, errors and nesting, and the same bits in other threads and processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_all
from opo_fast.kernels import _sync
from opo_fast.model import transitions as transitions_module


@pytest.fixture(autouse=True)
def _back_to_default(set_threads):
    """Every test here may set the number of threads."""


def share_always():
    """Have each call shared by as many threads as were set, however busy the machine and whatever it gains."""
    look = threads_module._look
    threads_module._look = lambda most: look(1)._replace(n=most)
    threads_module._Gains.rests = lambda gains: False
    threads_module._Gains.ask = lambda gains, work: True
    threads_module._Gains.patience = lambda gains, work: 10**11
    transitions_module._WORTH_MEETING = {0: 1, 1: 1}


@pytest.fixture
def shared_always(monkeypatch):
    """`share_always`, undone after the test."""
    monkeypatch.setattr(threads_module, "_look", threads_module._look)
    monkeypatch.setattr(threads_module._Gains, "rests", threads_module._Gains.rests)
    monkeypatch.setattr(threads_module._Gains, "ask", threads_module._Gains.ask)
    monkeypatch.setattr(threads_module._Gains, "patience", threads_module._Gains.patience)
    monkeypatch.setattr(transitions_module, "_WORTH_MEETING", transitions_module._WORTH_MEETING)
    share_always()


def joined():
    """Threads that took part in the last call that asked for several."""
    return int(threads_module._crew.gate[_sync.JOINED])


def test_number_of_threads(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads_module, "_group", lambda: float("inf"))
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

    # More parts than threads: none may wait for a free thread of the pool that its own parts hold.
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


def bits():
    """What a process computes about a model that is large enough for threads inside a layer."""
    parts = []
    for form in ("dense", "csr"):
        rng = np.random.default_rng(3)
        mdp = random_model(rng, [1, 40, 40], 3, form, masked=True, density=0.5)
        policy = mdp.uniform_policy()
        parts += [of.occupancy(mdp, policy), *of.evaluate(mdp, policy), *of.solve(mdp)]
        parts.append(of.policy_chain([mdp] * 5, eta=0.5, beta_loss=0.4, beta_dynamics=0.1))
    return b"".join(part.tobytes() for part in parts)


def bits_elsewhere():
    """`bits` of another process."""
    share_always()
    of.set_threads(2)
    return bits()


@pytest.fixture
def here(shared_always):
    of.set_threads(1)
    return bits()


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
    """Forked after the workers were in use, the child has their names but none of them."""
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
    """Added as a tree, this row misses 1 by less than 1e-8, from left to right by more."""
    layout = of.Layout([1, 201, 201], 4)
    blocks = [np.full((n, 4, 201), 1 / 201) for n in (1, 201)]
    model = of.LayeredMDP(layout, np.zeros(layout.shape), blocks)
    policy = model.uniform_policy()
    policy[67] = [0.1524847101668998, 0.45161118118305205, 0.18663111019917264, 0.20927300845087554]
    for threads in (1, 2, 3, 4, 5):
        of.set_threads(threads)
        of.occupancy(model, policy)
        of.evaluate(model, policy)
