"""Folders of studies that were changed from outside: changed files are never trusted, and no command crashes or hangs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from study_cases import ROOT, bits, small
from typer.testing import CliRunner

import opo_fast as of
from opo_fast.cli.study import app
from opo_fast.study import Results, Store, StoreError, checkpoint, run_study
from opo_fast.study.progress import status
from opo_fast.study.runner import STOPPED

POSIX = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")
AGENTS = ("opo", "greedy")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study, to be copied; and its bits."""
    folder = tmp_path_factory.mktemp("folders") / "s"
    run_study(small(agents=AGENTS, format="npz"), folder)
    return folder, bits(folder)


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "s")


def again(folder, finished):
    """All commands work, and a further call of `run_study` completes the study."""
    for words in (
        ["status", str(folder), "--runs"],
        ["report", str(folder)],
        ["export", str(folder), str(folder / "table.csv"), "--summary"],
    ):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    summary = run_study(small(agents=AGENTS, format="npz"), folder)
    assert (summary.done, summary.failed) == (4, 0)
    assert bits(folder) == finished[1]
    return summary


BAD_LINES = [
    b"{",
    b"3",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b'{"id": 3, "file": [], "size": {}}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a": 1, "check": "0000000000000000"}',
    b', "check": "0123456789abcdef"}',
    b"",
]


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_of_the_index_ends_no_command(folder, finished, line):
    index = folder / "index.jsonl"
    whole = sorted(index.read_bytes().splitlines())
    index.write_bytes(b"\n".join([line, *whole[:2], line, *whole[2:], line]) + b"\n")
    again(folder, finished)
    assert sorted(index.read_bytes().splitlines()) == whole


@pytest.mark.parametrize("name", ["regret", "seconds", "gap_closed"])
def test_an_edited_number_in_the_index_is_never_shown(folder, finished, name):
    index = folder / "index.jsonl"
    lines = index.read_bytes().splitlines()
    meta = json.loads(lines[0])
    meta["summary"][name] = 0.125
    index.write_bytes(b"\n".join([json.dumps(meta).encode(), *lines[1:]]) + b"\n")
    stored = Results(folder).done[meta["id"]]["summary"][name]
    assert stored == Results(finished[0]).done[meta["id"]]["summary"][name] != 0.125
    again(folder, finished)


@pytest.mark.parametrize("what", ["meta", "column", "both"])
def test_an_edited_regret_in_a_run_file_is_found(folder, finished, what):
    path = sorted((folder / "runs").iterdir())[0]
    with np.load(path) as file:
        members = dict(file)
    if what in ("meta", "both"):
        meta = json.loads(str(members["opo_fast"]))
        meta["summary"]["regret"] = 0.125
        members["opo_fast"] = np.array(json.dumps(meta))
    if what in ("column", "both"):
        # The index only has the size of the file; an edit that keeps it is found when the file is read.
        members["cumulative_regret"] = 0.3 * members["cumulative_regret"] + 0.1
    np.savez_compressed(path, **members)
    results = Results(folder)
    run = next(run for run in results.runs if run.id == path.stem)
    assert run.id not in results.done
    assert any("checksum" in message for message in results.messages)
    with pytest.raises(of.OpoError, match="is not finished"):
        results.read(run)
    summary = again(folder, finished)
    assert any("put aside" in message for message in summary.messages)


ODD = [b"", b"{", b"3", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"episode": "x"}']
SIGN = {"host": "h", "pid": 1, "label": "l", "episode": 3, "episodes": 60, "started": 0.0, "updated": 0.0}
WRONG = {
    "host": 3, "pid": -1, "label": None, "episode": 61, "episodes": 0, "started": float("nan"), "updated": "now", "messages": 3,
}  # fmt: skip


def odd_signs():
    yield from ODD
    for name, value in WRONG.items():
        yield json.dumps({**SIGN, name: value}).encode()
        yield json.dumps({key: kept for key, kept in SIGN.items() if key != name}).encode()
    yield json.dumps({**SIGN, "pid": 10**30, "updated": 1e300, "started": -1e300}).encode()


def test_odd_files_among_the_signs_of_life_and_failures_say_nothing(folder, finished):
    ids = [path.stem for path in (folder / "runs").iterdir()]
    # For two unfinished runs, so that their signs and failures would count.
    for id in ids[:2]:
        (folder / "runs" / f"{id}.npz").unlink()
    store, planned = Store(folder), small(agents=AGENTS).runs()
    for number, text in enumerate(odd_signs()):
        for part in ("running", "failures"):
            for id in (*ids[:2], f"odd{number}"):
                (folder / part / f"{id}.json").write_bytes(text)
        now = status(store, planned)
        assert (now.planned, now.finished) == (4, 2)
        assert not now.failures
        assert all(sign["episodes"] == 60 for sign in [*now.under_way.values(), *now.stalled.values()])
        result = CliRunner().invoke(app, ["status", str(folder)], catch_exceptions=False)
        assert result.exit_code == 0
    again(folder, finished)


@POSIX
def test_pipes_and_folders_where_files_should_be_are_never_waited_for(folder, finished):
    ids = sorted(path.stem for path in (folder / "runs").iterdir())
    for part in ("running", "failures"):
        os.mkfifo(folder / part / "pipe.json")
        (folder / part / "folder.json").mkdir()
    os.mkfifo(folder / "runs" / "pipe.npz")
    (folder / "runs" / "folder.npz").mkdir()
    os.mkfifo(folder / "checkpoints" / f"{ids[0]}-5.ckpt")
    again(folder, finished)
    (folder / "index.jsonl").unlink()
    os.mkfifo(folder / "index.jsonl")
    assert len(Results(folder).done) == 4
    # A run file: it is reported, and the other runs are done.
    (folder / "index.jsonl").unlink()
    (folder / "runs" / f"{ids[0]}.npz").unlink()
    os.mkfifo(folder / "runs" / f"{ids[0]}.npz")
    summary = run_study(small(agents=AGENTS, format="npz"), folder)
    assert (summary.done, summary.failed) == (3, 1)
    (failure,) = Results(folder).failures.values()
    assert "is a named pipe: a plain file is needed" in failure["message"]
    (folder / "runs" / f"{ids[0]}.npz").unlink()
    again(folder, finished)


@POSIX
@pytest.mark.parametrize("name", ["study.json", "driver.json", "stop", "lock"])
def test_a_pipe_in_the_place_of_a_file_of_the_study_does_not_hang(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    result = CliRunner().invoke(app, ["status", str(folder)])
    assert result.exception is None or isinstance(result.exception, (SystemExit, of.OpoError))
    try:
        run_study(small(agents=AGENTS, format="npz"), folder)
    except of.OpoError as error:
        assert "pipe" in str(error)  # noqa: PT017


@pytest.mark.parametrize("text", [b"[]", b"3", b"{}", b'{"study": 3}', b'{"study": {"name": 3}}', b"[" * 100_000, b"\xff"])
def test_a_study_json_of_any_content_is_a_clear_error_or_restored(folder, text):
    (folder / "study.json").write_bytes(text)
    with pytest.raises(StoreError, match=r"study\.json' is damaged"):
        Results(folder)
    try:
        assert run_study(small(agents=AGENTS, format="npz"), folder).done == 4
    except StoreError as error:
        assert "holds the study 3, not 'small'" in str(error)  # noqa: PT017


CHANGES = {
    "episode": lambda s: s["recorder"]["simulation"].update(episode="x"),
    "far": lambda s: s["recorder"]["simulation"].update(episode=10**9),
    "negative": lambda s: s["recorder"]["simulation"].update(episode=-1),
    "seconds": lambda s: s["recorder"]["simulation"].update(seconds="now"),
    "no agent": lambda s: s["recorder"]["simulation"].pop("agent"),
    "no columns": lambda s: s["recorder"]["simulation"].pop("columns"),
    "short column": lambda s: s["recorder"]["simulation"]["columns"].update(value=np.zeros(3)),
    "other column": lambda s: s["recorder"]["simulation"]["columns"].update(value="x"),
    "agent of another episode": lambda s: s["recorder"]["simulation"]["agent"].update(episode=7),
    "measured": lambda s: s["recorder"].update(measured={"seconds": np.zeros(2)}),
    "no recorder": lambda s: s.pop("recorder"),
    "recorder": lambda s: s.update(recorder=[1, 2]),
    "simulation": lambda s: s["recorder"].update(simulation=None),
    "resumed": lambda s: s.update(resumed="often"),
    "record": lambda s: s.update(record=None),
}


@pytest.fixture(scope="module")
def half(tmp_path_factory, finished):
    """The checkpoint of a run at episode 20, and the id of the run."""
    from opo_fast.runs.simulation import Simulation
    from opo_fast.study.recorder import Recorder

    study = small(agents=AGENTS)
    run = study.runs()[0]
    env = of.envs.make("combination-lock", horizon=3)
    recorder = Recorder(Simulation(env, of.agents.make("opo", env, episodes=60, seed=0), 60, 0), study.record)
    for _ in range(20):
        recorder.step()
    record = {"every": study.record.every, "measures": list(study.record.measures)}
    folder = tmp_path_factory.mktemp("half")
    checkpoint.write(folder, run.id, 20, {"version": of.__version__, "record": record, "resumed": 0, "recorder": recorder.state()})
    return folder / f"{run.id}-20.ckpt", run.id


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_checkpoint_of_any_content_is_used_whole_or_ignored(folder, finished, half, change):
    path, id = half
    state, _ = checkpoint.latest(path.parent, id)
    if change is not None:
        CHANGES[change](state)
    checkpoint.write(folder / "checkpoints", id, 20, state)
    (folder / "runs" / f"{id}.npz").unlink()
    summary = again(folder, finished)
    assert Results(folder).done[id]["resumed"] == (change is None)
    assert len(summary.messages) == (change is not None)
    assert all("is ignored, and the run begins again: " in message for message in summary.messages)


# -- several processes, clocks, locks --------------------------------------------------------------------------------------------

DRIVE = """
import sys
sys.path.insert(0, {root!r})
from study_cases import small
from opo_fast import OpoError
from opo_fast.study import run_study

if __name__ == "__main__":
    try:
        print(run_study(small(agents=("opo", "greedy"), seeds=10, format="npz"), {folder!r}, progress=False).done)
    except OpoError as error:
        print("refused:", error)
"""


def test_two_processes_on_one_folder_lose_nothing_and_do_nothing_twice(tmp_path):
    (tmp_path / "drive.py").write_text(DRIVE.format(root=str(ROOT), folder=str(tmp_path / "s")))
    processes = [
        subprocess.Popen([sys.executable, str(tmp_path / "drive.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outs = []
    for process in processes:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        outs.append(out.strip())
    # One process drives the study; the others are refused, or find it finished when they get the lock.
    assert "20" in outs
    assert all(out == "20" or "is being run by another process" in out for out in outs)
    names = [json.loads(line)["file"] for line in (tmp_path / "s" / "index.jsonl").read_bytes().splitlines()]
    assert len(names) == len(set(names)) == 20
    run_study(small(agents=AGENTS, seeds=10, format="npz"), tmp_path / "whole")
    assert bits(tmp_path / "s") == bits(tmp_path / "whole")


def test_the_lock_of_a_dead_process_is_ignored(folder, finished):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    (folder / "driver.json").write_text(json.dumps({"host": os.uname().nodename, "pid": int(dead.stdout)}))
    (folder / "lock").write_text("somebody")
    assert not status(Store(folder), small(agents=AGENTS).runs()).driven
    again(folder, finished)
    # Another process may have the number of the dead one by now.
    (folder / "driver.json").write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid()}))
    assert not status(Store(folder), small(agents=AGENTS).runs()).driven


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_goes_without(folder, finished, monkeypatch, number):
    import filelock

    def acquire(self, *_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    again(folder, finished)


def test_reading_the_status_never_keeps_a_study_from_starting(folder, finished):
    end = threading.Event()

    def ask():
        while not end.is_set():
            Store(folder).busy()

    thread = threading.Thread(target=ask)
    (folder / "driver.json").write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid()}))
    thread.start()
    try:
        for _ in range(5):
            assert run_study(small(agents=AGENTS, format="npz"), folder).done == 4
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_loses_nothing(folder, finished, monkeypatch, jump):
    real, count = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + jump * (next(count) % 2))
    for path in (folder / "runs").iterdir():
        path.unlink()
    mine = folder / "runs" / f".x.npz~{os.uname().nodename}~{os.getpid()}~1.part"
    mine.write_text("a file that a process of this machine is writing")
    summary = run_study(small(agents=AGENTS, format="npz"), folder)
    assert (summary.done, summary.failed) == (4, 0)
    assert bits(folder) == finished[1]
    assert mine.exists()
    left = status(Store(folder), small(agents=AGENTS).runs()).seconds_left
    assert left is None or left >= 0


def test_stopping_is_forgotten_after_a_study(folder):
    run_study(small(agents=AGENTS, format="npz"), folder)
    assert not STOPPED.is_set()
