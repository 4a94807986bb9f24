"""When threads are used: free processors, limits of control groups, and whether sharing saves time."""

from __future__ import annotations

import os
import threading

import pytest
from thread_cases import together

import opo_fast as of
from opo_fast._support import processors as processors_module
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_all


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
            # The state before the caller moved to this processor.
            threads_module._crew.gather(places._replace(n=2, usable=usable))
            (worker, *_) = threads_module._crew.workers
            assert os.sched_getaffinity(worker.native_id) == (usable - {here} or usable)
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
    # In a container the path is that of the host, but the group is mounted at the top.
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
    """The share of calls that are shared; `together(i)` is the time of the i-th shared call (None: no thread joined)."""
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
    for shared in (lambda i: 1000.0, lambda i: 950.0, lambda i: 5000.0, lambda i: None, lambda i: 500.0 if i % 3 else 9000.0):
        assert shares(threads_module._Gains(), shared, 50_000) < 0.01
    # Occasional slow calls do not stop the sharing.
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
