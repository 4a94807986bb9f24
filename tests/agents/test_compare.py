"""Comparisons of agents: common random numbers, intervals, saved runs, and the command."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import opo_fast as of
from opo_fast import agents
from opo_fast.cli import commands as cli
from opo_fast.envs import combination_lock, random_finite
from opo_fast.runs.compare import Comparison, compare
from opo_fast.runs.statistics import growth_exponent


@pytest.fixture
def env():
    return random_finite(horizon=3, n_states=2, seed=1)


def test_all_agents_see_the_same_contexts_and_uniforms(env):
    found = compare(env, ["uniform", "greedy", "optimum"], 50, 3)
    assert list(found.results) == ["uniform", "greedy", "optimum"]
    for seed in range(3):
        runs = [found.results[label][seed] for label in found.results]
        for run in runs:
            assert run.settings["seed"] == seed
            np.testing.assert_array_equal(run.context_index, runs[0].context_index)
            np.testing.assert_array_equal(run.optimal_value, runs[0].optimal_value)
        alone = of.simulate(env, agents.make("greedy", env, episodes=50), 50, seed=seed)
        np.testing.assert_array_equal(found.results["greedy"][seed].value, alone.value)


def test_the_summary_is_what_the_runs_say(env):
    found = compare(env, {"theory": "opo", "mine": lambda seed: agents.make("e-uc3rl", env, episodes=80), "all alike": "uniform"}, 80, 4,
                    options={"theory": {"bonus_scale": 1.0}})  # fmt: skip
    lines = {line.agent: line for line in found.summary()}
    assert [line.regret.mean for line in found.summary()] == sorted(line.regret.mean for line in lines.values())
    for label, runs in found.results.items():
        totals = [run.regret.sum() for run in runs]
        line = lines[label]
        assert line.regret.mean == pytest.approx(np.mean(totals))
        assert line.regret.low <= line.regret.mean <= line.regret.high
        assert line.regret.seeds == 4
        assert line.gap_closed.mean == pytest.approx(np.mean([run.gap_closed(slice(72, None)) for run in runs]))
        exponents = [growth_exponent(np.arange(1, 81), run.cumulative_regret) for run in runs]
        assert line.exponent.mean == pytest.approx(np.mean(exponents))
        assert line.milliseconds.mean == pytest.approx(np.mean([1e3 * run.settings["agent_seconds"] / 80 for run in runs]))
        assert all(run.settings["agent_seconds"] > 0 for run in runs)
    # The uniform policy's regret is linear up to the order of contexts, and the theory's bonus is saturated.
    assert lines["all alike"].exponent.mean == pytest.approx(1.0, abs=0.1)
    assert lines["theory"].saturation == 1.0
    assert math.isnan(lines["all alike"].saturation)
    assert lines["mine"].planning_calls == lines["theory"].planning_calls + 5


def test_differences_are_paired_by_seed(env):
    found = compare(env, ["uniform", "greedy"], 30, 5)
    differences = [a.regret.sum() - b.regret.sum() for a, b in zip(*found.results.values(), strict=True)]
    paired = found.difference("uniform", "greedy")
    assert paired.mean == pytest.approx(np.mean(differences))
    assert paired.seeds == 5
    with pytest.raises(of.OpoError, match="no agent 'opo'"):
        found.difference("uniform", "opo")


def test_finished_runs_are_read_instead_of_played(env, tmp_path, monkeypatch):
    first = compare(env, ["uniform", "greedy"], 40, 2, folder=tmp_path)
    files = [f"{name}-seed{seed}.npz" for name in ("greedy", "uniform") for seed in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    again = compare(env, ["uniform", "greedy", "optimum"], 40, 3, folder=tmp_path)
    for label in ("uniform", "greedy"):
        for seed in (0, 1):
            assert again.results[label][seed].settings == first.results[label][seed].settings
            np.testing.assert_array_equal(again.results[label][seed].value, first.results[label][seed].value)
    assert [len(runs) for runs in again.results.values()] == [3, 3, 3]
    with pytest.raises(of.OpoError, match=r"uniform-seed0\.npz' was played with episodes 40 instead of 41: .*--out"):
        compare(env, ["uniform"], 41, 1, folder=tmp_path)
    with pytest.raises(of.OpoError, match=r"greedy-seed0\.npz' was played with agent greedy instead of epsilon-greedy"):
        compare(env, {"greedy": "epsilon-greedy"}, 40, 1, folder=tmp_path)


def test_an_edited_model_is_another_one(tmp_path):
    def world(loss):
        layout = of.Layout([1, 2], n_actions=2)
        losses = np.full((3, 2), loss)
        return of.FiniteContexts([of.LayeredMDP(layout, losses, [np.full((1, 2, 2), 0.5)])], probabilities=[1.0])

    makers = {"uniform": lambda seed: agents.Uniform(of.Layout([1, 2], n_actions=2))}
    compare(world(0.5), makers, 5, 1, folder=tmp_path)
    compare(world(0.5), makers, 5, [0, 7], folder=tmp_path)
    with pytest.raises(of.OpoError, match=r"uniform-seed0\.npz' was played with model \w+ instead of \w+: name another folder"):
        compare(world(0.25), makers, 5, 1, folder=tmp_path)


@pytest.mark.parametrize("identity", [3, "nonsense", "[]", None])
def test_a_run_of_something_else_is_refused(env, tmp_path, identity):
    compare(env, ["uniform"], 5, 1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    run = of.SimulationResult.load(path)
    run.settings["comparison"] = identity
    run.save(path)
    with pytest.raises(of.OpoError, match=r"uniform-seed0\.npz' (was played with|is not a run of a comparison)"):
        compare(env, ["uniform"], 5, 1, folder=tmp_path)


def test_ctrl_c_keeps_what_was_finished(env, tmp_path):
    class Impatient(agents.Uniform):
        asked = 0

        def observe(self, trajectory):
            super().observe(trajectory)
            Impatient.asked += 1
            if Impatient.asked == 3 + 20 + 5:
                raise KeyboardInterrupt

    makers = {"first": "uniform", "second": lambda seed: Impatient(env.layout)}
    found = compare(env, makers, 20, 3, folder=tmp_path)
    assert found.interrupted
    assert [len(runs) for runs in found.results.values()] == [2, 1]
    assert len(list(tmp_path.iterdir())) == 3
    resumed = compare(env, makers, 20, 3, folder=tmp_path)
    assert not resumed.interrupted
    assert [len(runs) for runs in resumed.results.values()] == [3, 3]


def test_bad_arguments_are_named(env):
    with pytest.raises(of.OpoError, match="seeds is 0"):
        compare(env, ["uniform"], 10, 0)
    with pytest.raises(of.OpoError, match="at least one agent"):
        compare(env, [], 10, 1)
    with pytest.raises(of.OpoError, match="options has 'opo'"):
        compare(env, ["uniform"], 10, 1, options={"opo": {}})
    with pytest.raises(of.OpoError, match="agent is 'unifrom'"):
        compare(env, ["unifrom"], 10, 1)
    with pytest.raises(of.OpoError, match="nothing to draw"):
        Comparison("nothing", {"uniform": []}).plot()


def test_every_agent_that_fits_is_compared_by_default(env, tmp_path):
    found = compare(env, None, 12, 1)
    assert list(found.results) == agents.names(env.layout)
    assert found.results["optimum"][0].cumulative_regret[-1] == 0.0
    pytest.importorskip("matplotlib")
    axes = found.plot(tmp_path / "regret.png")
    assert (tmp_path / "regret.png").stat().st_size > 10_000
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert {label.partition(" (")[0] for label in labels} >= set(agents.names(env.layout))
    assert "e-uc3rl (bonus scale 3e-05)" in labels
    looks = [(line.get_color(), line._unscaled_dash_pattern) for line in axes.get_lines()]
    assert len(set(looks)) == len(looks)


def test_progress_counts_runs(env, capsys):
    compare(env, ["uniform", "optimum"], 3, 2, progress=True)
    assert "4/4" in capsys.readouterr().err
    compare(env, ["uniform"], 3, 2, progress=False)
    assert capsys.readouterr().err == ""


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "random-finite", "--agents", "uniform, greedy", "-T", "30", "--seeds", "2", "--set", "n_contexts=2"]
    found = CliRunner().invoke(cli.app, arguments)
    assert found.exit_code == 0, found.output
    folder = tmp_path / "runs" / "compare-random-finite"
    assert {path.name for path in folder.iterdir()} == {
        "uniform-seed0.npz", "uniform-seed1.npz", "greedy-seed0.npz", "greedy-seed1.npz", "regret.png",
    }  # fmt: skip
    rows = [re.split(r"\s{2,}", line.strip()) for line in found.output.splitlines() if line.startswith(("uniform", "greedy"))]
    by_hand = compare(random_finite(n_contexts=2), ["uniform", "greedy"], 30, 2)
    assert [row[0].split()[0] for row in rows] == [line.agent for line in by_hand.summary()]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    refused = CliRunner().invoke(cli.app, ["compare", "random-finite", "--agents", "nobody", "-T", "30"])
    assert refused.exit_code == 2
    assert "agent is 'nobody'" in refused.output


def test_agents_that_do_not_fit_are_left_out_with_a_message(tmp_path, monkeypatch):
    from opo_fast.cli import compare as cli_compare

    env = combination_lock(horizon=4)
    assert cli_compare._fits("lolipop", env, 10, {})
    monkeypatch.setattr("opo_fast.agents.lolipop.LARGEST", 1)
    assert not cli_compare._fits("lolipop", env, 10, {})
