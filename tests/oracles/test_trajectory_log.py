"""Trajectory logs: accepted and refused columns, and files that give back the same log."""

from __future__ import annotations

import os

import numpy as np
import pytest

import opo_fast as of
from opo_fast.oracles import TrajectoryLog

LAYOUT = of.Layout([1, 2, 2], 2)
GOOD = {
    "contexts": [0, 1, 0],
    "states": [[0, 1, 3], [0, 1, 4], [0, 2, 3]],
    "actions": [[0, 1, 0], [0, 1, 1], [0, 0, 0]],
    "losses": [[1, 0.25, 0], [0, 0.5, 1], [0.5, 1, 1]],
}
MASK = np.array([[True, False], [True, True], [True, True], [True, True], [True, True]])


def changed(**values):
    return {**GOOD, **values}


def same(a: TrajectoryLog, b: TrajectoryLog) -> bool:
    contexts = [(x, y) for x, y in zip(a.contexts, b.contexts, strict=True)]
    return (
        all(np.array_equal(x, y) and type(x) is type(y) for x, y in contexts)
        and np.array_equal(a.states, b.states)
        and np.array_equal(a.actions, b.actions)
        and a.losses.tobytes() == b.losses.tobytes()
    )


def test_a_log_is_a_sequence_of_trajectories():
    log = TrajectoryLog(LAYOUT, **GOOD)
    assert len(log) == 3
    assert [t.context for t in log] == [0, 1, 0]
    assert log[1].states.tolist() == [0, 1, 4, 5]
    assert log[-1].losses.tolist() == [0.5, 1, 1]
    assert same(log[:2], TrajectoryLog.of(LAYOUT, [log[0], log[1]]))
    assert TrajectoryLog.of(LAYOUT, log) is log
    assert log.pairs.tolist() == [[0, 3, 6], [0, 3, 9], [0, 4, 6]]
    with pytest.raises(IndexError):
        log[3]
    with pytest.raises(ValueError, match="read-only"):
        log.states[0, 0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": []}, "the log is empty: at least one trajectory"),
        ({"contexts": [0, 1]}, r"states has shape \(3, 4\): \(number of contexts, steps\) = \(2, 4\)"),
        ({"actions": [[0, 1], [0, 1], [0, 0]]}, r"actions has shape \(3, 2\)"),
        ({"states": [[0, 1, 3], [0, 3, 4], [0, 2, 3]]}, "trajectory 1, step 1: state 3: a state from 1 to 2 is needed"),
        ({"states": [[0, 1, 3], [0, 1, 4], [0, -1, 3]]}, "trajectory 2, step 1: state -1"),
        ({"states": [[0, 1, 3, 5], [0, 1, 4, 4], [0, 2, 3, 5]]}, "trajectory 1, step 0: last state 4: the end state 5"),
        ({"states": [[0, 1, 3.5], [0, 1, 4], [0, 2, 3]]}, "states has dtype float64: whole numbers"),
        ({"states": [[0, 1, 3], [0, 1], [0, 2, 3]]}, "states is not a rectangular array"),
        ({"actions": [[0, 1, 0], [0, 1, 2], [0, 0, 0]]}, "trajectory 1, step 2: action 2: 0 to 1 is needed"),
        ({"losses": [[1, 0.25, 0], [0, np.nan, 1], [0.5, 1, 1]]}, "trajectory 1, step 1: loss nan"),
        ({"losses": [[1, 0.25, 0], [0, 0.5, 1], [0.5, 1, 1.5]]}, "trajectory 2, step 2: loss 1.5"),
        ({"losses": [[1, 0.25, 0], [0, 0.5, 1], [-0.5, 1, 1]]}, "trajectory 2, step 0: loss -0.5"),
        ({"losses": [["a", "b", "c"]] * 3}, "losses has dtype <U1: numbers"),
        ({"actions": [[1, 1, 0], [0, 1, 1], [0, 0, 0]], "action_mask": MASK}, "trajectory 0, step 0: action 1 is masked in state 0"),
    ],
)
def test_the_first_bad_entry_is_named(change, message):
    with pytest.raises(of.OpoError, match=message):
        TrajectoryLog(LAYOUT, **changed(**change))


def test_sequences_are_checked_trajectory_by_trajectory():
    good = TrajectoryLog(LAYOUT, **GOOD)
    bad = of.Trajectory(0, np.array([0, 1, 3, 5]), np.zeros(3, int), np.array([0, 0, 2.0]))
    with pytest.raises(of.OpoError, match=r"trajectory 1: trajectory\.losses\[2\] is 2\.0"):
        TrajectoryLog.of(LAYOUT, [good[0], bad])
    with pytest.raises(of.OpoError, match="trajectories is a Trajectory: a TrajectoryLog or a sequence"):
        TrajectoryLog.of(LAYOUT, good[0])
    with pytest.raises(of.OpoError, match="the log is empty"):
        TrajectoryLog.of(LAYOUT, [])
    with pytest.raises(of.OpoError, match=r"the log has Layout\(\[1, 2, 2\], n_actions=2\): Layout\(\[1, 3\], n_actions=2\) is needed"):
        TrajectoryLog.of(of.Layout([1, 3], 2), good)
    with pytest.raises(of.OpoError, match="action 1 is masked in state 1"):
        TrajectoryLog.of(LAYOUT, good, np.array([[True, True], [True, False], [True, True], [True, True], [True, True]]))


@pytest.mark.parametrize("ending", ["npz", "parquet"])
@pytest.mark.parametrize(
    "contexts",
    [
        [0, 1, 0],
        ["a", "b", "ä"],
        [0.25, 1.5, -1.0],
        [True, False, True],
        np.arange(6.0).reshape(3, 2),
        np.arange(3, dtype=np.int32)[:, None],
    ],
)
def test_files_hold_a_log_whole(tmp_path, ending, contexts):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    log = TrajectoryLog(LAYOUT, **changed(contexts=contexts))
    path = tmp_path / f"log.{ending}"
    log.save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert same(TrajectoryLog.load(path), log)
    assert same(TrajectoryLog.load(path, LAYOUT), log)
    with pytest.raises(of.OpoError, match=r"layout is Layout\(\[1, 3\]"):
        TrajectoryLog.load(path, of.Layout([1, 3], 2))


def test_npz_keeps_the_mask_and_arrays_of_many_axes(tmp_path):
    log = TrajectoryLog(LAYOUT, **changed(contexts=np.zeros((3, 2, 2))), action_mask=MASK)
    log.save(tmp_path / "log.npz")
    assert np.array_equal(TrajectoryLog.load(tmp_path / "log.npz").action_mask, MASK)
    with pytest.raises(of.OpoError, match=r"contexts have shape \(2, 2\): Parquet takes"):
        log.save(tmp_path / "log.parquet")


def test_a_table_of_another_program_is_taken_row_by_row(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {
        "episode": [7, 3, 3, 7, 7, 3],
        "step": [1, 0, 2, 0, 2, 1],
        "context": ["x", "y", "y", "x", "x", "y"],
        "state": [2, 0, 3, 0, 4, 1],
        "action": [0, 1, 0, 0, 1, 1],
        "loss": [0.5, 0.0, 1.0, 0.25, 0.75, 0.125],
        "note": ["ignored"] * 6,
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(rows), path)
    log = TrajectoryLog.load(path, LAYOUT)
    assert list(log.contexts) == ["y", "x"]
    assert log.states.tolist() == [[0, 1, 3, 5], [0, 2, 4, 5]]
    assert log.losses.tolist() == [[0.0, 0.125, 1.0], [0.25, 0.5, 0.75]]
    with pytest.raises(of.OpoError, match="layout is missing"):
        TrajectoryLog.load(path)
    for change, message in (
        ({"step": [1, 0, 2, 0, 1, 1]}, "episode 7: step 1 occurs twice"),
        ({"episode": [7, 3, 3, 7, 3, 3]}, "episode 3: step 2 occurs twice"),
        ({"context": ["x", "y", "z", "x", "x", "y"]}, "column 'context', episode 3, step 2: 'z' after 'y': an episode has one context"),
        ({"loss": [0.5, None, 1.0, 0.25, 0.75, 0.125]}, "column 'loss', episode 3, step 0: the value is missing"),
        ({"loss": [0.5, 0.0, 1.0, 0.25, 7.0, 0.125]}, r"column 'loss', episode 7, step 2: 7\.0: a loss in \[0, 1\] is needed"),
    ):
        pq.write_table(pa.table({**rows, **change}), path)
        with pytest.raises(of.OpoError, match=message):
            TrajectoryLog.load(path, LAYOUT)
    pq.write_table(pa.table({name: rows[name] for name in ("episode", "step", "state")}), path)
    with pytest.raises(of.OpoError, match="has no column 'context'"):
        TrajectoryLog.load(path, LAYOUT)
    pq.write_table(pa.table(rows).slice(0, 0), path)
    with pytest.raises(of.OpoError, match="the log is empty"):
        TrajectoryLog.load(path, LAYOUT)


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(of.OpoError, match="there is no file"):
        TrajectoryLog.load(tmp_path / "absent.npz")
    with pytest.raises(of.OpoError, match=r"ends in \.npz or \.parquet"):
        TrajectoryLog.load(tmp_path / "log.csv")
    for ending in ("npz", "parquet"):
        path = tmp_path / f"damaged.{ending}"
        path.write_bytes(b"not a log")
        with pytest.raises(of.OpoError, match="is not a log, or is damaged"):
            TrajectoryLog.load(path)
    log = TrajectoryLog(LAYOUT, **changed(contexts=[(0, 1), (1, 0), (2, 2)]))
    for ending in ("npz", "parquet"):
        with pytest.raises(of.OpoError, match=r"\(0, 1\) and others cannot be written"):
            log.save(tmp_path / f"log.{ending}")


def test_collecting_plays_the_streams_of_simulate():
    rng = np.random.default_rng(0)
    mdps = [of.LayeredMDP(LAYOUT, rng.random(LAYOUT.shape), [rng.dirichlet([1, 1], size=(n, 2)) for n in (1, 2)]) for _ in range(2)]
    cmdp = of.FiniteContexts(mdps)
    seen = []

    class Recorder:
        layout = LAYOUT

        def policy(self, context):
            return mdps[context].uniform_policy()

        def observe(self, trajectory):
            seen.append(trajectory)

    of.simulate(cmdp, Recorder(), 20, seed=5)
    assert same(TrajectoryLog.collect(cmdp, 20, seed=5), TrajectoryLog.of(LAYOUT, seen))
    greedy = TrajectoryLog.collect(cmdp, 20, seed=5, policy=lambda c: np.eye(2)[np.zeros(5, int)])
    assert (greedy.actions == 0).all()
