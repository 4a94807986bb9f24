"""A saved result is read back with the same bits, or refused with the field that is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulated_worlds import Fixed, Many, digest, two_contexts, uniform

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.runs.result import COLUMNS, DIAGNOSTICS, ERRORS, INTEGERS


@pytest.fixture(scope="module")
def result():
    env = of.envs.make("combination-lock", horizon=3)
    return of.simulate(env, of.agents.make("opo", env, episodes=30), 30, progress=False)


def test_a_result_comes_back_with_the_same_bits(result, tmp_path):
    result.save(tmp_path / "x.npz")
    again = of.SimulationResult.load(tmp_path / "x.npz")
    for name in COLUMNS:
        assert getattr(again, name).tobytes() == getattr(result, name).tobytes()
    assert (again.contexts, again.settings) == (result.contexts, result.settings)
    assert repr(again.summary()) == repr(result.summary())


@pytest.mark.parametrize(
    "contexts", [[0, 1], [(1, "a"), (2, "b")], [np.arange(3.0), np.zeros((2, 2), np.float32)], [np.int64(3), None], [{1}, object]]
)
def test_contexts_come_back_where_a_file_can_hold_them(result, tmp_path, contexts):
    columns = {name: getattr(result, name)[:2].copy() for name in COLUMNS}
    columns["context_index"] = np.arange(2)
    of.SimulationResult(columns, contexts, {**result.settings, "labels": ["a", "b"]}).save(tmp_path / "x.npz")
    again = of.SimulationResult.load(tmp_path / "x.npz").contexts
    for context, back in zip(contexts, again, strict=True):
        if isinstance(context, np.ndarray):
            assert (back.dtype, back.tolist()) == (context.dtype, context.tolist())
        else:
            assert back == (repr(context) if isinstance(context, (set, type)) else context)


def column(name, change):
    return lambda state: state["columns"].__setitem__(name, change(state["columns"][name]))


def setting(name, value):
    return lambda state: state["settings"].__setitem__(name, value)


def put_nan(values):
    values = values.copy()
    values[3] = math.nan
    return values


DAMAGES = [
    *((column(name, lambda v: v[:-1]), r"its column \w+ has \d+ entries, the others have \d+") for name in COLUMNS),
    *((column(name, lambda v: v.reshape(2, -1)), rf"its column {name} is not a vector") for name in COLUMNS),
    *((column(name, lambda v: v.astype(np.float32)), rf"its column {name} is not a vector of") for name in COLUMNS),
    *((column(name, lambda v: "text"), rf"its column {name} is not a vector of") for name in COLUMNS),
    *(
        (column(name, put_nan), rf"its column {name} has nan in episode 4: a finite number is needed")
        for name in COLUMNS
        if name not in (*INTEGERS, *ERRORS, *DIAGNOSTICS, "saturation")
    ),
    (column("context_index", lambda v: v - 1), "context_index runs from -1"),
    (column("context_index", lambda v: v + 5), r"context_index runs from 5 to \d+, and there are"),
    (lambda state: state["columns"].pop("value"), "its column value is not a vector"),
    (lambda state: state.pop("columns"), "are gone"),
    (lambda state: state.update(contexts="ab"), "are gone"),
    (lambda state: state.update(format="other"), "its format is 'other'"),
    (lambda state: state.update(version=7), "version 7"),
    (lambda state: state["contexts"].append(3), "labels for"),
    (setting("labels", [3]), "labels for"),
    (setting("labels", None), r"settings\['labels'\] is None"),
    (setting("interrupted", "yes"), r"settings\['interrupted'\] is 'yes'"),
    (setting("interrupted", 1), r"settings\['interrupted'\] is 1"),
    (setting("seed", True), r"settings\['seed'\] is True"),
    (setting("seconds", math.nan), r"settings\['seconds'\] is nan"),
    (setting("seconds", -1.0), r"settings\['seconds'\] is -1.0"),
    (setting("planned_episodes", 20), "it has 30 episodes of 20 that were planned"),
    (setting("agent", 3), r"settings\['agent'\] is 3"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_what_is_wrong_is_named(result, tmp_path, damage, message):
    path = tmp_path / "x.npz"
    result.save(path)
    state = read_state(path)
    damage(state)
    write_state(path, state)
    with pytest.raises(of.OpoError, match=rf"path: '.*x\.npz' is not a result that SimulationResult\.save wrote.*{message}"):
        of.SimulationResult.load(path)


def test_a_state_of_another_kind_is_no_result(tmp_path):
    write_state(tmp_path / "x.npz", {"a": 1})
    with pytest.raises(of.OpoError, match="its format is None"):
        of.SimulationResult.load(tmp_path / "x.npz")


def test_save_and_load(tmp_path):
    cmdp = two_contexts()
    result = of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 25, seed=6)
    path = tmp_path / "result.npz"
    result.save(path)
    loaded = of.SimulationResult.load(path)
    assert digest(loaded) == digest(result)
    assert loaded.context_index.dtype == np.int64
    assert loaded.contexts == result.contexts
    assert loaded.settings == result.settings
    assert loaded.settings["labels"] == [["mild", "severe"][c] for c in result.contexts]
    assert loaded.summary(1.0) == result.summary(1.0)
    assert [line.label for line in loaded.summary()] == ["mild", "severe", "all"]
    assert [p.name for p in tmp_path.iterdir()] == ["result.npz"]


def test_array_contexts_come_back_as_they_are(tmp_path):
    many = Many()
    result = of.simulate(many, many.agent(), 10)
    result.save(tmp_path / "r.npz")
    loaded = of.SimulationResult.load(tmp_path / "r.npz")
    assert digest(loaded) == digest(result)
    assert all(isinstance(context, np.ndarray) for context in loaded.contexts)
    np.testing.assert_array_equal(np.array(loaded.contexts), np.array(result.contexts))


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 broken"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "r.npz"
    path.write_bytes(content)
    with pytest.raises(of.OpoError, match="is not a result that"):
        of.SimulationResult.load(path)


def test_a_truncated_a_foreign_and_a_missing_file_are_refused(tmp_path):
    cmdp = two_contexts()
    of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 5).save(tmp_path / "r.npz")
    data = (tmp_path / "r.npz").read_bytes()
    (tmp_path / "r.npz").write_bytes(data[: len(data) // 2])
    np.savez(tmp_path / "foreign.npz", value=np.zeros(3))
    missing = "not a result that .* or is damaged"
    for name, text in (("r.npz", "not a result"), ("foreign.npz", missing), ("none.npz", "there is no file")):
        with pytest.raises(of.OpoError, match=text):
            of.SimulationResult.load(tmp_path / name)
