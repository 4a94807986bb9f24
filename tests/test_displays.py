"""The HTML that notebooks show for models and results: correct numbers and escaped names."""

from __future__ import annotations

import re

import numpy as np

import opo_fast as of


def rows(shown: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", shown)[1:]]


def test_a_model_has_a_row_for_layers_that_are_alike():
    mask = np.ones((7, 2), bool)
    mask[5, 1] = False
    losses = np.array([[0.5, 0.25], *[[0.0, 1.0]] * 4, *[[0.0, 1.0]] * 2])
    mdp = of.LayeredMDP(of.Layout([1, 2, 2, 2], 2), losses, [np.full((n, 2, 2), 0.5) for n in (1, 2, 2)], mask)
    shown = mdp._repr_html_()
    assert shown.startswith("<p>LayeredMDP: 4 layers, 7 states, 2 actions</p>")
    assert rows(shown) == [["0", "1", "2", "0.25 to 0.5"], ["1 to 2", "2", "4", "0 to 1"], ["3", "2", "3", "0 to 1"]]
    # Two next states of each of the 2 + 4 + 4 pairs before the last layer.
    assert "<p>20 transitions (dense, " in shown


def test_a_result_has_a_row_for_each_context_and_escapes_names():
    env = of.envs.make("combination-lock", horizon=3, n_contexts=2)
    result = of.simulate(env, of.agents.make("uniform", env, episodes=10), 10, seed=0, progress=False)
    # Labels are in order of appearance, rows are sorted by context.
    assert list(result.contexts) == [1, 0]
    result.settings["labels"] = ["a\x1b[31m", "<b>"]
    shown = result._repr_html_()
    table = rows(shown)
    assert [line[0] for line in table] == ["&lt;b&gt;", "a\\x1b[31m", "all"]
    assert sum(int(line[1]) for line in table[:-1]) == int(table[-1][1]) == 10
    assert float(table[-1][5]) == float(f"{result.cumulative_regret[-1]:.4g}")
    # The uniform policy closes 0 % of the gap.
    assert table[-1][6] == "0.0%"


def test_many_contexts_and_layers_are_cut():
    env = of.envs.make("random-finite", n_contexts=40, n_losses=2, n_dynamics=2)
    result = of.simulate(env, of.agents.make("uniform", env, episodes=200), 200, seed=0, progress=False)
    shown = result._repr_html_()
    assert len(rows(shown)) == 20
    assert f"{len(result.contexts) - 19} more contexts are in summary()" in shown
    long = of.LayeredMDP(of.Layout([1] * 30, 1), np.arange(30)[:, None] / 30, [np.ones((1, 1, 1))] * 29)
    assert len(rows(long._repr_html_())) == 20
    assert "... 10 more rows; " in long._repr_html_()
