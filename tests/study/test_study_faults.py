"""Faults injected into studies: each ends in a clear message, and what was stored before is intact."""

from __future__ import annotations

import builtins
import errno
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest
from study_cases import ROOT, bits, left_over, small

import opo_fast as of
from opo_fast.study import Results, Store, StoreError, checkpoint, run_study

needs_joblib = pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib (extra 'study') is not installed")
FORMATS = [
    "npz",
    pytest.param("parquet", marks=pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")),
]
GOOD = ("opo", "greedy")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Bits of the good agents' runs."""
    folder = tmp_path_factory.mktemp("good") / "s"
    run_study(small(agents=GOOD), folder)
    return bits(folder)


def check_intact(folder, good):
    """The good runs are all there, and nothing is half-written."""
    assert bits(folder) == good
    assert not [name for name in left_over(folder) if not name.endswith(".ckpt")]


# -- what runs do --------------------------------------------------------------------------------------------------------------

FAILING = [
    ({"name": "study_cases:broken", "options": {"at": 40}}, 39, r"RuntimeError: the oracle gave up in episode 40"),
    ({"name": "study_cases:nothing"}, 0, r"'study_cases:nothing': the module 'study_cases' has no 'nothing'"),
    ({"name": "no_such_module:agent"}, 0, r"'no_such_module:agent': there is no module 'no_such_module', neither installed nor in"),
    ({"name": "opo", "options": {"bonus_scal": 1.0}}, 0, r"bonus_scal is no option of agent 'opo'"),
    ({"name": "opo", "options": {"bonus_scale": -1.0}}, 0, r"bonus_scale is -1\.0"),
    ({"name": "uccb"}, 0, r"."),
    ({"name": "study_cases:crashing"}, 0, r"OSError"),
]


@pytest.mark.parametrize(("agent", "episode", "message"), FAILING, ids=[f"{agent['name']}-{i}" for i, (agent, _, _) in enumerate(FAILING)])
def test_a_failed_run_never_stops_the_study(tmp_path, good, agent, episode, message):
    folder = tmp_path / "s"
    summary = run_study(small(agents=[{**agent, "label": "bad"}, *GOOD]), folder)
    assert (summary.planned, summary.done, summary.failed, summary.stopped) == (6, 4, 2, False)
    check_intact(folder, good)
    failures = Results(folder).failures
    assert len(failures) == 2
    for failure in failures.values():
        assert (failure["episode"], failure["agent"]["label"]) == (episode, "bad")
        assert failure["traceback"].startswith("Traceback")
        assert re.search(message, failure["message"]), failure["message"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"name": "study_cases:crashing"}, r"OSError: no data here"),
        ({"name": "study_cases:dying"}, r"ZeroDivisionError: division by zero in the simulator"),
        ({"name": "combination-lock", "options": {"horizn": 3}}, r"combination-lock has no option 'horizn'"),
        ({"name": "study_cases:Stateless", "options": {"env": None}}, r"Stateless"),
    ],
)
def test_a_crashing_environment_fails_its_own_runs(tmp_path, good, environment, message):
    folder = tmp_path / "s"
    lock = {"name": "combination-lock", "label": "lock", "options": {"horizon": 3}}
    summary = run_study(small(agents=GOOD, environments=[{**environment, "label": "bad"}, lock]), folder)
    assert (summary.done, summary.failed) == (4, 4)
    check_intact(folder, good)
    assert all(re.search(message, failure["message"]) for failure in Results(folder).failures.values())


def test_the_expected_regret_of_endless_contexts_is_refused(tmp_path):
    environments = [{"name": "random-linear", "options": {"n_contexts": None, "horizon": 2}}]
    run_study(small(seeds=1, agents=["uniform"], environments=environments, record={"measures": ["expected_regret"]}), tmp_path / "s")
    (failure,) = Results(tmp_path / "s").failures.values()
    assert "needs an environment with finitely many contexts" in failure["message"]


def test_failed_runs_are_tried_again_from_their_checkpoint_unless_told_not_to(tmp_path):
    folder = tmp_path / "s"
    source = "from study_cases import Broken, opo\n\ndef agent(env, episodes):\n    a = opo(env, episodes, Broken)\n"
    source += "    a.at = {}\n    return a\n"
    (tmp_path / "mended_agent.py").write_text(source.format(40))
    study = small(agents=["mended_agent:agent"], seeds=1, checkpoint={"episodes": 15})
    study.root = tmp_path
    assert run_study(study, folder).failed == 1
    assert [path.name.rpartition("-")[2] for path in sorted((folder / "checkpoints").iterdir())] == ["15.ckpt", "30.ckpt"]
    (tmp_path / "mended_agent.py").write_text(source.format(1000))
    assert run_study(study, folder, retry_failed=False).failed == 1
    # The source of the agent has changed: its checkpoint is used where that is asked for.
    summary = run_study(study, folder, changed="keep")
    assert (summary.done, summary.failed) == (1, 0)
    assert next(iter(Results(folder).done.values()))["resumed"] == 1
    assert not Results(folder).failures


def test_an_agent_without_state_runs_and_says_so(tmp_path):
    summary = run_study(small(agents=["study_cases:stateless"], seeds=1, checkpoint={"episodes": 10}), tmp_path / "s")
    assert (summary.done, summary.failed) == (1, 0)
    (message,) = summary.messages
    assert "lock / study_cases:stateless / seed 0 has no checkpoints, and begins again if it is interrupted" in message
    assert "Stateless without state() and restore(state)" in message


@needs_joblib
def test_a_killed_worker_is_found_out_and_the_others_finish(tmp_path, good):
    folder = tmp_path / "s"
    killer = {"name": "study_cases:killer", "label": "bad"}
    summary = run_study(small(agents=[killer, "opo", "greedy"], seeds=1), folder, workers=2)
    assert (summary.planned, summary.done, summary.failed) == (3, 2, 1)
    check_intact(folder, {key: value for key, value in good.items() if key[2] == 0})
    (failure,) = Results(folder).failures.values()
    assert failure["agent"]["label"] == "bad"
    assert "the worker process died (killed, out of memory, or crashed in native code)" in failure["message"]


# -- what disks do -------------------------------------------------------------------------------------------------------------


def fail_writing(monkeypatch, number, matching):
    """Every write to a file whose name contains `matching` fails as the system would."""
    real = os.fsync

    def fsync(handle):
        if matching in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full (or a quota is used up); free some space. Nothing that was stored before is lost: resume the"),
        (errno.EDQUOT, "the disk is full (or a quota is used up)"),
        (errno.EROFS, "the folder is read-only for this user"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_run_that_cannot_be_stored_says_why(tmp_path, monkeypatch, good, format, number, message):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD, format=format), folder)
    with monkeypatch.context() as patch:
        fail_writing(patch, number, f".{format}")
        summary = run_study(small(agents=[*GOOD, "uniform"], format=format), folder)
    assert (summary.done, summary.failed) == (4, 2)
    assert all(message in failure["message"] for failure in Results(folder).failures.values())
    check_intact(folder, good)
    assert run_study(small(agents=[*GOOD, "uniform"], format=format), folder).done == 6


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_checkpoint_that_cannot_be_stored_ends_its_run_alone(tmp_path, monkeypatch, good):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD), folder)
    bad = {"name": "opo", "label": "long", "options": {"eta_scale": 3}}
    with monkeypatch.context() as patch:
        fail_writing(patch, errno.ENOSPC, ".ckpt")
        summary = run_study(small(agents=[*GOOD, bad], checkpoint={"episodes": 20}), folder)
    assert (summary.done, summary.failed) == (4, 2)
    assert all("checkpoints" in f["message"] and "disk is full" in f["message"] for f in Results(folder).failures.values())
    check_intact(folder, good)
    assert run_study(small(agents=[*GOOD, bad]), folder).done == 6


def test_a_disk_that_is_full_for_failures_too_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "s"
    run_study(small(agents=["uniform"], seeds=1), folder)

    replace = os.replace

    def full(source, target):
        if pathlib.Path(target).parent.name in ("runs", "failures"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        summary = run_study(small(agents=["uniform"], seeds=2), folder)
    assert (summary.done, summary.failed) == (1, 0)
    (message,) = summary.messages
    assert message.startswith("lock / uniform / seed 1: ")
    assert message.count("the disk is full") == 2
    assert not [name for name in left_over(folder) if name.endswith(".part")]
    assert run_study(small(agents=["uniform"], seeds=2), folder).done == 2


def mounted(folder, *options):
    """A small file system of its own, or a skip where this user may not mount one."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path):
    """A disk of 256 kB."""
    folder = tmp_path / "disk"
    mounted(folder, "size=256k")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def fill(path):
    """Write to `path` until nothing more goes."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(handle, b"0" * 4096):
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(handle)


def test_a_disk_that_is_really_full(disk, good):
    run_study(small(agents=GOOD), disk / "s")
    filler = disk / "filler"
    fill(filler)
    try:
        summary = run_study(small(agents=[*GOOD, "uniform"]), disk / "s")
        assert summary.done == 4
        told = [*summary.messages, *(failure["message"] for failure in Results(disk / "s").failures.values())]
    except StoreError as error:
        told = [str(error)]
    assert any(
        "the disk is full (or a quota is used up); free some space. Nothing that was stored before is lost: resume the" in text
        for text in told
    )
    filler.unlink()
    check_intact(disk / "s", good)
    assert run_study(small(agents=[*GOOD, "uniform"]), disk / "s").done == 6


def test_a_disk_that_is_really_read_only(disk, good):
    run_study(small(agents=GOOD), disk / "s")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot be written: the folder is read-only for this user; make it writable, or name another"):
        run_study(small(agents=[*GOOD, "uniform"]), disk / "s")
    with pytest.raises(StoreError, match=r"cannot be written: the folder is read-only"):
        run_study(small(agents=GOOD), disk / "s")
    with pytest.raises(StoreError, match=r"cannot be made: the folder is read-only"):
        run_study(small(agents=GOOD), disk / "other")
    assert bits(disk / "s") == good


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user (root)")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o500)
    with pytest.raises(StoreError, match="the folder is read-only for this user"):
        run_study(small(), tmp_path / "s")


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "s").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made: something that is not a folder has that name"):
        run_study(small(), tmp_path / "s")


# -- what is damaged -----------------------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("damage", [cut, empty])
def test_a_truncated_run_file_is_told_put_aside_and_run_again(tmp_path, good, format, damage):
    folder = tmp_path / "s"
    study = small(agents=GOOD, format=format)
    run_study(study, folder)
    victim = sorted(path for path in (folder / "runs").iterdir())[0]
    damage(victim)
    results = Results(folder)
    assert len(results.done) == 3
    assert len(results.messages) == 1
    assert victim.name in results.messages[0]
    assert "is damaged" in results.messages[0]
    summary = run_study(study, folder)
    assert summary.done == 4
    assert f"put aside as '{victim.name}.damaged' and its run is done again" in summary.messages[0]
    check_intact(folder, good)


@pytest.mark.parametrize("format", FORMATS)
def test_a_wrong_byte_is_found_when_a_run_is_read_and_never_changes_a_number(tmp_path, good, format):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD, format=format), folder)
    results = Results(folder)
    victim = sorted((folder / "runs").iterdir())[0]
    run = next(run for run in results.runs if run.id == victim.stem)
    whole, stored = victim.read_bytes(), results.read(run)
    messages = []
    for at in range(3, len(whole), len(whole) // 200):
        data = bytearray(whole)
        data[at] ^= 0x10
        victim.write_bytes(bytes(data))
        try:
            read = results.read(run)
        except StoreError as error:
            messages.append(str(error))
        else:
            assert read.meta == stored.meta
            assert read.columns.keys() == stored.columns.keys()
            assert all(read[name].tobytes() == column.tobytes() for name, column in stored.columns.items())
    assert len(messages) > 20
    assert all(f"the run file {str(victim)!r} is damaged" in message for message in messages)
    victim.write_bytes(whole[:-100] + bytes(100))
    (folder / "index.jsonl").unlink()
    summary = run_study(small(agents=GOOD, format=format), folder)
    assert "put aside" in summary.messages[0]
    check_intact(folder, good)


def interrupted(folder, episodes=(20, 40)):
    """A study with checkpoints of one run and no result; returns the run's id and its bits."""
    study = small(agents=["opo"], seeds=1)
    run_study(study, folder.with_name("whole"))
    from opo_fast.runs.simulation import Simulation

    store = Store(folder)
    store.prepare(study)
    (run,) = study.runs()
    env = of.envs.make("combination-lock", horizon=3)
    simulation = Simulation(env, of.agents.make("opo", env, episodes=60, seed=0), 60, 0)
    for episode in episodes:
        while simulation.episode < episode:
            simulation.step()
        recorder = {"simulation": simulation.state(), "measured": {}}
        record = {"every": study.record.every, "measures": list(study.record.measures)}
        checkpoint.write(
            store.checkpoints, run.id, episode, {"version": of.__version__, "record": record, "resumed": 0, "recorder": recorder}
        )
    return study, run.id, bits(folder.with_name("whole"))


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, damage):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    damage(folder / "checkpoints" / f"{id}-40.ckpt")
    state, messages = checkpoint.latest(folder / "checkpoints", id)
    assert state["recorder"]["simulation"]["episode"] == 20
    assert len(messages) == 1
    assert f"{id}-40.ckpt' is not a checkpoint, or is damaged" in messages[0]
    summary = run_study(study, folder)
    assert (summary.done, summary.failed) == (1, 0)
    assert bits(folder) == whole


def test_a_study_tells_of_a_damaged_checkpoint(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    flip(folder / "checkpoints" / f"{id}-40.ckpt")
    summary = run_study(study, folder)
    assert "' is not a checkpoint, or is damaged" in summary.messages[0]
    assert next(iter(Results(folder).done.values()))["resumed"] == 1
    assert bits(folder) == whole


def test_a_run_whose_checkpoints_are_all_damaged_starts_anew(tmp_path):
    folder = tmp_path / "s"
    study, _, whole = interrupted(folder)
    for path in (folder / "checkpoints").iterdir():
        flip(path)
    summary = run_study(study, folder)
    assert len(summary.messages) == 2
    assert next(iter(Results(folder).done.values()))["resumed"] == 0
    assert bits(folder) == whole


def test_a_checkpoint_of_another_version_is_left_aside(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    state, _ = checkpoint.latest(folder / "checkpoints", id)
    checkpoint.write(folder / "checkpoints", id, 41, {**state, "version": "0.0.1"})
    summary = run_study(study, folder)
    assert f"begins again: it was written by opo_fast 0.0.1, and this is {of.__version__}" in summary.messages[0]
    assert bits(folder) == whole


def test_a_checkpoint_that_does_not_fit_is_left_aside(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    state, _ = checkpoint.latest(folder / "checkpoints", id)
    state["recorder"]["simulation"]["agent"]["settings"]["n_actions"] = 7
    checkpoint.write(folder / "checkpoints", id, 41, state)
    summary = run_study(study, folder)
    assert "begins again: state belongs to an agent whose n_actions is 7" in summary.messages[0]
    assert bits(folder) == whole


def test_a_damaged_index_is_made_anew(tmp_path, good):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD), folder)
    whole = sorted((folder / "index.jsonl").read_bytes().splitlines())
    for text in (b"", b"\xff\xfe{", b"\n".join(whole)[:-40], b'{"id": 3}\n[]\n' + whole[0] + b"\n"):
        (folder / "index.jsonl").write_bytes(text)
        assert len(Results(folder).done) == 4
        run_study(small(agents=GOOD), folder)
        assert sorted((folder / "index.jsonl").read_bytes().splitlines()) == whole
    check_intact(folder, good)


def test_a_damaged_study_json_is_written_anew_from_the_file(tmp_path, good):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD), folder)
    (folder / "study.json").write_text("{")
    with pytest.raises(StoreError, match=r"study\.json' is damaged .*: run the study file again"):
        Results(folder)
    assert run_study(small(agents=GOOD), folder).done == 4
    check_intact(folder, good)


def test_folders_that_are_no_studies_and_foreign_ones_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"is not the folder of a study \(it has no study\.json\)"):
        Results(tmp_path)
    run_study(small("one", agents=["uniform"], seeds=1), tmp_path / "s")
    with pytest.raises(StoreError, match=r"holds the study 'one', not 'two': name another folder with --out"):
        run_study(small("two", agents=["uniform"], seeds=1), tmp_path / "s")


def test_what_dead_processes_left_behind_is_removed_and_the_rest_kept(tmp_path, good):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD), folder)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    host = socket.gethostname()
    gone = folder / "runs" / f".x.npz~{host}~{dead}~1.part"
    mine = folder / "runs" / f".y.npz~{host}~{os.getpid()}~1.part"
    for path in (gone, mine):
        path.write_text("half")
    sign = {"host": host, "pid": int(dead), "label": "l", "episode": 3, "episodes": 60, "started": 0.0, "updated": time.time()}
    id = Results(folder).runs[0].id
    (folder / "running" / f"{id}.json").write_text(json.dumps(sign))
    (folder / "stop").touch()
    summary = run_study(small(agents=GOOD), folder)
    assert (summary.done, summary.stopped) == (4, False)
    assert not gone.exists()
    assert mine.exists()
    mine.unlink()
    check_intact(folder, good)


def test_a_process_killed_right_after_storing_a_run_leaves_nothing_for_good(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    kept = {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()}
    run_study(study, folder)
    for name, data in kept.items():
        (folder / "checkpoints" / name).write_bytes(data)
    (folder / "failures" / f"{id}.json").write_text("{}")
    assert run_study(study, folder).failed == 0
    assert not list((folder / "checkpoints").iterdir())
    assert not list((folder / "failures").iterdir())
    assert bits(folder) == whole


# -- what is missing -----------------------------------------------------------------------------------------------------------


def hide(monkeypatch, *packages):
    """Make packages look as if they were not installed."""
    real_find, real_import = importlib.util.find_spec, builtins.__import__

    def find(name, package=None):
        return None if name.split(".")[0] in packages else real_find(name, package)

    def load(name, *arguments, **options):
        if name.split(".")[0] in packages:
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(builtins, "__import__", load)


def test_without_pyarrow_npz_is_the_default_and_parquet_is_refused(tmp_path, monkeypatch, good):
    hide(monkeypatch, "pyarrow")
    with pytest.raises(of.OpoError, match=r'parquet files need pyarrow: pip install .*\[parquet\]\', or set format = "npz"'):
        run_study(small(format="parquet"), tmp_path / "s")
    run_study(small(agents=GOOD), tmp_path / "s")
    assert {path.suffix for path in (tmp_path / "s" / "runs").iterdir()} == {".npz"}
    check_intact(tmp_path / "s", good)


@pytest.mark.parametrize(
    ("package", "scheduler", "extra"),
    [("joblib", "loky", "study"), ("distributed", "dask", "dask"), ("ray", "ray", "ray"), ("joblib", "ray", "study")],
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, package, scheduler, extra):
    hide(monkeypatch, package)
    with pytest.raises(of.OpoError, match=rf"the scheduler '{scheduler}' needs {package}: pip install .*\[{extra}\]"):
        run_study(small(), tmp_path / "s", workers=2, scheduler=scheduler)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ["opoo"]}, r"agents\[0\]\.name is 'opoo': one of opo, "),
        ({"environments": ["lock"]}, r"environments\[0\]\.name is 'lock': one of icu-sepsis, "),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(tmp_path, change, message):
    with pytest.raises(of.OpoError, match=message):
        run_study(small(**change), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"scheduler": "slurm"}, "scheduler is 'slurm': 'loky', 'dask' or 'ray'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, options, message):
    with pytest.raises(of.OpoError, match=message):
        run_study(small(), tmp_path / "s", **options)


def test_values_that_a_checkpoint_cannot_hold_are_named(tmp_path):
    import numpy as np

    for state, message in (
        ({"a": {"b": [1, {2}]}}, r"state\.a\.b\[1\] is a set"),
        ({"a": np.array([None])}, r"state\.a is an array of objects"),
        ({"a": {3: 1}}, r"state\.a has keys that a state cannot hold"),
    ):
        with pytest.raises(of.OpoError, match=message):
            checkpoint.write(tmp_path, "x", 1, state)
    assert not list(tmp_path.iterdir())
    state = {"t": (1, (2.5, "x")), "s": np.float32(1.5), "n": None, "l": [True, float("inf")], "i": np.arange(3, dtype=np.uint8)}
    checkpoint.write(tmp_path, "x", 1, state)
    back, _ = checkpoint.latest(tmp_path, "x")
    assert back["t"] == state["t"]
    assert isinstance(back["s"], np.float32)
    assert back["l"] == [True, float("inf")]
    assert back["i"].dtype == np.uint8
    assert pathlib.Path(ROOT).is_dir()
