"""Edited files: refused by their checksums or for impossible values; files of older versions are read with a warning."""

import json
import warnings

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast._support.state import read_state, write_state
from opo_fast.runs.columns import COLUMNS, check_values
from opo_fast.runs.simulation import Simulation


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of a run after 20 episodes, of its agent, of its result and of a model."""
    folder = tmp_path_factory.mktemp("files")
    env = envs.make("random-finite")
    agent = agents.make("tabular-opo", env, episodes=20)
    result = of.simulate(env, agent, 20, save=folder / "run.npz")
    agent.save(folder / "agent.npz")
    result.save(folder / "result.npz")
    env.mdp(0).save(folder / "model.npz")
    return {path.stem: path for path in folder.iterdir()}


def counting():
    return agents.make("tabular-opo", envs.make("random-finite"), episodes=20)


READERS = {
    "run": lambda path: Simulation.load(path, envs.make("random-finite"), counting()),
    "agent": lambda path: counting().load(path),
    "result": of.SimulationResult.load,
    "model": of.LayeredMDP.load,
}


def edited(source, target, change):
    """A file whose members were changed with NumPy."""
    with np.load(source) as file:
        members = dict(file)
    change(members)
    np.savez(target, **members)
    return target


def numbers(members):
    return next(name for name, array in members.items() if array.dtype == np.float64 and array.size)


def other_number(members):
    name = numbers(members)
    members[name] = members[name].copy()
    members[name].reshape(-1)[0] += 1e-9


def other_text(members):
    meta = json.loads(str(members["meta"]))
    members["meta"] = np.array(json.dumps({**meta, "extra": 1}))


def other_shape(members):
    name = next(name for name, array in members.items() if array.ndim == 2)
    members[name] = members[name].reshape(1, -1)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("change", [other_number, other_text, other_shape])
def test_an_edited_file_is_refused(files, tmp_path, name, change):
    READERS[name](files[name])
    try:
        path = edited(files[name], tmp_path / f"{name}.npz", change)
    except StopIteration:
        pytest.skip(f"a {name} file holds no such array")
    with pytest.raises(of.OpoError, match=rf"{name}\.npz' .*the checksum of .* is wrong: the file was damaged or edited"):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_an_older_version_is_read_with_a_warning(files, tmp_path, name):
    path = edited(files[name], tmp_path / f"{name}.npz", lambda members: members.pop("checksums"))
    with pytest.warns(
        UserWarning, match=rf"{name}\.npz' has no checksums, since an older version wrote it: it is not known whether it was edited"
    ):
        READERS[name](path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        READERS[name](files[name])


IMPOSSIBLE = [
    ("value", 3, 99.0, "its column value has 99.0 in episode 4: a number from 0 to 5 is needed"),
    ("value", 3, -0.5, "its column value has -0.5 in episode 4"),
    ("value", 3, np.nan, "its column value has nan in episode 4: a finite number is needed"),
    ("value", 3, 0.0, "its column value has 0.0 in episode 4: at least the optimal value is needed"),
    ("optimal_value", 0, np.inf, "its column optimal_value has inf in episode 1: a finite number is needed"),
    ("uniform_value", 0, 0.0, "its column uniform_value has 0.0 in episode 1: at least the optimal value"),
    ("observed_loss", 19, 5.5, "its column observed_loss has 5.5 in episode 20: a number from 0 to 5 is needed"),
    ("saturation", 2, 1.5, "its column saturation has 1.5 in episode 3: a number from 0 to 1 is needed"),
    ("hedge_bound", 2, -1.0, "its column hedge_bound has -1.0 in episode 3: a number of at least 0 is needed"),
    ("loss_fit", 2, -2, "its column loss_fit has -2 in episode 3"),
    ("context_index", 0, 1, "context_index does not number contexts in order of first appearance"),
]


@pytest.mark.parametrize(("column", "at", "value", "message"), IMPOSSIBLE)
@pytest.mark.parametrize("name", ["run", "result"])
def test_what_no_run_can_record_is_refused(files, tmp_path, name, column, at, value, message):
    state = read_state(files[name])
    assert envs.make("random-finite").layout.horizon == 5
    state["columns"][column] = state["columns"][column].copy()
    state["columns"][column][at] = value
    path = tmp_path / "x.npz"
    write_state(path, state)
    if (name, column) == ("run", "loss_fit"):
        message = r"\['loss_fit'\] holds -2 at \[2\]"
    with pytest.raises(of.OpoError, match=message):
        READERS[name](path)


def test_a_run_of_more_episodes_than_its_agent_is_refused(files, tmp_path):
    state = read_state(files["run"])
    state["agent"]["episode"] = 7
    write_state(tmp_path / "x.npz", state)
    with pytest.raises(of.OpoError, match=r"\['episode'\] is 7: 20 is needed, as many as the run has played"):
        READERS["run"](tmp_path / "x.npz")


def test_values_of_samples_alone_may_be_unknown(files):
    result = of.SimulationResult.load(files["result"])
    columns = {name: getattr(result, name).copy() for name in COLUMNS}
    columns["value"][:] = np.nan
    check_values(columns, 5, exact=False)
    with pytest.raises(of.OpoError, match="its column value has nan"):
        check_values(columns, 5, exact=True)
