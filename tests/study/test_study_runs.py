"""Runs of a study: the same bits after interruptions and with every scheduler."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from study_cases import ROOT, bits, left_over, small

import opo_fast as of
from opo_fast.study import Results, Store, run_study
from opo_fast.study.progress import duration, seconds_left, status

GRID = {
    "environments": [
        {"name": "combination-lock", "label": "lock", "options": {"horizon": 3}},
        {"name": "random-finite", "options": {"horizon": 3}},
        {"name": "study_cases:Endless", "label": "endless"},
    ],
    "agents": [{"name": "opo", "grid": {"bonus_scale": [2e-6, 1e-5]}}, "greedy", "uniform"],
}
needs_joblib = pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib (extra 'study') is not installed")


def direct(run):
    """The result of `simulate` for a run, without a study."""
    env = of.envs.make(run.environment.name, **run.environment.options)
    agent = of.agents.make(run.agent.name, env, episodes=run.episodes, seed=run.seed, **run.agent.options)
    return of.simulate(env, agent, run.episodes, run.seed, progress=False)


def test_a_study_records_what_simulate_gives(tmp_path):
    study = small(episodes=75, record={"every": 10, "measures": ["expected_regret", "saturation", "model_switches"]})
    summary = run_study(study, tmp_path / "s")
    assert (summary.planned, summary.done, summary.failed, summary.stopped, summary.messages) == (4, 4, 0, False, ())
    results = Results(tmp_path / "s")
    for run in results.runs:
        stored, result = results.read(run), direct(run)
        assert stored["episode"].tolist() == [10, 20, 30, 40, 50, 60, 70, 75]
        at = stored["episode"] - 1
        assert np.array_equal(stored["value"], result.value[at])
        assert np.array_equal(stored["cumulative_regret"], result.cumulative_regret[at])
        assert np.array_equal(stored["saturation"], result.saturation[at], equal_nan=True)
        changes = sum(
            (result.loss_fit[i], result.dynamics_fit[i]) != (result.loss_fit[i - 1], result.dynamics_fit[i - 1]) for i in range(1, 75)
        )
        assert stored["model_switches"][-1] == changes
        assert results.done[run.id]["summary"]["regret"] == result.cumulative_regret[-1]
    assert not left_over(tmp_path / "s")


def test_the_expected_regret_is_that_of_the_coming_policy_over_all_contexts(tmp_path):
    run_study(small(seeds=1, episodes=12, agents=["opo"], record={"every": 4, "measures": ["expected_regret"]}), tmp_path / "s")
    results = Results(tmp_path / "s")
    run = results.runs[0]
    env = of.envs.make("combination-lock", horizon=3)
    agent = of.agents.make("opo", env, episodes=12, seed=0)
    simulation = of.simulate  # The same loop by hand, one episode at a time.
    from opo_fast.runs.simulation import Simulation

    simulation = Simulation(env, agent, 12, 0)
    expected = []
    for t in range(12):
        if t in (3, 7, 11):
            gaps = [of.evaluate(env.mdp(c), agent.policy(c)).v[0] - of.solve(env.mdp(c)).v[0] for c in env.contexts]
            expected.append(float(np.dot(env.probabilities, gaps)))
        simulation.step()
    assert results.read(run)["expected_regret"] == pytest.approx(expected, rel=1e-13)


def test_extending_a_study_reruns_nothing(tmp_path):
    folder = tmp_path / "s"
    run_study(small(seeds=1, agents=["e-uc3rl"]), folder)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    # The run of the first study is the point 3e-5 of the grid, which is the practical setting.
    summary = run_study(small(seeds=[0, 5], agents=[{"name": "e-uc3rl", "grid": {"bonus_scale": [1e-4, 3e-5]}}, "greedy"]), folder)
    assert (summary.planned, summary.done) == (6, 6)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    assert len(after) == 6
    assert before.items() <= after.items()


def test_recording_more_runs_again_and_recording_less_does_not(tmp_path):
    folder = tmp_path / "s"
    study = {"seeds": 1, "agents": ["opo"]}
    run_study(small(**study, record={"every": 5}), folder)
    path = next((folder / "runs").iterdir())
    first = path.stat().st_mtime_ns
    run_study(small(**study, record={"every": 10, "measures": ["regret"]}), folder)
    assert path.stat().st_mtime_ns == first
    run_study(small(**study, record={"every": 5, "measures": ["expected_regret"]}), folder)
    assert path.stat().st_mtime_ns != first
    assert "expected_regret" in Results(folder).read(Results(folder).runs[0]).columns


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Bits of the grid run without any interruption, in this process."""
    folder = tmp_path_factory.mktemp("whole") / "s"
    summary = run_study(small(**GRID), folder)
    assert summary.done == summary.planned == 24
    return bits(folder)


@needs_joblib
@pytest.mark.parametrize("workers", [2, 3])
def test_loky_gives_the_same_bits(tmp_path, whole, workers):
    assert run_study(small(**GRID, format="npz"), tmp_path / "s", workers=workers).done == 24
    assert bits(tmp_path / "s") == whole
    assert not left_over(tmp_path / "s")


SCRIPT = """
import signal
import sys
# A shell starts background jobs with SIGINT ignored, and a study does not change that.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {root!r})
from study_cases import small
from opo_fast.study import run_study
from test_study_runs import GRID

if __name__ == "__main__":
    run_study(small(**GRID, episodes=60, checkpoint={{"episodes": 7}}), {folder!r}, workers={workers})
"""


def start(tmp_path, folder, workers=1, script=SCRIPT):
    path = tmp_path / "drive.py"
    path.write_text(script.format(root=str(ROOT), folder=str(folder), workers=workers))
    with open(tmp_path / "out", "w") as out, open(tmp_path / "errors", "w") as errors:
        return subprocess.Popen([sys.executable, str(path)], stdout=out, stderr=errors)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def finished(folder):
    return len(list((folder / "runs").glob("[!.]*")))


@needs_joblib
@pytest.mark.parametrize(("workers", "kills"), [(1, 3), (2, 2)])
def test_a_study_killed_at_random_moments_ends_with_the_same_bits(tmp_path, whole, workers, kills):
    rng = random.Random(workers)
    folder = tmp_path / "s"
    killed = 0
    for _ in range(kills):
        done = finished(folder)
        process = start(tmp_path, folder, workers)
        while finished(folder) == done and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        killed += process.wait(timeout=60) != 0
        assert not Results(folder).messages
    assert killed > 0
    wait_for(lambda: not status(Store(folder), []).driven)
    summary = run_study(small(**GRID), folder)
    assert summary.done == 24
    assert bits(folder) == whole
    assert not left_over(folder)


STOPPED = SCRIPT.replace("episodes=60", "episodes=60, seeds=40").replace("    run_study", "    out = run_study")
STOPPED += "    print(out.stopped, out.done)\n"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_loses_nothing(tmp_path, whole, number):
    folder = tmp_path / "s"
    process = start(tmp_path, folder, 1, STOPPED)
    wait_for(lambda: finished(folder) > 5)
    process.send_signal(number)
    code = process.wait(timeout=60)
    errors = (tmp_path / "errors").read_text()
    assert code == 0, errors
    stopped, done = (tmp_path / "out").read_text().split()
    assert stopped == "True"
    assert "write checkpoints" in errors
    assert not (folder / "stop").exists()
    assert len(Results(folder).done) == int(done) < 12 * 40
    assert run_study(small(**GRID), folder).done == 24
    assert bits(folder) == whole


@needs_joblib
def test_stopped_workers_leave_checkpoints_that_are_used(tmp_path):
    study = small(episodes=100_000, seeds=1, checkpoint={"seconds": 3600})
    folder = tmp_path / "s"
    script = SCRIPT.replace(
        '**GRID, episodes=60, checkpoint={{"episodes": 7}}', 'episodes=100_000, seeds=1, checkpoint={{"seconds": 3600}}'
    )
    process = start(tmp_path, folder, 2, script)
    store = Store(folder)
    wait_for(lambda: sum(sign["episode"] > 100 for sign in store.under_way().values()) == 2)
    now = status(store, study.runs())
    assert (now.planned, now.finished, now.waiting, now.driven) == (2, 0, 0, True)
    assert now.seconds_left > 0
    assert {sign["label"] for sign in now.under_way.values()} == {"lock / opo / seed 0", "lock / greedy / seed 0"}
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    kept = {path.stem.rpartition("-")[0]: int(path.stem.rpartition("-")[2]) for path in (folder / "checkpoints").iterdir()}
    assert kept.keys() == {run.id for run in study.runs()}
    assert all(episode > 100 for episode in kept.values())
    assert not status(store, study.runs()).under_way


def test_a_second_driver_is_refused(tmp_path):
    study = small(seeds=1)
    folder = tmp_path / "s"
    run_study(study, folder)
    store = Store(folder)
    with store.locked(), pytest.raises(of.OpoError, match=rf"is being run by another process \(.*process {os.getpid()}\)"):
        run_study(study, folder)


@pytest.mark.parametrize("threads", [None, 1])
def test_threads_of_this_process_are_left_alone(tmp_path, set_threads, threads):
    set_threads(3)
    run_study(small(seeds=1, agents=["uniform"]), tmp_path / "s", threads=threads)
    assert of.get_threads() == 3


def test_the_time_left_is_that_of_like_runs_shared_among_the_workers():
    runs = small(seeds=3).runs()
    assert [run.agent.label for run in runs] == ["opo", "greedy"] * 3
    done = {runs[0].id: {"summary": {"seconds": 100.0}}, runs[1].id: {"summary": {"seconds": 10.0}}}
    signs = {runs[2].id: {"episode": 45, "started": 0.0}, runs[3].id: {"episode": 0, "started": 0.0}}
    # Two running runs have a quarter of 100 s and all of 10 s left, one waiting run 100 s, and a failed run is not repeated.
    left = seconds_left(runs, done, set(done), {runs[5].id: {}}, signs)
    assert left == pytest.approx((25 + 10 + 100) / 2)
    assert seconds_left(runs, {}, set(), {}, {}) is None
    assert [duration(x) for x in (None, 0.4, 61, 3725)] == ["?", "0:00", "1:01", "1:02:05"]


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals of POSIX")
def test_a_terminal_shows_bars_and_failures_as_they_happen(tmp_path):
    import pty

    (tmp_path / "drive.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom study_cases import small\nfrom opo_fast.study import run_study\n"
        "agents = ['opo', {'name': 'study_cases:broken', 'label': 'bad', 'options': {'at': 3}}]\n"
        f"run_study(small(seeds=1, agents=agents), {str(tmp_path / 's')!r})\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "drive.py")], stderr=theirs, env={**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "failed: lock / bad / seed 0, episode 2: RuntimeError: the oracle gave up in episode 3" in " ".join(text.split())
    assert "1/2" in text


@needs_joblib
def test_workers_share_out_the_processors(tmp_path):
    source = (
        "import json, os, pathlib\nimport opo_fast as of\nfrom study_cases import opo\n"
        f"def agent(env, episodes, seed):\n    pathlib.Path({str(tmp_path)!r}, f'threads{{seed}}').write_text(\n"
        "        json.dumps([of.get_threads(), os.environ.get('NUMBA_NUM_THREADS')]))\n    return opo(env, episodes)\n"
    )
    (tmp_path / "thread_agent.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{source}")
    study = small(agents=["thread_agent:agent"])
    study.root = pathlib.Path(tmp_path)
    assert run_study(study, tmp_path / "s", workers=2).failed == 0
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for seed in range(2):
        assert (tmp_path / f"threads{seed}").read_text() == f'[{share}, "{share}"]'
