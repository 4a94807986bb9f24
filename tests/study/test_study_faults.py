"""Faults of runs, disks and installations injected into studies: each ends in a clear message, and what was stored before is intact."""

from __future__ import annotations

import builtins
import errno
import importlib.util
import os
import pathlib
import re
import subprocess

import pytest
from fault_cases import FORMATS, GOOD, check_intact
from study_cases import ROOT, bits, left_over, small

import opo_fast as of
from opo_fast.study import Results, StoreError, checkpoint, run_study

needs_joblib = pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib (extra 'study') is not installed")


# -- what runs do --------------------------------------------------------------------------------------------------------------

FAILING = [
    ({"name": "study_cases:broken", "options": {"at": 40}}, 39, r"RuntimeError: the oracle gave up in episode 40"),
    ({"name": "study_cases:nothing"}, 0, r"'study_cases:nothing': the module 'study_cases' has no 'nothing'"),
    ({"name": "no_such_module:agent"}, 0, r"'no_such_module:agent': there is no module 'no_such_module', neither installed nor in"),
    ({"name": "opo", "options": {"bonus_scal": 1.0}}, 0, r"bonus_scal is not an option of agent 'opo'"),
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
    # The agent's source has changed, so its checkpoint is only used with changed="keep".
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
    """Make every write to a file whose name contains `matching` fail with this system error."""
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


def test_a_disk_that_is_full_for_failures_too_is_reported(tmp_path, monkeypatch):
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
    """Mount a small file system, or skip the test if this user may not."""
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
    """Write to `path` until the disk is full."""
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
