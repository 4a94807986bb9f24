"""Damaged files in the folder of a study: each is reported, and its run is resumed from what is left or done again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from fault_cases import FORMATS, GOOD, check_intact
from study_cases import bits, small

import opo_fast as of
from opo_fast.study import Results, Store, StoreError, checkpoint, run_study


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
def test_a_truncated_run_file_is_reported_put_aside_and_run_again(tmp_path, good, format, damage):
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
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, damage):
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


def test_a_study_reports_a_damaged_checkpoint(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    flip(folder / "checkpoints" / f"{id}-40.ckpt")
    summary = run_study(study, folder)
    assert "' is not a checkpoint, or is damaged" in summary.messages[0]
    assert next(iter(Results(folder).done.values()))["resumed"] == 1
    assert bits(folder) == whole


def test_a_run_whose_checkpoints_are_all_damaged_begins_again(tmp_path):
    folder = tmp_path / "s"
    study, _, whole = interrupted(folder)
    for path in (folder / "checkpoints").iterdir():
        flip(path)
    summary = run_study(study, folder)
    assert len(summary.messages) == 2
    assert next(iter(Results(folder).done.values()))["resumed"] == 0
    assert bits(folder) == whole


def test_a_checkpoint_of_another_version_is_ignored(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    state, _ = checkpoint.latest(folder / "checkpoints", id)
    checkpoint.write(folder / "checkpoints", id, 41, {**state, "version": "0.0.1"})
    summary = run_study(study, folder)
    assert f"begins again: it was written by opo_fast 0.0.1, and this is {of.__version__}" in summary.messages[0]
    assert bits(folder) == whole


def test_a_checkpoint_that_does_not_fit_is_ignored(tmp_path):
    folder = tmp_path / "s"
    study, id, whole = interrupted(folder)
    state, _ = checkpoint.latest(folder / "checkpoints", id)
    state["recorder"]["simulation"]["agent"]["settings"]["n_actions"] = 7
    checkpoint.write(folder / "checkpoints", id, 41, state)
    summary = run_study(study, folder)
    assert "begins again: state belongs to an agent whose n_actions is 7" in summary.messages[0]
    assert bits(folder) == whole


def test_a_damaged_index_is_rebuilt(tmp_path, good):
    folder = tmp_path / "s"
    run_study(small(agents=GOOD), folder)
    whole = sorted((folder / "index.jsonl").read_bytes().splitlines())
    for text in (b"", b"\xff\xfe{", b"\n".join(whole)[:-40], b'{"id": 3}\n[]\n' + whole[0] + b"\n"):
        (folder / "index.jsonl").write_bytes(text)
        assert len(Results(folder).done) == 4
        run_study(small(agents=GOOD), folder)
        assert sorted((folder / "index.jsonl").read_bytes().splitlines()) == whole
    check_intact(folder, good)


def test_a_damaged_study_json_is_restored_from_the_study_file(tmp_path, good):
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


def test_files_of_a_process_killed_right_after_storing_a_run_are_removed(tmp_path):
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
