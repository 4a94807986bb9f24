"""Growth exponents along the axes of a study: exact power laws, closed forms of the uniform policy, intervals, the command."""

from __future__ import annotations

import csv
import math
import pathlib

import numpy as np
import pytest
from typer.testing import CliRunner

import opo_fast as of
from opo_fast.analysis import regret_bound
from opo_fast.cli import commands as cli
from opo_fast.study import Entry, Results, Study, growth_along, growth_over_episodes, power_law, run_study, scaling_study
from opo_fast.study.scaling import draw_growth


def test_an_exact_power_law():
    found = power_law([1, 2, 4, 8], [[3 * x**0.7] * 5 for x in (1, 2, 4, 8)])
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, 0.7, 0.7), rel=1e-12)
    assert found.seeds == 5
    # Paired samples have no spread here, since all five grow with the same exponent.
    scaled = [[k * x**0.7 for k in (1, 2, 3, 4, 9)] for x in (1, 2, 4, 8)]
    together, apart = power_law([1, 2, 4, 8], scaled, paired=True), power_law([1, 2, 4, 8], scaled)
    assert (together.mean, together.low, together.high) == pytest.approx((0.7, 0.7, 0.7), rel=1e-9)
    assert apart.high - apart.low > 0.1
    # Two points: the slope of their line.
    assert power_law([2, 10], [[4.0], [7.0, 9.0]]).mean == pytest.approx(math.log(2) / math.log(5), rel=1e-12)


def test_the_interval_covers_the_exponent_about_as_often_as_it_says():
    rng, x, covered = np.random.default_rng(1), [1, 2, 4, 8], 0
    for _ in range(200):
        found = power_law(x, [2 * value**0.5 * rng.gamma(20, 1 / 20, 20) for value in x])
        covered += found.low <= 0.5 <= found.high
    assert 0.87 <= covered / 200 <= 0.99
    assert math.isnan(power_law(x, [[1.0]] * 4).low)
    assert math.isnan(power_law(x, [[0.0, 0.0]] * 4).mean)


@pytest.mark.parametrize(("values", "samples"), [([1, 1], [[1.0], [2.0]]), ([1, 2], [[1.0]]), ([1, 2], [[1.0], []])])
def test_samples_without_an_exponent(values, samples):
    with pytest.raises(of.OpoError, match="at least two different values are needed"):
        power_law(values, samples)


def test_resamples_that_have_no_logarithm_are_left_out():
    # The mean of a resample of (-1, 5) is -1, 2 or 5.
    found = power_law([1, 2], [[-1.0, 5.0], [4.0, 4.0]])
    assert found.mean == pytest.approx(1.0, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((math.log2(4 / 5), 1.0), rel=1e-12)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda: power_law(["a", 2], [[1.0], [2.0]]), r"values\[0\] is 'a': a number"),
        (lambda: power_law([1, math.nan], [[1.0], [2.0]]), r"values\[1\] is nan"),
        (lambda: power_law([1, 2], None), "samples is a NoneType: a sequence of sequences of numbers"),
        (lambda: power_law([1, 2], [["x"], [2.0]]), r"samples\[0\] has dtype"),
        (lambda: growth_over_episodes({1: 2}), r"results\[1\] is a int: an opo_fast\.study\.Results"),
        (lambda: growth_over_episodes([2]), "results is a list: a dict of Results by T"),
        (lambda: scaling_study("s", "layered-bandit", {}, {"gap": ["a"]}, ["uniform"], episodes=5), r"axes\['gap'\]\[0\] is 'a': a number"),
        (lambda: scaling_study("s", "layered-bandit", {}, {"gap": 3}, ["uniform"], episodes=5), r"axes\['gap'\] is a int"),
        (lambda: scaling_study("s", "layered-bandit", {}, [3], ["uniform"], episodes=5), "axes is a list: a dict"),
        (lambda: draw_growth([3]), r"growths\[0\] is a int"),
    ],
)
def test_wrong_kinds_are_refused(bad, text):
    with pytest.raises(of.OpoError, match=text):
        bad()


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """The uniform policy on layered bandits, whose regret is T H gap (1 - 1/|A|) exactly."""
    folder = tmp_path_factory.mktemp("scaling")
    base = {"horizon": 2, "n_states": 2, "n_actions": 2, "n_contexts": 1, "gap": 0.2, "unknown": 1}
    axes = {"horizon": [2, 4], "gap": [0.1, 0.2, 0.4], ("n_states", "n_contexts"): [2, 3]}
    found = {}
    for t in (10, 20):
        study = scaling_study(
            "uniform", "layered-bandit", base, axes if t == 20 else {}, ["uniform"], episodes=t, replicates={"seed": [0, 1]}
        )
        assert run_study(study, folder / str(t)).failed == 0
        found[t] = Results(folder / str(t))
    return base, found


def test_exponents_of_the_uniform_policy_are_those_of_its_closed_form(studied):
    _, found = studied
    # The base is a point of each axis, but is only run once.
    assert len(found[20].environments) == 2 * (1 + 1 + 2 + 2)
    growth = {growth.axis: growth for growth in (*growth_along(found[20], "horizon"), *growth_along(found[20], "gap"))}
    for axis, values in (("horizon", (2, 4)), ("gap", (0.1, 0.2, 0.4))):
        assert growth[axis].values == values
        assert growth[axis].exponent.mean == pytest.approx(1.0, abs=1e-9)
        assert growth[axis].exponent.seeds == 2
    assert growth["horizon"].means == pytest.approx([20 * h * 0.2 / 2 for h in (2, 4)], rel=1e-9)
    assert growth["gap"].fixed == {"horizon": 2, "n_states": 2, "n_actions": 2, "n_contexts": 1, "unknown": 1}
    # Two options that grow together.
    both = growth_along(found[20], ["n_states", "n_contexts"])
    assert [(one.axis, one.values) for one in both] == [("n_states+n_contexts", (2, 3))]
    assert both[0].exponent.mean == pytest.approx(0.0, abs=1e-9)


def test_exponents_over_studies_of_different_length(studied):
    base, found = studied
    (growth,) = growth_over_episodes(found, fixed=base)
    assert growth.values == (10, 20)
    assert growth.exponent.mean == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(of.OpoError, match="axis is 'colour': an option of the environments is needed, one of gap, horizon"):
        growth_along(found[20], "colour")


def test_a_picture_has_one_panel_for_each_axis(studied):
    _, found = studied
    figure = draw_growth([*growth_along(found[20], "horizon"), *growth_along(found[20], "gap")], {"gap": 0.0})
    assert [axes.get_title() for axes in figure.axes] == ["horizon", "gap"]


def test_runs_of_a_grid_are_grouped_by_their_other_options(tmp_path):
    entry = Entry("layered-bandit", "lb", {"n_contexts": 1, "unknown": 1}, {"horizon": [1, 2], "n_actions": [2, 4]})
    run_study(Study("grid", [entry], ["uniform"], episodes=5), tmp_path / "grid")
    found = growth_along(Results(tmp_path / "grid"), "horizon")
    assert sorted(growth.fixed["n_actions"] for growth in found) == [2, 4]
    assert [growth.exponent.mean for growth in found] == pytest.approx([1.0, 1.0], abs=1e-9)


def test_the_command_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    words = ["theory", "scaling", "layered-bandit", "--axis", "horizon=2,4", "--axis", "episodes=10,20", "-T", "10", "--models", "2"]
    words += ["--agents", "uniform,opo", "-w", "1", "--set", "n_contexts=1", "--set", "unknown=1"]
    first = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    lines = {line.split("  ")[0].strip(): line for line in first.stdout.splitlines()}
    assert lines["uniform"].split()[1] == "1.00"
    assert {"opo (self-tuning)", "opo (by hand)", "opo (theory)", "the theorem's bound"} <= set(lines)
    folder = pathlib.Path("runs/scaling-layered-bandit")
    rows = list(csv.DictReader((folder / "scaling.csv").open()))
    # H^4 sqrt(|S|): |S| is 3 and 7.
    horizon = next(row for row in rows if row["axis"] == "horizon")
    assert 4 < float(horizon["theory"]) < 5
    # Two values of T: the slope of the bound between them.
    layout, sizes = of.Layout([1, 2, 2], 3), {"loss_class_size": 3, "dynamics_class_size": 1}
    ratio = regret_bound(layout, 20, **sizes) / regret_bound(layout, 10, **sizes)
    assert float(next(row for row in rows if row["axis"] == "episodes")["theory"]) == pytest.approx(math.log2(ratio), rel=1e-9)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("T*/runs/*")}
    assert CliRunner().invoke(cli.app, words, catch_exceptions=False).exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("T*/runs/*")}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["layered-bandit"], "--axis is needed for 'layered-bandit'"),
        (["--axis", "horizon=2"], "--axis is 'horizon=2': NAME=V1,V2,... with at least two different numbers"),
        (["--axis", "colour=1,2"], "--axis is 'colour=1,2': episodes alone, or options of random-finite"),
        (["--axis", "episodes+horizon=1,2"], "episodes alone"),
        (["--axis", "horizon=2,2,4"], "--axis is 'horizon=2,2,4', which has a value twice: give each value once"),
        (["--axis", "horizon=2,4", "--axis", "horizon=3,5"], "--axis is 'horizon=3,5', which repeats an option or an axis"),
        (["--axis", "n_losses+n_dynamics=2,4", "--axis", "n_dynamics+n_losses=3,5"], "repeats an option or an axis"),
        (["--axis", "gap+gap=0.1,0.2"], "repeats an option or an axis"),
        (["--axis", "seed=1,2"], "--axis is 'seed=1,2': a seed makes another environment of the same size; set their number"),
        (["--axis", "horizon=2,4", "--set", "seed=3"], "--set gives seed=3: the environments of each size have their own seeds"),
        # An environment that cannot be made is refused before the first run.
        (["--axis", "horizon=2,2.5", "-T", "5"], "horizon is 2.5: a whole number"),
    ],
)
def test_axes_that_are_refused(words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, ["theory", "scaling", *words])
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())
    assert not list(tmp_path.glob("runs/*/T*"))


def test_the_command_explains_what_is_missing(call):
    words = ["theory", "scaling", "layered-bandit", "--axis", "horizon=1,2", "-T", "101", "-w", "1", "--agents", "opo,optimum"]
    done = call(*words, "--models", "2", "--set", "n_contexts=1", "--set", "unknown=1")
    output = " ".join(done.stdout.split())
    assert "-: no exponent, because the mean regret at some value is not above 0" in output
    assert "2 runs of each size make wide intervals: more environments (--models)" in output
    # OPO at the theory's constants is the uniform policy, whose regret is T H gap (1 - 1/|A|), and no run warns of it.
    assert "opo (theory) 1.00 [1.00, 1.00]" in output
    assert done.stderr == ""
