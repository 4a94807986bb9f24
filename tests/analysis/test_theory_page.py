"""docs/theory.md: every number of its worked example, its names, and its statements about bounds."""

from __future__ import annotations

import importlib
import math
import pathlib
import re
from fractions import Fraction

import numpy as np
import pytest

import opo_fast as of
from opo_fast.analysis import bounds, context_events, informative_from, optimistic_steps, regret_bound, regret_decomposition, stack

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()
LAYOUT = of.Layout([1, 2, 2], 2)
GIVEN = {"eta": 10 * math.log(2), "beta_loss": 1 / 5, "beta_dynamics": 1 / 30}


def section(title):
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def number(text):
    """A fraction, or an expression with square roots."""
    try:
        return float(Fraction(text))
    except ValueError:
        assert re.fullmatch(r"[0-9 ()/+*sqrt-]+", text), text
        return float(eval(text, {"__builtins__": {}, "sqrt": math.sqrt}))


@pytest.fixture(scope="module")
def written():
    """The rows of the example by their first cell: (5, 2), (5,) or (2,)."""
    rows = [cells(line) for line in section("Three layers by hand").splitlines() if line.startswith("|")]
    return {
        row[0]: np.squeeze([[number(part) for part in cell.split(",")] for cell in row[1:]])
        for row in rows
        if row[0] and "---" not in row[0]
    }


@pytest.fixture(scope="module")
def models(written):
    blocks = np.array([[[1 / 2, 1 / 2], [1, 0]]]), np.array([[[1, 0], [1 / 2, 1 / 2]], [[1 / 2, 1 / 2], [0, 1]]])
    true = np.array([[[1 / 4, 3 / 4], [1, 0]]])
    return of.LayeredMDP(LAYOUT, written["l*"], [true, blocks[1]]), of.LayeredMDP(LAYOUT, written["f"], blocks)


def test_every_number_of_the_example(written, models):
    truth, fit = models
    first, second = optimistic_steps([fit] * 2, **GIVEN)
    optimum = of.solve(truth)
    env = of.FiniteContexts([truth])
    classes = of.FiniteLossClass([lambda c: fit.losses]), of.FiniteDynamicsClass([lambda c: fit.transitions])
    agent = of.OPO(LAYOUT, *classes, **GIVEN)
    terms = regret_decomposition(env, agent, of.simulate(env, agent, 2))
    events = context_events(truth, stack([first, second]), beta_loss=1 / 5, beta_dynamics=1 / 30, gamma=0.01, gamma_visits=1 / 60)
    found = {
        "f": fit.losses, "l*": truth.losses, "Q*": optimum.q, "V*": optimum.v, "q(pi*, P*)": of.occupancy(truth, optimum.policy),
        "b^1": first.bonus, "Q^1": first.q, "V^1": first.v, "pi^2": second.policy, "q(pi^1, P*)": of.occupancy(truth, first.policy),
        "N^2": second.visits, "b^2": second.bonus, "Q^2": second.q, "V^2": second.v, "q(pi^2, P*)": of.occupancy(truth, second.policy),
        "regret": terms.regret, "term (i)": terms.term_i, "term (ii)": terms.term_ii, "term (iii)": terms.term_iii,
        "term (iv)": terms.term_iv,
        "squared errors of the past": events.squared, "Hellinger errors of the past": events.hellinger,
        "expected bonus under A": events.bonuses[:, 0],
    }  # fmt: skip
    assert found.keys() == written.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, written[name], rtol=0, atol=1e-12, err_msg=name)
    assert events.inaccurate.tolist() == [False, True]
    assert events.hellinger[1] == pytest.approx(0.034, abs=5e-4)
    assert not events.under_explored.any()
    # The chain, the plain form and the public operations agree.
    np.testing.assert_allclose(of.policy_chain([fit], **GIVEN), written["pi^2"], atol=1e-12)
    np.testing.assert_allclose(of.reference.policy_chain([fit], **GIVEN), written["pi^2"], atol=1e-12)
    np.testing.assert_allclose(of.occupancy(fit, first.policy), written["N^2"], atol=1e-12)
    np.testing.assert_allclose(of.exponential_weights(first.policy, written["Q^1"], GIVEN["eta"]), written["pi^2"], atol=1e-12)


def test_every_name_of_the_symbols_is_there():
    names = re.findall(r"`(opo_fast[\w.]*)`", section("Symbols"))
    assert len(names) > 40
    for name in names:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                continue
            break
        for part in parts[end:]:
            annotated = part in getattr(found, "__annotations__", {}) or part in getattr(found, "_fields", ())
            assert hasattr(found, part) or annotated, f"{name} has no {part}"
            found = getattr(found, part, None)


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    assert len(blocks) == 2
    exec(blocks[0], names)
    terms = names["terms"]
    np.testing.assert_allclose(terms.term_i + terms.term_iii + terms.term_iv, names["run"].regret, atol=1e-9)
    exec(blocks[1], names)
    assert capsys.readouterr().out.splitlines()[-1] == "[]"


def test_what_the_page_says_of_the_bounds():
    layout, sizes = of.Layout([1, 4, 4, 4, 4], 4), {"loss_class_size": 10, "dynamics_class_size": 10}
    says = re.search(r"the regret bound is ([\d,]+) times H T", section("Bounds"))[1]
    assert float(says.replace(",", "")) == pytest.approx(regret_bound(layout, 1000, **sizes) / 5000, rel=0.01)
    assert informative_from(layout, **sizes, statement="regret") == pytest.approx(6e15, rel=0.1)
    says = re.search(r"\(([\d.]+) times at \|P\| = 10\^50\)", section("Bounds"))[1]
    large = bounds(layout, 1000, loss_class_size=10, dynamics_class_size=1e50)
    assert float(says) == pytest.approx(large.regret_from_lemmas / large.regret, abs=0.005)
