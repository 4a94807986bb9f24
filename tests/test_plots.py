"""The pictures hold the numbers of the runs, and need neither a screen nor global state."""

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


def test_one_run():
    result = run(0.75)
    axes = result.plot()
    (curve, uniform) = axes.get_lines()
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(1, 21))
    np.testing.assert_allclose(curve.get_ydata(), 0.25 * np.arange(1, 21), rtol=1e-14)
    np.testing.assert_allclose(uniform.get_ydata(), 0.5 * np.arange(1, 21), rtol=1e-14)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Steady", "uniform policy"]
    assert axes.get_title() == "two arms"
    assert axes.get_xlabel() == "episode"
    assert "cumulative regret" in axes.get_ylabel()


def test_several_runs_are_averaged_with_a_band():
    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    axes = regret_curves({"steady": [run(share) for share in shares], "other": [run(1.0, episodes=10)]}, title="t")
    steady, uniform, other = axes.get_lines()
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
