"""The package's threads: their number, order, errors and nesting, and the same bits in other threads and processes."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast._support import lru as store_module
from opo_fast._support import processors as processors_module
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_all, run_together
from opo_fast.algorithm import engine as chain_module
from opo_fast.kernels import _sync
from opo_fast.kernels._jit import kernel
from opo_fast.model import transitions as transitions_module

together = pytest.mark.skipif(not threads_module._TOGETHER, reason="here kernels run on one thread")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


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


@kernel
def halves(me, n, gate, x, rounds):
    """Each round replaces `x` by the mean of an entry and the next one; what others wrote is read after a meeting."""
    size = x.shape[1]
    for r in range(rounds):
        for i in range(size * me // n, size * (me + 1) // n):
            x[(r + 1) % 2, i] = 0.5 * (x[r % 2, i] + x[r % 2, (i + 1) % size])
        _sync.meet(gate, me, n)
    return me


def halved(rounds=100, most=2):
    x = np.zeros((2, 64))
    x[0] = np.arange(64.0) ** 2
    told = run_together(halves, (), (x, rounds), most, x.size * rounds)
    return x[rounds % 2].tobytes(), told


def expected(rounds=100):
    x = np.arange(64.0) ** 2
    for _ in range(rounds):
        x = 0.5 * (x + np.roll(x, -1))
    return x.tobytes()


@together
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_read_what_others_wrote_before_a_meeting(threads, shared_always):
    of.set_threads(threads)
    for rounds in (0, 1, 100, 5000):
        # The number of the thread, true but for the first, is what one of them returned.
        assert halved(rounds, threads) == (expected(rounds), True)
        assert joined() == threads


@together
def test_who_comes_late_finds_the_door_shut(shared_always, monkeypatch):
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
    # One of the two that are asked is there.
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
def test_ctrl_c_keeps_no_thread_waiting(shared_always):
    """Pressed again and again, anywhere in the call."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this system has no timer that can press it")
    of.set_threads(2)

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
        # The timer went off once more before it was stopped.
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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes")
def test_a_process_that_is_bound_to_one_processor_uses_one_thread():
    usable = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(usable)})
        assert of.get_threads() == 1
        of.set_threads(8)
        assert threads_module._look(8).n == 1
        assert set(run_all(threading.get_ident, [()] * 4)) == {threading.get_ident()}
    finally:
        os.sched_setaffinity(0, usable)


@together
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or os.cpu_count() == 1, reason="there is no other processor")
def test_workers_keep_off_the_callers_processor(shared_always):
    usable = os.sched_getaffinity(0)
    of.set_threads(2)
    try:
        for here in usable:
            os.sched_setaffinity(0, {here})
            places = threads_module._look(1)
            assert places.here == here
            # As before the caller was moved here, and might be moved away.
            threads_module._crew.gather(places._replace(n=2, usable=usable))
            (worker, *_) = threads_module._crew.workers
            assert os.sched_getaffinity(worker.native_id) == usable - {here}
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.parametrize("running", [1, 2, 3, 40])
def test_a_processor_that_runs_something_is_left_alone(running, monkeypatch):
    monkeypatch.setattr(threads_module, "_ONLINE", 8)
    monkeypatch.setattr(threads_module, "_getcpu", None)
    monkeypatch.setattr(threads_module, "processors", lambda: 8)
    monkeypatch.setattr(threads_module._load, "running", lambda: running)
    assert threads_module._look(8).n == max(1, 9 - running)
    assert threads_module._look(2).n == (2 if running < 8 else 1)


def test_the_machine_runs_at_least_this_thread():
    load = threads_module._Load()
    assert load.running() >= 1
    load.file = None
    assert load.running() == 1


@pytest.mark.parametrize(
    ("text", "granted"),
    [("max 100000\n", float("inf")), ("150000 100000\n", 1.5), ("50000 100000", 0.5), ("400000", 4), ("-1 100000", float("inf"))],
)
def test_quotas_of_control_groups(text, granted):
    assert processors_module.quota_of(text) == granted


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_control_group_counts(tmp_path):
    root = tmp_path / "sys/fs/cgroup"
    assert processors_module.granted_below(tmp_path) == float("inf")
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/job\n")
    assert processors_module.granted_below(tmp_path) == float("inf")
    write(root / "user.slice/job/cpu.max", "800000 100000\n")
    write(root / "user.slice/cpu.max", "250000 100000\n")
    write(root / "other/cpu.max", "100000 100000\n")
    assert processors_module.granted_below(tmp_path) == 2.5
    write(tmp_path / "proc/self/cgroup", "9:cpuset:/x\n4:cpu,cpuacct:/docker/a:b\n1:name=systemd:/\n0::/\n")
    write(root / "cpu,cpuacct/docker/a:b/cpu.cfs_quota_us", "-1\n")
    write(root / "cpu,cpuacct/docker/a:b/cpu.cfs_period_us", "100000\n")
    assert processors_module.granted_below(tmp_path) == float("inf")
    # In a container the path is that of the host, and the group itself is at the top.
    write(root / "cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    write(root / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert processors_module.granted_below(tmp_path) == 3
    write(root / "cpu,cpuacct/cpu.cfs_quota_us", "damaged\n")
    assert processors_module.granted_below(tmp_path) == float("inf")


def test_a_control_group_limits_threads(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors_module, "granted", lambda: 1.9)
    monkeypatch.setattr(threads_module, "granted", lambda: 1.9)
    assert of.get_threads() == 1
    of.set_threads(4)
    assert threads_module._look(4).n == 1


def shares(gains, together, calls, alone=1000.0):
    """How many of so many calls are shared, where `together` tells what each takes (None: nobody came)."""
    count = 0
    for i in range(calls):
        if gains.rests():
            continue
        if gains.ask(100):
            count += 1
            took = together(i)
            gains.note_shared(1.2 * alone if took is None else took, took is not None)
        else:
            gains.note_alone(alone)
    return count / calls


def test_calls_are_shared_while_that_gains():
    assert shares(threads_module._Gains(), lambda i: 600.0, 10_000) > 0.9
    for together in (lambda i: 1000.0, lambda i: 950.0, lambda i: 5000.0, lambda i: None, lambda i: 500.0 if i % 3 else 9000.0):
        assert shares(threads_module._Gains(), together, 50_000) < 0.01
    # Now and then a call is late: that is no reason to do without.
    assert shares(threads_module._Gains(), lambda i: 600.0 if i % 300 else 5000.0, 20_000) > 0.85
    gains = threads_module._Gains()
    shares(gains, lambda i: 5000.0, 50_000)
    assert shares(gains, lambda i: 600.0, 20_000) > 0.5
    assert shares(gains, lambda i: 5000.0, 50_000) < 0.01


def test_a_busy_machine_is_looked_at_now_and_then():
    gains, looks = threads_module._Gains(), 0
    for _ in range(6400):
        if not gains.rests():
            if gains.ask(100):
                looks += 1
                gains.note_busy()
            gains.note_alone(1000.0)
    assert 0 < looks < 200
    assert shares(gains, lambda i: 600.0, 10_000) > 0.9


def test_short_calls_are_not_shared():
    assert shares(threads_module._Gains(), lambda i: 100.0, 10_000, alone=threads_module.WORTH / 100 - 1) < 0.01


SCRIPT = """
import atexit, os, sys, threading
import numpy as np
import {patch}
def early():
    print("early", of.solve(mdp).v[0] == value, flush=True)
atexit.register(early)
import opo_fast as of
sys.path.insert(0, {tests!r})
import test_threads
from strategies import random_model
look = test_threads.threads_module._look
test_threads.share_always()
# Whether the interpreter ends is what is asked here, not how busy the machine is.
test_threads.threads_module._look = look
test_threads.threads_module._load.running = lambda: 1
of.set_threads(2)
mdp = random_model(np.random.default_rng(3), [1, 40, 40], 3, "csr", density=0.5)
of.set_threads(1)
value = of.solve(mdp).v[0]
of.set_threads(2)
assert of.solve(mdp).v[0] == value
def late():
    print("late", of.solve(mdp).v[0] == value, test_threads.run_all(abs, [(-1,), (-2,)]), flush=True)
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
            assert test_threads.run_all(abs, [(-1,), (-2,)]) == [1, 2]
            time.sleep(0.002)
        print("ended", flush=True)
    threading.Thread(target=go_on).start()
    """
    assert run(body, tmp_path) == (0, ["ended", *AT_EXIT], "")


@together
def test_without_a_sleep_on_words_workers_take_naps(tmp_path):
    (tmp_path / "elsewhere.py").write_text("import platform\nplatform.machine = lambda: 'unknown'\n")
    body = """
    from opo_fast.kernels import _sync
    assert not _sync.KEEP
    # Compiled before workers are asked, who leave after a second without work.
    of.set_threads(1)
    assert test_threads.halved() == (test_threads.expected(), False)
    of.set_threads(2)
    assert test_threads.halved() == (test_threads.expected(), True)
    (worker,) = test_threads.threads_module._crew.workers
    worker.join(60)
    assert not worker.is_alive()
    assert test_threads.halved() == (test_threads.expected(), True)
    """
    assert run(body, tmp_path, "elsewhere", NUMBA_CACHE_DIR=str(tmp_path / "cache")) == (0, AT_EXIT, "")


def in_child(work):
    """Exit status of a forked child that does `work`; a child that is stuck is ended by a signal."""
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
    """While other threads use them without a pause."""
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
        with engine._lock:
            held.set()
            stop.wait(60)

    def check():
        # What another thread may have been in the middle of is not used.
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
    with engine._lock:
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
    # The thread that forks is the child's main one.
    forker = threading.Thread(target=lambda: statuses.append(in_child(check)))
    forker.start()
    forker.join()
    assert [*statuses, in_child(check)] == [0, 0]
    assert halved() == (expected(), True)
