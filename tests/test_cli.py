"""The command line: its output and files, and refusals with one line and exit code 2."""

from __future__ import annotations

import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.cli import commands as cli
from opo_fast.errors import install

SMALL = ["run", "random-finite", "-T", "40", "--no-plot"]


@pytest.fixture(autouse=True)
def _taken(tmp_path):
    """A file with a name that some tests use for a folder."""
    (tmp_path / "taken").write_text("a file")


def cells(output: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("│┃ \n").split("│")] for line in output.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


# -- run and show ------------------------------------------------------------------------------------------------------


def test_run_writes_its_result_and_says_where(call):
    output = call("run", "random-finite", "-T", "40", "--seed", "3").stdout
    folder = pathlib.Path("runs/random-finite-opo-seed3")
    assert f"Written to {folder}: result.npz, run.npz, regret.png" in output
    assert (folder / "regret.png").read_bytes().startswith(b"\x89PNG")
    result = of.SimulationResult.load(folder / "result.npz")
    assert result.episodes == 40
    assert (result.settings["agent"], result.settings["environment"], result.settings["seed"]) == ("opo", "random-finite", 3)
    # The same as from Python: the agent tunes itself.
    env = envs.make("random-finite")
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=40, action_mask=env.action_mask)
    expected = of.simulate(env, agent, 40, seed=3)
    assert result.value.tobytes() == expected.value.tobytes()
    table = cells(output)
    total = expected.summary()[-1]
    assert table["all"][:2] == ["40", f"{total.learned:.4f}"]
    assert table["all"][-2:] == [f"{total.regret:.4f}", f"{total.gap_closed:.1%}"]
    assert len(table) == len(expected.contexts) + 1


def test_nothing_is_overwritten(call):
    for name in ("", "-2", "-3"):
        assert f"runs/random-finite-opo-seed0{name}: result.npz" in call(*SMALL).stdout
    assert len(list(pathlib.Path("runs").iterdir())) == 3
    call(*SMALL, "--out", "mine")
    before = pathlib.Path("mine/result.npz").read_bytes()
    refused = call(*SMALL, "--out", "mine", code=2)
    assert refused.stderr == "opo-fast: --out is 'mine', which already holds a result: name another folder, or remove this one\n"
    assert pathlib.Path("mine/result.npz").read_bytes() == before


def test_same_seed_same_file_contents(call):
    call(*SMALL, "--out", "a", "--threads", "1")
    call(*SMALL, "--out", "b", "--threads", "2")
    call(*SMALL, "--out", "c", "--seed", "1")
    a, b, c = (of.SimulationResult.load(f"{x}/result.npz") for x in "abc")
    assert a.value.tobytes() == b.value.tobytes()
    assert a.observed_loss.tobytes() == b.observed_loss.tobytes()
    assert a.observed_loss.tobytes() != c.observed_loss.tobytes()


def test_options_reach_the_environment_and_the_agent(call):
    call(*SMALL, "--horizon", "3", "--set", "n_contexts=2", "--bonus-scale", "0", "--eta-scale", "7", "--out", "a")
    result = of.SimulationResult.load("a/result.npz")
    assert len(result.contexts) == 2
    assert result.value.max() <= 3
    assert result.settings["options"] == {
        "bonus_scale": 0.0, "eta_scale": 7.0, "backend": "numba",
    }  # fmt: skip
    assert (result.settings["horizon"], result.settings["set"]) == (3, ["n_contexts=2"])
    env = envs.make("random-finite", horizon=3, n_contexts=2)
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=40, bonus_scale=0.0, eta_scale=7.0)
    assert result.value.tobytes() == of.simulate(env, agent, 40).value.tobytes()


def test_backends_agree(call):
    for backend in ("numba", "numpy"):
        call(*SMALL, "--backend", backend, "--out", backend)
    a, b = (of.SimulationResult.load(f"{x}/result.npz") for x in ("numba", "numpy"))
    np.testing.assert_allclose(a.value, b.value, atol=1e-10)


def test_theory_constants_end_in_advice(call):
    output = call(*SMALL, "--bonus-scale", "1").stdout
    assert "where pairs were hardly visited: 100.0% in the first episode, 100.0% in the last 4" in output
    assert "decrease --bonus-scale" in output


def test_show_prints_the_table_again(call):
    ran = cells(call(*SMALL).stdout)
    assert cells(call("show", "runs/random-finite-opo-seed0").stdout) == ran
    refused = call("show", "runs/random-finite-opo-seed0", "--plot", "nowhere/again.png", code=2)
    assert (refused.stdout, refused.stderr.count("nowhere")) == ("", 1)
    assert cells(call("show", "runs/random-finite-opo-seed0/result.npz", "--plot", "again.png").stdout) == ran
    assert pathlib.Path("again.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_result_is_kept(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = call("run", "random-finite", "-T", "10")
    assert f"no picture: plots need matplotlib: {install('plot')}" in done.stderr
    assert sorted(p.name for p in pathlib.Path("runs/random-finite-opo-seed0").iterdir()) == ["result.npz", "run.npz"]


def test_without_the_package_of_the_patients_data_the_error_says_what_to_install(call, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert install("icu") in call("run", code=2).stderr
    assert not pathlib.Path("runs").exists()


def test_the_default_environment(call):
    pytest.importorskip("icu_sepsis", reason="needs the extra icu")
    output = call("run", "-T", "30").stdout
    assert {"SOFA < 5", "SOFA 5-7", "SOFA 7-9", "SOFA >= 9", "all"} <= set(cells(output))
    # The uniform policy's value in the mildest group, from the published tables.
    env = envs.make("icu-sepsis")
    value = of.evaluate(env.mdp(0), env.mdp(0).uniform_policy()).v[0]
    assert cells(call("describe").stdout)["SOFA < 5"][1] == f"{value:.4f}"
    assert "In the environment's own reward: learned " in output


# -- interruption ------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_done(tmp_path):
    words = ["run", "random-finite", "-T", "3000000", "--no-plot", "--set", "n_contexts=2"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from opo_fast.cli import main; main()", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    folder = tmp_path / "runs" / "random-finite-opo-seed0"
    while not folder.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    result = of.SimulationResult.load(folder / "result.npz")
    assert result.interrupted
    assert 0 < result.episodes < 3_000_000
    assert f"Interrupted: {result.episodes:,} of 3,000,000 episodes were played" in output
    assert cells(output)["all"][0] == f"{result.episodes:,}"
    assert "Traceback" not in errors


def test_ctrl_c_in_the_first_episode_leaves_nothing_behind(call, monkeypatch):
    def stop(self, context):
        raise KeyboardInterrupt

    monkeypatch.setattr(of.OPO, "policy", stop)
    done = call(*SMALL, code=130)
    assert "interrupted before the first episode was finished" in done.stderr
    assert not list(pathlib.Path("runs").iterdir())
    pathlib.Path("mine").mkdir()
    call(*SMALL, "--out", "mine", code=130)
    assert pathlib.Path("mine").is_dir()


# -- the other commands ------------------------------------------------------------------------------------------------


def test_envs_lists_every_name(call):
    output = call("envs").stdout
    for name in envs.names():
        assert name in output
    assert "needs the extra 'icu'" in " ".join(output.split())


def test_agents_lists_every_name_and_its_setting(call):
    output = call("agents").stdout
    for name in agents.names():
        assert name in output
    assert "bonus_scale 3e-05" in output


@pytest.mark.parametrize("name", agents.names(envs.make("random-finite").layout))
def test_every_agent_that_fits_runs(call, name):
    call("run", "random-finite", "-T", "5", "--no-plot", "--agent", name)
    result = of.SimulationResult.load(f"runs/random-finite-{name}-seed0/result.npz")
    assert result.settings["agent"] == name
    assert result.settings["options"].items() >= agents.practical(name).items()
    if name == "uniform":
        np.testing.assert_array_equal(result.value, result.uniform_value)
    if name == "optimum":
        np.testing.assert_array_equal(result.regret, 0.0)


def test_a_bandit_agent_needs_a_bandit(call):
    done = call("run", "random-finite", "-T", "5", "--agent", "uccb", code=2)
    assert done.stderr.count("\n") == 1
    assert "layout" in done.stderr


def test_describe_small(call):
    output = call("describe", "random-finite", "--set", "n_contexts=2").stdout
    env = envs.make("random-finite", n_contexts=2)
    table = cells(output)
    for c, label in enumerate(env.labels):
        mdp = env.mdp(env.contexts[c])
        uniform, best = of.evaluate(mdp, mdp.uniform_policy()).v[0], of.solve(mdp).v[0]
        assert table[label] == ["0.500", f"{uniform:.4f}", f"{best:.4f}", f"{uniform - best:.4f}"]
    assert f"{env.layout.n_states} states" in output


def test_describe_says_what_it_needs(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare_clinic.py").write_text(
        "import opo_fast as of\n\n\nclass Clinic:\n    layout = of.Layout([1], n_actions=2)\n\n    def sample_context(self, rng):\n"
        "        return 0\n\n    def mdp(self, context):\n        return of.LayeredMDP(self.layout, [[0.2, 0.5]], [])\n"
    )
    done = call("describe", "bare_clinic:Clinic", code=2)
    text = " ".join(done.stderr.split())
    assert (
        "bare_clinic:Clinic returns a Clinic without contexts, label, reward_value, loss_class, dynamics_class: describe needs an" in text
    )
    assert "run, compare and study need only layout, sample_context, mdp and whatever the agent needs" in text
    assert "regret" in call("compare", "bare_clinic:Clinic", "--agents", "uniform,optimum", "-T", "5", "--seeds", "1").stdout


def test_theory(call):
    output = call("theory", "--horizon", "5", "--states", "20", "--actions", "4", "-T", "1000").stdout
    assert re.search(r"beta_loss +68396\.6", output)
    assert re.search(r"eta +0\.0105311", output)
    assert "The bound is vacuous: it exceeds H T" in output
    assert "the policy stays uniform" in " ".join(output.split())
    # The environment has H = 11, including the layer that draws the first condition, and |S| = 7161.
    output = call("theory", "combination-lock").stdout
    layout = envs.make("combination-lock").layout
    assert f"H = {layout.horizon}, |S| = {layout.n_states}, |A| = {layout.n_actions}" in output
    output = " ".join(call("theory", "-T", "1" + "0" * 17).stdout.split())
    assert "vacuous" not in output
    assert re.search(r"The bound is 0\.\d+ times H T", output)


def test_the_first_episode_at_which_the_bound_is_informative(call):
    output = " ".join(call("theory").stdout.split())
    start = float(re.search(r"from about T = (\S+) on", output)[1])
    for factor, vacuous in ((0.9, True), (1.1, False)):
        assert ("vacuous" in call("theory", "-T", str(int(factor * start))).stdout) is vacuous


def test_help(call):
    words = " ".join(call("run", "--help").stdout.replace("│", " ").split())
    for option in (
        "--seed",
        "--episodes",
        "--horizon",
        "--agent",
        "--backend",
        "--out",
        "--bonus-scale",
        "--eta-scale",
        "--threads",
        "--no-plot",
    ):
        assert option in words
    assert "opo tunes itself" in words
    assert "--bonus-scale" in words
    for command in ("run", "show", "envs", "agents", "describe", "theory"):
        assert command in call("--help").stdout
        call(command, "--help")
    assert call("--version").stdout == f"opo-fast {of.__version__}\n"


def test_commands_of_other_modules_are_hooked_in_when_asked_for(call, tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "import typer\nfrom opo_fast import OpoError\napp = typer.Typer()\n"
        "@app.command()\ndef whatever(env: str) -> None:\n    '''Compare things.'''\n    raise OpoError(f'no {env}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "elsewhere": "elsewhere"})
    call("envs")
    assert "elsewhere" not in sys.modules
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    listed = call("--help").stdout
    assert "Compare things." in listed
    assert call("elsewhere", "icu", code=2).stderr == "opo-fast: no icu\n"


def test_the_entry_point(tmp_path):
    script = pathlib.Path(sys.executable).with_name("opo-fast")
    if not script.exists():
        pytest.skip("the package is not installed with its scripts")
    done = subprocess.run([script, "run", "nowhere"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("opo-fast: there is no environment 'nowhere'")
    assert done.stderr.count("\n") == 1


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "icu-spesis"], "there is no environment 'icu-spesis' (did you mean 'icu-sepsis'?): "),
        (["run", "random-finite", "--agent", "oppo"], "agent is 'oppo' (did you mean 'opo'?): one of opo, "),
        ([*SMALL[:2], "-T", "0"], "episodes is 0: a whole number at least 1 is needed"),
        ([*SMALL[:2], "-T", "-5"], "episodes is -5"),
        ([*SMALL, "--seed", "-1"], "seed is -1: a whole number at least 0 is needed"),
        ([*SMALL, "--bonus-scale", "-1"], "bonus_scale is -1.0: a finite number of at least 0 is needed"),
        ([*SMALL, "--bonus-scale", "nan"], "bonus_scale is nan"),
        ([*SMALL, "--eta-scale", "-0.5"], "eta_scale is -0.5"),
        ([*SMALL, "--eta-scale", "inf"], "eta_scale is inf"),
        ([*SMALL, "--threads", "0"], "threads is 0: a whole number at least 1 is needed"),
        ([*SMALL, "--horizon", "0"], "horizon is 0: a whole number at least 1 is needed"),
        ([*SMALL, "--set", "loss"], "--set is 'loss': KEY=VALUE is needed"),
        ([*SMALL, "--set", "colour=red"], "random-finite has no option 'colour': one of "),
        ([*SMALL, "--set", "n_contexts=many"], "n_contexts"),
        (
            [*SMALL, "--out", "taken/result"],
            "--out is 'taken/result': a folder, or a place where one can be made, is needed (Not a directory)",
        ),
        ([*SMALL, "--out", "taken"], "--out is 'taken': a folder, or a place where one can be made, is needed (File exists)"),
        ([*SMALL, "--out", "/dev/null"], "--out is '/dev/null': a folder"),
        ([*SMALL, "--agent", "uniform", "--bonus-scale", "3"], "bonus_scale is not an option of agent 'uniform': it has no options"),
        ([*SMALL, "--agent", "greedy", "--eta-scale", "3"], "eta_scale is not an option of agent 'greedy': one of backend is needed"),
        (
            [*SMALL, "--agent", "opo-no-bonus", "--bonus-scale", "3"],
            "bonus_scale is not an option of agent 'opo-no-bonus': one of tuning, ",
        ),
        (["describe", "atlantis"], "there is no environment 'atlantis'"),
        (["theory", "--horizon", "0"], "horizon is 0"),
        (["theory", "--states", "3"], "states is 3: a whole number at least 5 is needed"),
        (["theory", "--actions", "0"], "n_actions is 0"),
        (["theory", "-T", "0"], "episodes is 0"),
        (["theory", "--delta", "1"], "delta is 1.0"),
        (["theory", "--losses", "0"], "loss_class_size is 0.0"),
        (["theory", "--set", "n_contexts=2"], "--set is 'n_contexts=2', which is an option of an environment"),
        (
            ["theory", "atlantis"],
            "'atlantis' is neither a command of theory nor an environment: parameters, bounds, events, scaling, or a name",
        ),
        (["theory", "bouns"], "'bouns' is neither a command of theory nor an environment (did you mean 'bounds'?): "),
        (["theory", "combination-lok"], "nor an environment (did you mean 'combination-lock'?)"),
        (["theory", "no-such.tra"], "there is no environment 'no-such.tra'"),
        (["theory", "bounds", "--p-min", "0"], "p_min is 0.0: a finite number"),
        (["theory", "bounds", "--beta-loss", "1e-320"], "beta_loss is 1e-320: a finite number of at least 1e-280 is needed"),
        (["theory", "bounds", "hidden-path", "--set", "horizon=18"], "horizon is 18, n_actions is 2: the trees of 65,536 paths"),
        (["show", "nothing.npz"], "there is no file 'nothing.npz'"),
        (["show", "."], "there is no file 'result.npz'"),
    ],
)
def test_refusals_are_one_line(call, words, text):
    done = call(*words, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("opo-fast: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not pathlib.Path("runs").exists() or not list(pathlib.Path("runs").iterdir())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["run", "--episods", "5"], "--episodes"),
        (["run", "--episodes", "many"], "Invalid value for '--episodes'"),
        (["run", "-T", "1e3"], "a whole number, such as 1000, is needed"),
        (["compare", "--seeds", "2.5"], "a whole number, such as 1000, is needed"),
        (["study", "run", "x.toml", "--workers", "two"], "a whole number, such as 1000, is needed"),
        (["run", "--backend", "cuda"], "'numba'"),
        (["run", "icu-sepsis", "more"], "more"),
        (["run", "--out", ""], "The value of --out is empty"),
        (["run", "icu-sepsis", "--out="], "The value of --out is empty"),
        (["run", "--resume", ""], "The value of --resume is empty"),
        (["run", "--out"], "'--out' requires an argument"),
    ],
)
def test_wrong_words(call, words, text):
    assert text in call(*words, code=2).stderr


def test_an_error_in_the_run_names_the_episode_and_leaves_no_empty_folder(call, monkeypatch):
    def refuse(self, trajectory):
        raise of.OpoError("these data\ncannot be")

    monkeypatch.setattr(of.OPO, "observe", refuse)
    assert call(*SMALL, code=2).stderr == "opo-fast: these data cannot be (in episode 1 of 40)\n"
    assert not list(pathlib.Path("runs").iterdir())


def test_every_bound(call):
    output = call("theory", "bounds", "-T", "1000", "--p-min", "0.5").stdout
    numbers = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    # H = 5, |S| = 20, |A| = 4, T = 1000, |F| = |P| = 10: sqrt(2 H^4 T log 4); 10 log(8 10^6); sqrt(.5^-2 25 20^3 4 1000 log 2000).
    assert float(numbers["term_iii"][0]) == pytest.approx(math.sqrt(2 * 625 * 1000 * math.log(4)), rel=1e-5)
    assert float(numbers["hellinger"][0]) == pytest.approx(10 * math.log(1000 * 5 * 10 * 8 / 0.05), rel=1e-5)
    assert float(numbers["rm-ucdd"][0]) == pytest.approx(math.sqrt(4 * 25 * 8000 * 4 * 1000 * math.log(2000)), rel=1e-5)
    assert numbers["trivial"][0] == "5000"
    assert "needs --eluder" in output
    assert re.search(r"^regret .* T = [0-9.]+e\+1[5-8]", output, re.MULTILINE)
    tuned = call("theory", "bounds", "-T", "1000", "--term-iii", "12").stdout
    assert re.search(r"^term_iii +12 ", tuned, re.MULTILINE)
    assert "T =" not in tuned.partition("\n")[2]
    assert call("theory", "parameters", "-T", "50").stdout == call("theory", "-T", "50").stdout


def test_bounds_that_are_vacuous(call):
    # 10 candidates are fewer than 20 states.
    note = "lower bound 0 vacuous: its construction needs a class of more than |S| = 20 candidates"
    assert note in " ".join(call("theory", "bounds").stdout.split())
    output = call("theory", "bounds", "--losses", "1e6", "--p-min", "1").stdout
    assert "vacuous" not in output
    numbers = {line.split("  ")[0]: line.split() for line in output.splitlines() if line.strip()}
    assert float(numbers["lower bound"][2]) == pytest.approx(math.sqrt(1000 * 5 * 20 * 4 * math.log(1e6 / 20) / math.log(4)), rel=1e-5)
    assert float(numbers["rm-ucdd"][1]) == pytest.approx(math.sqrt(25 * 8000 * 4 * 1000 * math.log(1e7 / 0.05)), rel=1e-5)
    assert float(numbers["azuma"][1]) == pytest.approx(10 * math.sqrt(2000 * math.log(160)), rel=1e-5)
    # 8 / delta is too large for a float; log(1 / delta) is 737 instead of 3, which moves the start by a factor of some dozens.
    starts = [
        float(re.search(r"from about T = (\S+) on", " ".join(call("theory", "--delta", delta).stdout.split()))[1])
        for delta in ("0.05", "1e-320")
    ]
    assert 2 < starts[1] / starts[0] < 100


def test_events_of_the_proof(call):
    words = ["theory", "events", "random-finite", "-T", "30", "--seeds", "3", "--horizon", "3", "--set", "n_contexts=2"]
    output = call(*words, "--eta", "0.3", "--beta-loss", "4", "--beta-dynamics", "4", "--out", "there").stdout
    held = {line.split("  ")[0].strip(): line for line in output.splitlines()}
    assert "3/3" in held["factor 6"]
    assert "0.95" in held["regret"]
    assert "VIOLATED" not in output
    assert "E[regret]" in held["balanced"]
    with np.load("there/events.npz") as columns:
        assert columns["inaccurate"].shape == (3, 30)
    assert pathlib.Path("there/events.png").read_bytes().startswith(b"\x89PNG")
    # At the theory's constants no pair is explored.
    output = call(*words, "--no-plot").stdout
    assert "event B, share of the pairs: 1.000 over all" in output
    assert "inf" not in output
    assert not pathlib.Path("runs/events-random-finite/events.png").exists()


@pytest.mark.parametrize("option", ["--states", "--actions", "--losses", "--dynamics"])
def test_theory_refuses_a_size_beside_an_environment(option):
    done = CliRunner().invoke(cli.app, ["theory", "combination-lock", option, "5"])
    assert done.exit_code == 2
    assert f"{option} is given, but the environment 'combination-lock'" in done.output


def test_a_warning_is_one_line_and_comes_once(call):
    # RM-UCDD is made three times: once to compile, and once for each of two seeds.
    warnings.simplefilter("always")
    done = call("compare", "combination-lock", "-T", "5", "--seeds", "2", "--agents", "rm-ucdd", "--no-plot")
    assert done.stderr.startswith("opo-fast: warning: p_min is 0: some policy never reaches some state")
    assert done.stderr.count("\n") == 1


def test_compare_into_a_folder_of_other_runs_says_how_they_differ(call):
    words = ["compare", "random-finite", "--seeds", "1", "--agents", "uniform", "--no-plot"]
    call(*words, "-T", "5")
    done = call(*words, "-T", "6", code=2)
    assert "uniform-seed0.npz' was played with episodes 5 instead of 6: name another folder (--out), or remove the file" in done.stderr
    done = call("compare", "random-finite", "-T", "5", "--out", "/dev/null", code=2)
    assert "--out is '/dev/null': a folder, or a place where one can be made, is needed (File exists)" in done.stderr


@pytest.mark.parametrize("command", ["run", "compare", "study"])
def test_no_command_offers_to_install_completion(call, command):
    assert "completion" not in call(command, "--help").stdout
