"""Plots show the numbers of the runs, and need neither a screen nor global state."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import opo_fast as of
from opo_fast.runs.plots import new_figure, regret_curves

matplotlib = pytest.importorskip("matplotlib", reason="needs the extra plot")


class Steady:
    """Plays one policy."""

    def __init__(self, layout: of.Layout, share: float) -> None:
        self.layout, self.share = layout, share

    def policy(self, context: object) -> np.ndarray:
        return np.array([[self.share, 1 - self.share]])

    def observe(self, trajectory: of.Trajectory) -> None:
        pass


def run(share: float, episodes: int = 20, seed: int = 0) -> of.SimulationResult:
    layout = of.Layout([1], 2)
    cmdp = of.FiniteContexts([of.LayeredMDP(layout, [[0.0, 1.0]], [])], name="two arms")
    return of.simulate(cmdp, Steady(layout, share), episodes, seed)


def legend(axes):
    """The legend of a plot; in a figure of the package it belongs to the figure, so that the panels keep their width."""
    return axes.get_legend() or axes.figure.legends[0]


def test_one_run():
    result = run(0.75)
    axes = result.plot()
    (curve, uniform) = axes.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(1, 21))
    np.testing.assert_allclose(curve.get_ydata(), 0.25 * np.arange(1, 21), rtol=1e-14)
    np.testing.assert_allclose(uniform.get_ydata(), 0.5 * np.arange(1, 21), rtol=1e-14)
    assert [text.get_text() for text in legend(axes).get_texts()] == ["Steady", "uniform policy"]
    assert legend(axes).get_title().get_text() == "seed 0"
    assert axes.get_title() == "two arms"
    assert axes.get_xlabel() == "episode"
    assert "cumulative regret" in axes.get_ylabel()


def test_several_runs_are_averaged_with_a_band():
    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    axes = regret_curves({"steady": [run(share) for share in shares], "other": [run(1.0, episodes=10)]}, title="t")
    steady, other, uniform = axes.get_lines()
    np.testing.assert_allclose(steady.get_ydata(), 0.3 * np.arange(1, 21), rtol=1e-12)
    np.testing.assert_allclose(uniform.get_ydata(), 0.5 * np.arange(1, 21), rtol=1e-12)
    np.testing.assert_allclose(other.get_ydata(), np.zeros(10), atol=1e-15)
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    # The 10 % and 90 % points of five equally spaced rates .1 .. .5 are .14 and .46.
    assert heights.max() == pytest.approx(0.46 * 20, rel=1e-12)
    assert heights.min() == pytest.approx(0.14, rel=1e-12)
    assert axes.get_title() == "t"
    assert steady.get_color() != other.get_color()
    assert steady.get_linestyle() != other.get_linestyle()
    assert legend(axes).get_title().get_text() == "mean of 1 to 5 seeds, band: middle 80 %"


def test_the_regret_of_an_episode_is_beside_it():
    result = run(0.75, episodes=200)
    result.value[100:] = 0.0
    left, right = result.plot().figure.axes
    np.testing.assert_allclose(left.get_lines()[0].get_ydata()[-1], 25.0, rtol=1e-14)
    curve, uniform = right.get_lines()
    # A running mean over a fiftieth of the run.
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(4, 201))
    expected = np.convolve(result.regret, np.full(4, 0.25), "valid")
    np.testing.assert_allclose(curve.get_ydata(), expected, atol=1e-12)
    np.testing.assert_allclose(uniform.get_ydata(), 0.5, rtol=1e-12)
    assert len(result.plot(beside=False).figure.axes) == 1


def test_the_learners_fill_the_picture():
    results = {"learner": [run(0.99, episodes=100)], "uniform": [run(0.5, episodes=100)]}
    axes = regret_curves(results)
    assert axes.get_ylim()[1] == pytest.approx(1.05)  # 1.05 times the learner's regret of 1; that of the uniform agent is 50
    assert regret_curves({"uniform": [run(0.5)]}).get_ylim()[1] >= 10.0


def test_logarithmic_axes():
    axes = run(0.75).plot(log=True)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylim() == pytest.approx((1.05 * 0.7 * 0.25, 1.2 * 5))  # from below the first episode's regret
    assert run(1.0).plot(log=True).get_yscale() == "log"  # nothing positive to draw


def test_runs_in_two_groups_are_lines_of_their_own():
    split = [run(share) for share in (0.5, 0.51, 0.52, 0.98, 0.99)]
    axes = regret_curves({"split": split})
    assert len(axes.get_lines()) == 1 + 5 + 1
    assert not axes.collections
    assert legend(axes).get_title().get_text().endswith("thin: each seed")
    assert axes.get_ylim()[1] == pytest.approx(1.05 * 10)


def test_settings_are_in_the_legend():
    result = run(0.75)
    result.settings["options"] = {"bonus_scale": 1e-5, "backend": "numba"}
    assert legend(result.plot()).get_texts()[0].get_text() == "Steady (bonus scale 1e-05)"


def test_a_notebook_shows_the_picture():
    assert run(0.75).plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(tmp_path, ending, start):
    path = tmp_path / f"regret.{ending}"
    run(0.75).plot(path)
    assert path.read_bytes().startswith(start)


def test_axes_of_ones_own():
    axes = new_figure(7.0, 4.3).add_subplot()
    assert run(0.75).plot(axes=axes) is axes
    assert len(axes.get_lines()) == 2


def test_pyplot_is_not_imported():
    script = "import sys, opo_fast.runs.plots as p; p.new_figure(7, 4); assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_the_package_imports_no_matplotlib():
    script = "import sys, opo_fast; assert not {'matplotlib', 'rich', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    for name in ("matplotlib.backends.backend_agg", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(of.OpoError, match=r"plots need matplotlib: pip install .*plot"):
        run(0.75).plot()


def test_an_ending_that_is_no_format_and_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(of.OpoError, match=r"path is '.*regret\.xyz': "):
        run(0.75).plot(tmp_path / "regret.xyz")
    with pytest.raises(of.OpoError, match=r"path: '.*nowhere.*' cannot be written"):
        run(0.75).plot(tmp_path / "nowhere" / "regret.png")


def test_nothing_to_draw():
    with pytest.raises(of.OpoError, match="results is empty"):
        regret_curves({})
    with pytest.raises(of.OpoError, match="results\\['a'\\] is empty"):
        regret_curves({"a": []})


def test_a_long_legend_leaves_the_panels_their_width():
    label = "a learner with a long name and many settings that the legend has to tell"
    axes = regret_curves({f"{label} {i}": [run(0.5 + 0.1 * i)] for i in range(4)})
    axes.figure.canvas.draw()
    first, second = (one.get_position() for one in axes.figure.axes)
    assert first.width + second.width > 0.6
    assert first.width == pytest.approx(second.width, rel=0.05)


def test_a_logarithmic_axis_begins_where_the_curves_do():
    axes = run(0.75, 200).plot(log=True)
    low, high = axes.get_ylim()
    assert 0.1 < low < 0.25
    assert 50 < high < 75
