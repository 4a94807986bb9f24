"""Statistics of studies against closed forms and SciPy, and the contents of tables and exports."""

from __future__ import annotations

import csv
import importlib.util
import json
import math

import numpy as np
import pytest
from scipy import stats
from study_cases import small

import opo_fast as of
from opo_fast.runs.statistics import band, estimate, growth_exponent
from opo_fast.study import Results, Store, run_study
from opo_fast.study.statistics import compare, growth, heatmap


def test_a_mean_has_the_interval_of_scipys_bootstrap():
    values = np.random.default_rng(1).exponential(size=20)
    found = estimate(values)
    expected = stats.bootstrap((values,), np.mean, n_resamples=2000, method="BCa", rng=np.random.default_rng(0)).confidence_interval
    assert found.mean == pytest.approx(values.mean(), rel=1e-15)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found == estimate(values)


def test_an_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        found = estimate(rng.normal(3.0, 1.0, size=40))
        hits += found.low <= 3.0 <= found.high
    # 95 % of 300 give or take three standard deviations, and the bootstrap's known shortfall at 40 values.
    assert 270 <= hits <= 297


def test_intervals_at_the_edges():
    assert estimate([5.0])[0] == 5.0
    assert math.isnan(estimate([5.0]).low)
    assert estimate([2.0] * 4) == (2.0, 2.0, 2.0, 4)
    assert estimate([1.0, math.nan, 3.0, math.inf])[0::3] == (2.0, 2)
    assert estimate([])[3] == 0
    assert math.isnan(estimate([]).mean)


def test_a_band_is_pointwise_and_narrow_where_the_curves_agree():
    rng = np.random.default_rng(0)
    curves = np.cumsum(rng.random((12, 50)), axis=1)
    curves[:, 0] = 1.0
    mean, low, high = band(curves)
    assert np.allclose(mean, curves.mean(axis=0), rtol=1e-14)
    assert (low[0], high[0]) == (1.0, 1.0)
    assert ((low[1:] < mean[1:]) & (mean[1:] < high[1:])).all()
    assert ((low >= curves.min(axis=0)) & (high <= curves.max(axis=0))).all()
    # At 12 curves the band is about two standard errors wide to each side.
    error = curves[:, 1:].std(axis=0, ddof=1) / math.sqrt(12)
    assert np.median((high - low)[1:] / (2 * error)) == pytest.approx(1.96, rel=0.15)


@pytest.mark.parametrize("exponent", [0.5, 2 / 3, 1.0])
def test_the_growth_exponent_of_a_power_is_its_exponent(exponent):
    t = np.arange(1, 3001)
    assert growth_exponent(t, 7.0 * t**exponent) == pytest.approx(exponent, abs=1e-12)
    assert growth_exponent(t[9::10], 7.0 * t[9::10] ** exponent) == pytest.approx(exponent, abs=1e-12)


def test_the_growth_exponent_of_a_logarithm_falls_and_of_no_regret_is_unknown():
    t = np.arange(1, 10_001)
    # The slope of log log t over log t is 1 / log t, between T/10 and T.
    assert 1 / math.log(10_000) < growth_exponent(t, np.log(1.0 + t)) < 1 / math.log(1000)
    assert math.isnan(growth_exponent(t, np.zeros(t.size)))
    assert math.isnan(growth_exponent(t[:2], t[:2]))


def written(folder, numbers):
    """A study in a folder whose runs have these final regrets by (agent label, seed); the curves are straight lines."""
    agents = [
        {"name": "opo", "label": "a", "grid": {"bonus_scale": [1.0, 2.0], "eta_scale": [3.0, 4.0]}},
        {"name": "uniform", "label": "u"},
    ]
    study = small(agents=agents, seeds=3, episodes=10)
    store = Store(folder)
    store.prepare(study)
    for run in study.runs():
        regret = numbers.get((run.agent.label, run.seed))
        if regret is None:
            continue
        t = np.arange(1, 11)
        columns = {"episode": t, "cumulative_regret": regret * t / 10, "cumulative_uniform_regret": 2.0 * t}
        meta = {
            "format": "opo_fast.study", "version": 1, "id": run.id, "environment": run.environment.record(), "agent": run.agent.record(),
            "episodes": 10, "seed": run.seed, "record": {"every": 1, "measures": ["regret"]}, "versions": {}, "host": "h",
            "started": 0.0, "finished": 1.0, "resumed": 0, "summary": {"regret": regret, "seconds": 1.0},
        }  # fmt: skip
        store.write_run(meta, columns, "npz")
    return Results(store)


GRID = {
    "a (bonus_scale=1, eta_scale=3)": [1.0, 2.0, 6.0],
    "a (bonus_scale=1, eta_scale=4)": [2.0, 2.0],
    "a (bonus_scale=2, eta_scale=3)": [5.0],
    "u": [11.0, 9.0, 10.0],
}


def grid(folder):
    return written(folder, {(label, seed): value for label, values in GRID.items() for seed, value in enumerate(values)})


def test_agents_are_compared_on_common_seeds(tmp_path):
    found = {(c.first, c.second): c for c in compare(grid(tmp_path / "s"))}
    first, last = "a (bonus_scale=1, eta_scale=3)", "u"
    assert found[first, last].difference.mean == pytest.approx((-10 - 7 - 4) / 3)
    assert found[first, last].difference[3] == 3
    assert found[first, last].lower == 3
    short = found[first, "a (bonus_scale=1, eta_scale=4)"]
    assert (short.difference.mean, short.difference.seeds, short.lower) == (-0.5, 2, 1)
    alone = found["a (bonus_scale=2, eta_scale=3)", last]
    assert (alone.difference.mean, alone.difference.seeds) == (-6.0, 1)
    assert not any("bonus_scale=2, eta_scale=4" in name for pair in found for name in pair)


def test_a_heat_map_has_the_means_at_their_settings(tmp_path):
    results = grid(tmp_path / "s")
    (one,) = heatmap(results, "lock", "a")
    assert (one.x_values, one.y_values) == ([1.0, 2.0], [3.0, 4.0])
    assert np.array_equal(one.means, [[3.0, 5.0], [2.0, math.nan]], equal_nan=True)
    lines = heatmap(results, "lock", "a", "eta_scale", "bonus_scale")[0].means
    assert np.array_equal(lines, one.means.T, equal_nan=True)
    with pytest.raises(of.OpoError, match=r"'delta' is not in the grid of 'a': one of bonus_scale, eta_scale"):
        heatmap(results, "lock", "a", "delta")
    with pytest.raises(of.OpoError, match=r"agent is 'b': one of a, u"):
        heatmap(results, "lock", "b")


def test_straight_lines_grow_with_exponent_one(tmp_path):
    found = growth(grid(tmp_path / "s"), "lock", "u")
    assert found.mean == pytest.approx(1.0, abs=1e-12)
    assert found.seeds == 3


def test_curves_keep_to_common_episodes_and_to_points(tmp_path):
    results = grid(tmp_path / "s")
    episodes, values, seeds = results.curves("lock", "u")
    assert (episodes.tolist(), values.shape, seeds) == (list(range(1, 11)), (3, 10), [0, 1, 2])
    episodes, values, _ = results.curves("lock", "u", points=4)
    assert episodes.tolist() == [1, 4, 7, 10]
    assert values[:, -1].tolist() == [11.0, 9.0, 10.0]
    assert results.curves("lock", "a (bonus_scale=2, eta_scale=4)")[0].size == 0
    with pytest.raises(of.OpoError, match=r"has no column 'saturation'"):
        results.curves("lock", "u", "saturation")


def test_exports_hold_every_recorded_number(tmp_path):
    run_study(
        small(agents=["opo", {"name": "epsilon-greedy", "options": {"scale": 0.2}}], episodes=20, record={"every": 5}), tmp_path / "s"
    )
    results = Results(tmp_path / "s")
    assert results.export(tmp_path / "all.csv") == 4 * 4
    with open(tmp_path / "all.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["agent.scale"] for line in lines if line["agent"] == "epsilon-greedy"} == {"0.2"}
    run = results.runs[0]
    stored = results.read(run)
    mine = [line for line in lines if line["run"] == run.id]
    assert [float(line["cumulative_regret"]) for line in mine] == stored["cumulative_regret"].tolist()
    assert [int(line["episode"]) for line in mine] == [5, 10, 15, 20]
    assert results.export(tmp_path / "runs.csv", summary=True) == 4
    with open(tmp_path / "runs.csv", newline="") as file:
        lines = {line["run"]: line for line in csv.DictReader(file)}
    assert float(lines[run.id]["regret"]) == stored["cumulative_regret"][-1]
    with pytest.raises(of.OpoError, match=r"'.*t\.xlsx': an ending \.csv or \.parquet is needed"):
        results.export(tmp_path / "t.xlsx")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow (extra 'parquet') is not installed")
def test_parquet_exports_are_read_by_others(tmp_path):
    import pyarrow.parquet as pq

    agents = [{"name": "opo", "options": {"eta_scale": 3}}, {"name": "opo", "label": "other", "options": {"eta_scale": 2.5}}]
    run_study(small(agents=agents, episodes=20, record={"every": 5}, format="parquet"), tmp_path / "s")
    results = Results(tmp_path / "s")
    assert results.export(tmp_path / "all.parquet") == 16
    table = pq.read_table(tmp_path / "all.parquet")
    assert sorted(set(table.column("agent.eta_scale").to_pylist())) == [2.5, 3.0]
    run = results.runs[0]
    mine = table.filter(pq.read_table(tmp_path / "all.parquet").column("run").to_numpy() == run.id)
    assert mine.column("value").to_numpy().tobytes() == results.read(run)["value"].tobytes()
    alone = pq.read_table(tmp_path / "s" / "runs" / f"{run.id}.parquet")
    assert json.loads(alone.schema.metadata[b"opo_fast"])["seed"] == run.seed
    assert alone.column("value").to_numpy().tobytes() == results.read(run)["value"].tobytes()


def test_errors_without_finished_runs(tmp_path):
    results = written(tmp_path / "s", {})
    with pytest.raises(of.OpoError, match="no run of 'small' is finished: there is nothing to export"):
        results.export(tmp_path / "x.csv")
    with pytest.raises(of.OpoError, match=r"\(lock / u / seed 0\) is not finished"):
        results.read(next(run for run in results.runs if run.agent.label == "u"))
