"""`opo-fast run --resume` and `opo-fast policy`: runs that are continued in another process, and the learned policies."""

from __future__ import annotations

import csv
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import opo_fast as of
from opo_fast import envs
from opo_fast.runs.result import COLUMNS

CLINIC = """
import numpy as np
import opo_fast as of
from opo_fast.envs import Environment

def make(risk=0.1):
    layout = of.Layout([1, 2], 2)
    losses = np.array([[0.0, 0.25], [0.0, 0.25], [1.0, 1.0]])
    P = [np.array([[[0.2, 0.8], [1 - risk, risk]]])]
    other = [np.array([[[0.8, 0.2], [0.9, 0.1]]])]
    return Environment(
        layout, [lambda c: losses], [lambda c: P, lambda c: other], contexts=["a"], labels=["Ms. B"],
        state_names=["new", "well", "ill"], action_names=["wait", "treat"], name="clinic",
    )
"""


def same(a: str, b: str) -> None:
    first, second = of.SimulationResult.load(f"{a}/result.npz"), of.SimulationResult.load(f"{b}/result.npz")
    for name in COLUMNS:
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes(), name
    assert first.settings["labels"] == second.settings["labels"]


def in_another_process(*words: str, cwd: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from opo_fast.cli import main; main()", *words],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip


@pytest.mark.parametrize("agent", ["opo", "greedy", "uniform"])
def test_a_run_made_longer_equals_a_long_one(call, agent):
    words = ["run", "random-finite", "--agent", agent, "--seed", "4", "--no-plot"]
    call(*words, "-T", "80", "--out", "whole")
    call(*words, "-T", "21", "--out", "parts")
    call("run", "--resume", "parts", "-T", "50", "--no-plot")
    assert "80 episodes, 50 of them played" in " ".join(call("run", "--resume", "parts", "-T", "80", "--no-plot").stdout.split())
    same("whole", "parts")


def test_ctrl_c_twice_and_on_in_another_process(call, tmp_path):
    process = in_another_process("run", "random-finite", "-T", "3000000", "--no-plot", "--set", "n_contexts=2", cwd=tmp_path)
    folder = tmp_path / "runs" / "random-finite-opo-seed0"
    for _ in range(2):
        assert "random-finite" in process.stdout.readline()
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "runs/random-finite-opo-seed0" in output.split("Resume with: opo-fast run --resume ")[1]
        process = in_another_process("run", "--resume", str(folder), "--no-plot", cwd=tmp_path)
    process.kill()
    process.communicate()
    played = of.SimulationResult.load(folder / "result.npz")
    call("run", "random-finite", "--set", "n_contexts=2", "-T", str(played.episodes), "--out", "whole", "--no-plot")
    same("whole", str(folder))


def test_what_a_run_was_is_not_changed_on_the_way(call):
    call("run", "random-finite", "-T", "20", "--out", "r", "--no-plot")
    refused = call("run", "--resume", "r", "--seed", "1", code=2).stderr
    assert refused == "opo-fast: --seed is given with --resume: a run keeps the options with which it began; leave it out\n"
    assert "all 20 episodes of this run are finished; make it longer with -T" in call("run", "--resume", "r", code=2).stderr
    assert "ENV is 'taxi': 'random-finite'" in call("run", "taxi", "--resume", "r", "-T", "30", code=2).stderr
    assert "there is no folder 'nowhere'" in call("run", "--resume", "nowhere", code=2).stderr
    for words in (["policy", "r/result.npz"], ["run", "--resume", "r/result.npz"]):
        assert "give its folder, 'r'" in call(*words, code=2).stderr
    # T decides the parameters of the theory.
    call("run", "random-finite", "-T", "20", "--out", "t", "--bonus-scale", "1e-5", "--no-plot")
    longer = call("run", "--resume", "t", "-T", "40", "--no-plot", code=2).stderr
    assert "state belongs to an agent whose rule.beta_loss is 0." in longer


def test_a_function_of_the_users_is_run_only_if_it_is_named(call):
    pathlib.Path("clinic.py").write_text(CLINIC)
    call("run", "clinic:make", "-T", "30", "--set", "risk=0.2", "--no-plot")
    folder = "runs/clinic-make-opo-seed0"
    refused = call("run", "--resume", folder, "-T", "40", code=2).stderr
    assert "the environment of this run is the function 'clinic:make': name it again as ENV" in refused
    call("run", "clinic:make", "--resume", folder, "-T", "40", "--no-plot")
    call("run", "clinic:make", "-T", "40", "--set", "risk=0.2", "--no-plot", "--out", "whole")
    same("whole", folder)
    # The model has been edited since, and the message names the candidate.
    pathlib.Path("clinic.py").write_text(CLINIC.replace("[0.8, 0.2]", "[0.7, 0.3]"))
    os.utime("clinic.py", (0, 0))
    edited = call("run", "clinic:make", "--resume", folder, "-T", "50", code=2).stderr
    assert "state was learned with another candidate 'candidate 1': at context 'a' its numbers have the digest" in edited


def test_policy_by_name(call):
    pathlib.Path("clinic.py").write_text(CLINIC)
    call("run", "clinic:make", "-T", "30", "--no-plot", "--out", "r")
    output = call("policy", "r", "--env", "clinic:make", "--csv", "p.csv", "--plot", "p.png").stdout
    assert "context Ms. B, fitted model" in output
    assert [line.split()[1] for line in output.splitlines()[2:5]] == ["new", "well", "ill"]
    rows = list(csv.DictReader(pathlib.Path("p.csv").read_text().splitlines()))
    assert len(rows) == 6
    q = {(row["state_name"], row["action_name"]): float(row["q"]) for row in rows}
    # 0.25 now, and in the last step 0 or 0.25 for the well and 1 for the tenth who are ill.
    share = {(row["state_name"], row["action_name"]): float(row["probability"]) for row in rows}
    well = 0.25 * share["well", "treat"]
    assert q["new", "treat"] == pytest.approx(0.25 + 0.9 * well + 0.1, abs=1e-12)
    assert q["new", "wait"] == pytest.approx(0.2 * well + 0.8, abs=1e-12)
    assert pathlib.Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_the_theory_of_an_environment_that_a_function_makes(call):
    pathlib.Path("clinic.py").write_text(CLINIC)
    # H = 2, three states, two actions, one function of losses, two of dynamics.
    assert "H = 2, |S| = 3, |A| = 2, T = 1,000, |F| = 1, |P| = 2" in call("theory", "parameters", "clinic:make").output
    call("theory", "events", "clinic:make", "-T", "5", "--seeds", "2", "--no-plot")
    assert pathlib.Path("runs/events-clinic-make/events.npz").is_file()


def test_policy_of_a_context(call):
    call("run", "random-finite", "-T", "40", "--out", "r", "--no-plot")
    missing = call("policy", "r", code=2).stderr
    assert "--context is missing: one of 'context 0', 'context 1'" in missing
    assert "--context is 'nobody': one of" in call("policy", "r", "--context", "nobody", code=2).stderr
    close = call("policy", "r", "--context", "contxt 1", code=2).stderr
    assert "--context is 'contxt 1' (did you mean 'context 1'?): one of 'context 0', 'context 1', 'context 2'" in close
    assert call("policy", "r", "--context", "context 2").stdout == call("policy", "r", "--context", "2").stdout
    env = envs.make("random-finite")
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, action_mask=env.action_mask)
    of.simulate(env, agent, 40)
    policy = agent.policy(2)
    call("policy", "r", "--context", "2", "--csv", "p.csv", "--true", "--all")
    rows = list(csv.DictReader(pathlib.Path("p.csv").read_text().splitlines()))
    found = np.array([float(row["probability"]) for row in rows]).reshape(policy.shape)
    assert found.tobytes() == policy.tobytes()
    assert float(rows[0]["value"]) == of.evaluate(env.mdp(2), policy).v[0]


def test_policy_of_endless_contexts(call):
    call("run", "random-linear", "--set", "n_contexts=None", "-T", "10", "--out", "r", "--no-plot")
    output = call("policy", "r", "--context", "0.5,0.25,0.25").stdout
    assert "context [0.5  0.25 0.25]" in output


def test_show_says_how_a_run_was_played(call):
    call("run", "random-finite", "-T", "20", "--out", "r", "--no-plot", "--seed", "7", "--set", "n_contexts=2", "--bonus-scale", "1e-5")
    words = "opo on random-finite: 20 of 20 episodes, seed 7, n_contexts=2, bonus scale 1e-05, backend numba, opo_fast "
    assert call("show", "r").stdout.startswith(words + of.__version__)
    call("run", "random-linear", "-T", "40", "--out", "c", "--no-plot", "--set", "n_contexts=None")
    shown = call("show", "c").stdout
    assert shown.count("context[") == 12
    assert "more" not in shown
