"""`opo-fast offline`: from a log or an environment to a policy and its value."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import opo_fast as of
from opo_fast import envs
from opo_fast.cli.commands import app
from opo_fast.oracles import TrajectoryLog

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_readme import write_visits


def run(*words, code=0):
    done = CliRunner().invoke(app, ["offline", *map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


def test_a_table_becomes_a_policy(tmp_path):
    write_visits(tmp_path / "visits.csv")
    output = run(tmp_path / "visits.csv", "--absorbing", "home", "--out", tmp_path / "policy.csv")
    assert "400 episodes, 4 layers" in output
    for name in ("dm", "pdis", "snpdis", "dr"):
        value, low, high = (float(x) for x in re.search(rf"{name}\s*│\s*([\d.]+) │ ([\d.]+) to ([\d.]+)", output).groups())
        assert low <= value <= high
    rows = list(csv.DictReader((tmp_path / "policy.csv").open()))
    assert {row["context"] for row in rows} == {"mild", "severe"}
    # Treating is better in the log, except in the last step, where it has no effect.
    assert {(row["state"], row["action"]) for row in rows if row["step"] in "01" and row["state"] == "ward"} == {("ward", "treat")}


def test_an_environment_is_logged_learned_and_looked_up(tmp_path):
    output = run("random-finite", "--visits", "400", "--method", "pessimistic", "--save-log", tmp_path / "log.npz")
    learned, logged, best = (
        float(x) for x in re.search(r"value is ([\d.]+) \(logged policy ([\d.]+), optimum ([\d.]+)\)", output).groups()
    )
    assert best - 1e-4 <= learned < logged
    log, env = TrajectoryLog.load(tmp_path / "log.npz"), envs.make("random-finite")
    assert len(log) == 400
    uniform = sum(p * of.evaluate(mdp, mdp.uniform_policy()).v[0] for p, mdp in zip(env.probabilities, env.mdps, strict=True))
    assert logged == pytest.approx(uniform, abs=1e-4)
    assert "episodes" in run(tmp_path / "log.npz")


def test_icu_sepsis_from_its_own_behavior_policy():
    pytest.importorskip("icu_sepsis")
    output = run("icu-sepsis", "--visits", "600")
    learned, logged, best = (
        float(x) for x in re.search(r"value is ([\d.]+) \(logged policy ([\d.]+), optimum ([\d.]+)\)", output).groups()
    )
    assert learned == best  # the classes contain the truth, and 300 admissions identify it
    assert learned < logged - 0.5
    assert "the log does not support this policy" in output


def test_refusals(tmp_path):
    write_visits(tmp_path / "visits.csv")
    assert "name the state in which it stays by absorbing=" in run(tmp_path / "visits.csv", code=2)
    assert "--reward is 'loss': COLUMN:LOW:HIGH is needed" in run(tmp_path / "visits.csv", "--reward", "loss", code=2)
    assert "the log has 1 episode" in run("random-finite", "--visits", "1", code=2)
    path = tmp_path / "rewards.csv"
    path.write_text("episode,step,state,action,gain\n1,0,0,a,-1\n2,0,0,b,1\n3,0,0,a,0\n4,0,0,b,1\n")
    assert "4 episodes, 1 layers" in run(path, "--reward", "gain:-1:1", "--context", "")
    assert np.array_equal(TrajectoryLog.from_csv(path, context=None, reward="gain", reward_range=(-1, 1)).losses.ravel(), [1, 0, 0.5, 0])


def test_contexts_that_are_vectors():
    output = run("random-linear", "--visits", "40", "--set", "n_contexts=2", "--set", "horizon=2")
    assert "context 1" in output
