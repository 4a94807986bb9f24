"""A run's identity includes the code and the files from which it was made."""

from __future__ import annotations

import os
import shutil
import socket

import pytest
from study_cases import bits, small
from typer.testing import CliRunner

import opo_fast as of
from opo_fast.cli.study import app
from opo_fast.envs.tables import TabularMDP
from opo_fast.study import Results, Store, Study, checkpoint, run_study
from opo_fast.study.origin import changes, origin

AGENT = """
from opo_fast import agents


def make(env, episodes, seed):
    return agents.make("opo", env, episodes=episodes, seed=seed, eta_scale={scale})
"""


def table(path, reward):
    """A model of two states in a file: the first action goes on, the second stays and earns `reward`."""
    P = [[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]
    TabularMDP(P, [[0.0, reward], [1.0, 0.0]], 0, reward_range=(0.0, 1.0)).save(path)


def study_of(folder, seeds=2, agent="own_agent:make", **options):
    environments = [{"name": "world.npz", "label": "world", "options": {"horizon": 3}}]
    return Study("origin", environments, [agent, "uniform"], episodes=20, seeds=seeds, root=folder, **options)


@pytest.fixture
def place(tmp_path):
    table(tmp_path / "world.npz", 0.25)
    (tmp_path / "own_agent.py").write_text(AGENT.format(scale=50))
    return tmp_path


def test_the_origin_of_a_run_is_stored(place):
    run_study(study_of(place), place / "s")
    for meta in Results(place / "s").done.values():
        names = {"opo_fast", "environment: world.npz"} | ({"agent: own_agent.py"} if ":" in meta["agent"]["name"] else set())
        assert meta["origin"].keys() == names
        assert meta["origin"]["opo_fast"] == of.__version__


@pytest.mark.parametrize("what", ["world.npz", "own_agent.py"])
def test_an_edited_file_is_reported_and_its_runs_are_done_again_or_kept(place, what):
    folder = place / "s"
    run_study(study_of(place), folder)
    before = bits(folder)
    shutil.copytree(folder, place / "copy")
    if what == "world.npz":
        table(place / what, 0.5)
    else:
        (place / what).write_text(AGENT.format(scale=20000))
    concerned = 4 if what == "world.npz" else 2
    with pytest.raises(of.OpoError, match=rf"{concerned} of 4 finished runs were done before a change \(\w+: {what}\): --redo .* --keep"):
        run_study(study_of(place), folder)
    assert bits(folder) == before
    # Kept: only the new seed is run, and the report says that the runs differ.
    assert run_study(study_of(place, seeds=3), folder, changed="keep").done == 6
    after = bits(folder)
    assert {key: value for key, value in after.items() if key[2] < 2} == before
    pytest.importorskip("jinja2", reason="jinja2 (extra 'study') is not installed")
    from opo_fast.study.report import write_report

    assert f"with 2 different versions of its file &#39;{what}&#39;" in write_report(Results(folder)).read_text()
    # After redoing, all runs are those of the current file, as in a new study.
    assert run_study(study_of(place, seeds=3), folder, changed="redo").done == 6
    run_study(study_of(place, seeds=3), place / "fresh")
    assert bits(folder) == bits(place / "fresh") != after
    assert "different versions of its file" not in write_report(Results(folder)).read_text()
    # With all runs from the same file there is no error.
    assert run_study(study_of(place, seeds=3), folder).done == 6


def test_the_same_content_under_another_date_is_no_change(place):
    run_study(study_of(place), place / "s")
    os.utime(place / "world.npz", (1, 1))
    content = (place / "own_agent.py").read_bytes()
    (place / "own_agent.py").unlink()
    (place / "own_agent.py").write_bytes(content)
    assert run_study(study_of(place), place / "s").done == 4


def test_another_version_of_the_package_is_reported(place, monkeypatch):
    run_study(study_of(place), place / "s")
    monkeypatch.setattr(of, "__version__", "9.9.9")
    with pytest.raises(of.OpoError, match=r"4 of 4 finished runs .*opo_fast [0-9.]+, and this is 9\.9\.9"):
        run_study(study_of(place), place / "s")
    run_study(study_of(place, seeds=3), place / "s", changed="keep")
    assert Results(place / "s").messages == []
    from opo_fast.study.origin import mixtures

    (line,) = mixtures(Results(place / "s").done.values())
    assert line.startswith("the runs were done with different versions of opo_fast: ")


def test_a_checkpoint_of_other_code_is_ignored_unless_it_is_to_be_kept(place):
    study = study_of(place, seeds=1, checkpoint={"episodes": 5})
    store = Store(place / "s")
    store.prepare(study)
    (place / "own_agent.py").write_text(AGENT.format(scale=50) + "\n\nREVISION = 1\n")
    (run, _) = study.runs()
    from opo_fast.study.file import Checkpoints
    from opo_fast.study.worker import Task, execute

    task = Task(run, str(store.folder), str(place), "npz", study.record, Checkpoints(5), None, (socket.gethostname(), os.getpid()), False)
    assert execute(task).kind == "done"
    stored = store.finished()[0][run.id]
    # A checkpoint from before the edit of the source.
    from opo_fast.runs.simulation import Simulation
    from opo_fast.study.build import make_agent, make_environment
    from opo_fast.study.recorder import Recorder

    env = make_environment(run, str(place))
    recorder = Recorder(Simulation(env, make_agent(run.agent, env, 20, 0, str(place)), 20, 0), study.record)
    for _ in range(7):
        recorder.step()
    record = {"every": study.record.every, "measures": list(study.record.measures)}
    content = {"version": of.__version__, "origin": stored["origin"], "record": record, "resumed": 0, "recorder": recorder.state()}
    (store.runs / stored["file"]).unlink()
    (place / "own_agent.py").write_text(AGENT.format(scale=50))
    for changed, resumed in (("ask", 0), ("keep", 1)):
        checkpoint.write(store.checkpoints, run.id, 7, content)
        summary = run_study(study, store.folder, changed=changed)
        assert store.finished()[0][run.id]["resumed"] == resumed
        about = [message for message in summary.messages if "is ignored" in message]
        assert len(about) == (changed == "ask")
        assert all("it was written before a change of agent: own_agent.py" in message for message in about)
        next(store.runs.glob(f"{run.id}.*")).unlink()


def test_files_of_options_and_those_beside_a_model_count(tmp_path):
    for name in ("robot.tra", "robot.srew", "robot1.srew", "robot.lab", "other.lab", "data.csv"):
        (tmp_path / name).write_text(name)
    environments = [{"name": "robot.tra", "options": {"horizon": 3, "path": "data.csv"}}]
    run = Study("x", environments, ["uniform"], episodes=1, root=tmp_path).runs()[0]
    found = origin(run, str(tmp_path))
    assert found.keys() == {
        "opo_fast", "environment: robot.tra", "environment: robot.srew", "environment: robot1.srew", "environment: robot.lab",
        "environment: data.csv",
    }  # fmt: skip
    (tmp_path / "robot1.srew").write_text("other")
    assert changes(found, origin(run, str(tmp_path))) == ["environment: robot1.srew"]
    assert changes(None, found) == []


def test_the_command_line_asks(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "study.toml").write_text(
        'name = "cli"\nepisodes = 10\nseeds = 1\nenvironments = [{ name = "world.npz", options = { horizon = 3 } }]\nagents = ["uniform"]\n'
    )

    def call(*words):
        return CliRunner().invoke(app, ["run", "study.toml", "--workers", "1", *words])

    assert call().exit_code == 0
    table(place / "world.npz", 0.5)
    result = call()
    assert isinstance(result.exception, of.OpoError)
    assert "--redo" in str(result.exception)
    assert call("--keep").exit_code == 0
    assert call("--redo").exit_code == 0
    assert call().exit_code == 0
    assert "only one of them is needed" in str(call("--redo", "--keep").exception)


def test_small_studies_of_the_package_alone_have_only_the_version(tmp_path):
    run_study(small(seeds=1), tmp_path / "s")
    assert all(meta["origin"] == {"opo_fast": of.__version__} for meta in Results(tmp_path / "s").done.values())


def test_modules_of_one_name_in_two_folders_are_two_modules(tmp_path):
    found = {}
    for name, scale in (("a", 50), ("b", 20000)):
        folder = tmp_path / name
        folder.mkdir()
        table(folder / "world.npz", 0.25)
        (folder / "own_agent.py").write_text(AGENT.format(scale=scale))
        run_study(study_of(folder, seeds=1), folder / "s")
        found[name] = bits(folder / "s")["world", "own_agent:make", 0]
    assert found["a"]["value"] != found["b"]["value"]
