"""`algorithm_checks`: the equations of Algorithm 1 hold along its steps, and each broken ingredient violates its equation."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast import reference
from opo_fast.analysis import algorithm_checks, history_at, lemma_checks, optimistic_steps
from opo_fast.errors import OpoError

SIZES = [1, 3, 2, 4]
GIVEN = {"eta": 0.3, "beta_loss": 4.0, "beta_dynamics": 1.0}


def history(n=25, seed=0, mask=None):
    """Steps under three alternating dynamics with changing losses."""
    rng = np.random.default_rng(seed)
    models = [random_model(rng, SIZES, 3, mask=mask) for _ in range(3)]
    return [models[int(rng.integers(3))].with_losses(rng.random((10, 3))) for _ in range(n)]


def failing(steps, **given):
    return [name for name, check in algorithm_checks(steps, **{**GIVEN, **given}).items() if not check.holds]


def test_all_equations_hold_along_the_papers_steps():
    checks = algorithm_checks(optimistic_steps(history(), **GIVEN), **GIVEN)
    assert list(checks) == ["visits", "bonus", "Q", "V", "policy"]
    assert all(check.holds and check.residual.shape == (25,) for check in checks.values())
    assert "holds" in repr(checks["visits"])
    assert "step" in repr(checks["visits"])


def test_they_hold_with_masked_actions():
    mask = np.ones((10, 3), bool)
    mask[2, 1] = mask[7, 0] = mask[7, 2] = False
    steps = list(optimistic_steps(history(mask=mask), **GIVEN))
    assert not failing(steps)


def test_they_hold_along_a_run_of_the_agent():
    env = of.envs.make("random-finite", seed=2)
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, **GIVEN)
    of.simulate(env, agent, 40, progress=False)
    assert not failing(optimistic_steps(history_at(agent, 0), **GIVEN))


@pytest.mark.parametrize(
    ("mutation", "equation"),
    [
        ({"eta": 5 * GIVEN["eta"]}, "policy"),
        ({"beta_loss": 10 * GIVEN["beta_loss"], "beta_dynamics": 10 * GIVEN["beta_dynamics"]}, "bonus"),
    ],
)
def test_parameters_that_are_off_show_and_the_lemmas_do_not_see_them(mutation, equation):
    steps = list(optimistic_steps(history(), **{**GIVEN, **mutation}))
    assert failing(steps) == [equation]


def mutated(steps, **fields):
    return [step._replace(**{name: change(t, step) for name, change in fields.items()}) for t, step in enumerate(steps)]


def test_visits_one_step_late_show():
    steps = list(optimistic_steps(history(), **GIVEN))

    def late(t, step):
        return sum((reference.occupancy(step.model, earlier.policy) for earlier in steps[: max(0, t - 1)]), np.zeros(step.q.shape))

    wrong = mutated(
        steps,
        visits=late,
        bonus_loss=lambda t, step: reference.bonus(late(t, step), GIVEN["beta_loss"]),
        bonus_dynamics=lambda t, step: reference.bonus(late(t, step), GIVEN["beta_dynamics"]),
    )
    # Q was computed with the right bonus, so its equation is violated as well.
    assert "visits" in failing(wrong)
    assert lemma_checks(random_model(np.random.default_rng(5), SIZES, 3), wrong, **GIVEN)["optimism"].holds


@pytest.mark.parametrize(
    ("field", "change", "equation"),
    [
        ("q", lambda t, step: step.q + 1e-6 * (t == 7), "Q"),
        ("v", lambda t, step: step.v * (1 + 1e-6), "V"),
        ("policy", lambda t, step: step.policy[:, ::-1], "policy"),
        ("bonus_dynamics", lambda t, step: step.bonus_dynamics * (1 - 1e-6), "bonus"),
        ("visits", lambda t, step: np.full_like(step.visits, np.nan), "visits"),
    ],
)
def test_each_ingredient_is_watched(field, change, equation):
    steps = list(optimistic_steps(history(), **GIVEN))
    assert equation in failing(mutated(steps, **{field: change}))


def test_what_is_refused():
    steps = list(optimistic_steps(history(), **GIVEN))
    other = list(optimistic_steps([random_model(np.random.default_rng(1), [1, 2], 2)], **GIVEN))
    for bad in (3, [], [1], steps + other):
        with pytest.raises(OpoError, match="steps"):
            algorithm_checks(bad, **GIVEN)
    with pytest.raises(OpoError, match="eta"):
        algorithm_checks(steps, **{**GIVEN, "eta": -1.0})
