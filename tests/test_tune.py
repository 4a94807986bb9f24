"""`tune`: a search on some seeds, validated on others; and the settings that `compare` accepts."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.errors import install
from opo_fast.runs.tune import SEARCH, VALIDATION

optuna = pytest.importorskip("optuna", reason="needs the extra tune")


@pytest.fixture(scope="module")
def env():
    return envs.make("random-finite", horizon=3, n_states=2, n_contexts=2)


def regret(env, setting, seed, episodes):
    agent = agents.make("tabular-opo", env, episodes=episodes, seed=seed, **setting)
    return of.simulate(env, agent, episodes, seed, progress=False).regret.sum()


def test_a_grid_is_tried_whole_and_judged_on_other_seeds(env):
    scales = [1e-3, 1e-2, 1e-1]
    found = of.tune(env, "tabular-opo", 60, over={"bonus_scale": scales}, seeds=2, validation=4, options={"eta_scale": 20.0})
    assert sorted(trial.setting["bonus_scale"] for trial in found.trials) == scales
    for trial in found.trials:
        means = np.mean([regret(env, {**trial.setting, "eta_scale": 20.0}, SEARCH + k, 60) for k in range(trial.seeds)])
        assert trial.regret == pytest.approx(means, rel=1e-12)
    done = [trial for trial in found.trials if trial.seeds == 2]
    assert found.best == min(done, key=lambda trial: trial.regret).setting
    runs = found.validation.results
    assert [run.settings["seed"] for run in runs["best"]] == list(range(VALIDATION, VALIDATION + 4))
    mine = [regret(env, {**found.best, "eta_scale": 20.0}, VALIDATION + k, 60) for k in range(4)]
    np.testing.assert_allclose([run.regret.sum() for run in runs["best"]], mine, rtol=1e-12)
    default = [regret(env, {"eta_scale": 20.0}, VALIDATION + k, 60) for k in range(4)]
    assert found.difference().mean == pytest.approx(np.mean(mine) - np.mean(default), rel=1e-9)


def test_poor_settings_are_dropped_and_the_edge_is_pointed_out(env):
    # With a very large bonus the agent stays uniform, so only the setting with the smallest bonus learns.
    found = of.tune(env, "tabular-opo", 100, over={"bonus_scale": (1e-5, 1e3)}, trials=12, seeds=9, validation=2)
    assert {trial.seeds for trial in found.trials} <= {1, 3, 9}
    assert min(trial.seeds for trial in found.trials) == 1
    worst = max(found.trials, key=lambda trial: trial.setting["bonus_scale"])
    assert worst.seeds < 9 or worst is found.trials[0]
    edge = of.tune(env, "tabular-opo", 60, over={"bonus_scale": [1e-3, 1e2, 1e3, 1e4]}, seeds=2, validation=2)
    assert edge.edges == ["bonus_scale 0.001"]
    assert "at the edge: bonus_scale 0.001" in repr(edge)


def test_the_same_call_gives_the_same_search(env):
    one, two = (of.tune(env, "tabular-opo", 30, trials=5, seeds=2, validation=2) for _ in range(2))
    assert one.trials == two.trials
    assert set(one.best) == {"bonus_scale", "eta_scale"}


def test_refusals(env, monkeypatch):
    for over, words in {
        "agent 'uniform' has no setting to tune": ("uniform", None),
        r"over\['x'\]: agent 'opo' has no setting 'x'": ("opo", {"x": (1, 2)}),
        r"over\['eta_scale'\] is \(2, 1\): 0 < low < high": ("opo", {"eta_scale": (2, 1)}),
        r"over\['eta_scale'\] is \[1\]: a pair": ("opo", {"eta_scale": [1]}),
    }.items():
        with pytest.raises(of.OpoError, match=over):
            of.tune(env, words[0], 10, over=words[1])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(of.OpoError) as error:
        of.tune(env, "opo", 10)
    assert str(error.value) == f"tuning needs optuna: {install('tune')}"


def test_the_command(call):
    words = ["tune", "random-finite", "--agent", "tabular-opo", "-T", "40", "--seeds", "2", "--validate", "3", "--set", "n_contexts=2"]
    output = call(*words, "--over", "bonus-scale=1e-3,1e-2,1e5").stdout
    assert "On 3 seeds that the search has not seen, 40 episodes each:" in output
    assert "best minus default:" in output
    assert "opo-fast run random-finite --agent tabular-opo -T 40 --bonus-scale 0.0" in output
    refused = call(*words, "--over", "bonus_scale", code=2).stderr
    assert "--over is 'bonus_scale': KEY=LOW:HIGH or KEY=A,B,C is needed" in refused


def test_compare_takes_settings_and_functions(call):
    pathlib.Path("mine.py").write_text("from opo_fast import envs\ndef world(k=2):\n    return envs.make('random-finite', n_contexts=k)\n")
    agents_told = "tabular-opo,tabular-opo:bonus_scale=1e-4:eta_scale=7,uniform"
    done = call("compare", "mine:world", "-T", "20", "--seeds", "2", "--agents", agents_told, "--set", "k=3", "--out", "c", "--no-plot")
    assert "tabular-opo:bonus_scale=1e-4:eta_scale=7: bonus_scale 0.0001, eta_scale 7" in done.stdout
    assert "tabular-opo: bonus_scale 0.01, eta_scale 20" in done.stdout
    run = of.SimulationResult.load("c/tabular-opo-bonus-scale-1e-4-eta-scale-7-seed1.npz")
    assert run.settings["options"] == {"bonus_scale": 1e-4, "eta_scale": 7}
    env = envs.make("random-finite", n_contexts=3)
    np.testing.assert_allclose(run.regret.sum(), regret(env, {"bonus_scale": 1e-4, "eta_scale": 7}, 1, 20), rtol=1e-12)
    common = call("compare", "mine:world", "-T", "20", "--seeds", "1", "--agents", "opo,greedy", "--bonus-scale", "1e-5", "--no-plot")
    assert "opo: bonus_scale 1e-05" in common.stdout
    assert "greedy: no settings" in common.stdout
    assert "--agents has 'opo:x': NAME:KEY=VALUE is needed" in call("compare", "--agents", "opo:x", code=2).stderr


def test_the_options_of_an_environment(call):
    output = call("envs", "random-finite").stdout
    for option in envs.info("random-finite").options:
        assert option in output
    assert "there is no environment 'nowhere'" in call("envs", "nowhere", code=2).stderr
    pytest.importorskip("gymnasium", reason="needs the extra gym")
    unknown = call("describe", "frozen-lake", "--set", "map_name=9x9", code=2).stderr
    assert unknown == "opo-fast: map_name is '9x9': one of 4x4, 8x8 is needed\n"
