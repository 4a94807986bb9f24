"""The environments of the lower bounds: their optimum, gap and classes, and the cost of exploration."""

from __future__ import annotations

import math

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs


def gaps(mdp):
    """Q - V of all actions but the best, at states that the optimum or any policy reaches."""
    optimum = of.solve(mdp)
    return np.sort(optimum.q - optimum.v[:, None], axis=1)[:, 1:]


@pytest.mark.parametrize(
    ("horizon", "n_states", "n_actions", "n_contexts", "unknown", "gap"),
    [(3, 2, 3, 2, 5, 0.25), (1, 1, 4, 3, 3, 0.1), (5, 3, 2, 2, 8, 0.5)],
)
def test_the_layered_bandit(horizon, n_states, n_actions, n_contexts, unknown, gap):
    env = envs.make(
        "layered-bandit", horizon=horizon, n_states=n_states, n_actions=n_actions, n_contexts=n_contexts, unknown=unknown, gap=gap, seed=3
    )
    # log|F| = unknown log|A|, and |P| = 1.
    assert math.log(env.loss_class.size) == pytest.approx(unknown * math.log(n_actions), rel=1e-12)
    assert env.dynamics_class.size == 1
    for context in range(n_contexts):
        mdp = env.mdp(context)
        assert of.solve(mdp).v[0] == pytest.approx(horizon * (0.5 - gap), abs=1e-12)
        assert of.evaluate(mdp, mdp.uniform_policy()).v[0] == pytest.approx(horizon * (0.5 - gap / n_actions), abs=1e-12)
        np.testing.assert_allclose(gaps(mdp), gap, atol=1e-12)
        # Every policy visits all states of a layer alike.
        np.testing.assert_allclose(of.occupancy(mdp, of.solve(mdp).policy)[1:].sum(axis=1), 1 / n_states, atol=1e-12)


def test_an_answer_at_one_place_says_nothing_about_another():
    env = envs.make("layered-bandit", n_contexts=2, unknown=3, n_actions=3)
    tables = np.array([[model(context) for context in range(2)] for model in env.loss_models])
    flat = tables.reshape(27, -1, 3).argmin(axis=2)
    differing = np.flatnonzero(np.ptp(flat, axis=0))
    assert len(differing) == 3
    # Each of the 27 combinations of the three answers occurs once, and elsewhere the first action is the best.
    assert len({tuple(row) for row in flat[:, differing]}) == 27
    assert not np.delete(flat, differing, axis=1).any()


@pytest.mark.parametrize(("depth", "n_actions", "payoff", "gap"), [(3, 2, 2, 0.25), (1, 4, 1, 0.5), (2, 3, 3, 0.1)])
def test_the_hidden_path(depth, n_actions, payoff, gap):
    env = envs.make("hidden-path", horizon=depth + payoff, n_actions=n_actions, payoff=payoff, gap=gap, seed=5)
    assert env.layout.layer_sizes == (*(n_actions**h for h in range(depth)), *[2] * payoff)
    assert env.dynamics_class.size == n_actions**depth
    assert env.loss_class.size == 1
    for context in range(3):
        mdp = env.mdp(context)
        optimum = of.solve(mdp)
        assert optimum.v[0] == pytest.approx(payoff * (0.5 - gap), abs=1e-12)
        uniform = of.evaluate(mdp, mdp.uniform_policy()).v[0]
        assert uniform == pytest.approx(payoff * (0.5 - gap * n_actions**-depth), abs=1e-12)
        # Any other path is payoff * gap worse, from the first action on.
        leaves = optimum.q[env.layout.layer(depth - 1)].ravel()
        assert np.sort(leaves)[1:] == pytest.approx(payoff / 2, abs=1e-12)
        path, q = int(leaves.argmin()), optimum.q
        first = path // n_actions ** (depth - 1)
        np.testing.assert_allclose(np.delete(q[0] - q[0, first], first), payoff * gap, atol=1e-12)
    # Exactly one candidate is the truth in all contexts.
    ends_of = [[model(context).arrays()[depth - 1] for context in range(3)] for model in env.dynamics_models]
    true_ends = [env.mdp(context).transitions.arrays()[depth - 1] for context in range(3)]
    same = [all(map(np.array_equal, ends, true_ends)) for ends in ends_of]
    assert same.count(True) == 1


def test_a_smaller_gap_and_more_unknown_places_cost_more():
    """The optimum is found at a cost of about unknown (|A| - 1) / gap, while T is large enough."""

    def regret(**options):
        found = []
        for seed in range(4):
            env = envs.make(
                "layered-bandit", horizon=2, n_contexts=1, **{"n_actions": 2, "unknown": 3, "gap": 0.4, "seed": seed, **options}
            )
            found.append(of.simulate(env, agents.make("opo", env, episodes=400), 400, seed).regret.sum())
        return float(np.mean(found))

    easy, uniform = regret(), 400 * 2 * 0.4 / 2
    assert easy < 0.2 * uniform
    # Without unknown places there is one candidate, and all policies are optimal from the second episode on.
    known = regret(unknown=0)
    assert known < 2 * 0.4
    # Each unknown place costs as much as any other.
    assert regret(unknown=1) - known == pytest.approx((easy - known) / 3, rel=0.2)
    # Half the gap costs twice as much; at a quarter of it T is almost too small, and the regret of the uniform policy is 40.
    assert 1.5 < regret(gap=0.2) / easy < 2.5
    assert 2 * easy < regret(gap=0.1) < 40


def test_what_is_refused():
    for name, options, text in [
        ("layered-bandit", {"gap": 0.0}, r"gap is 0\.0: a number above 0"),
        ("layered-bandit", {"gap": 0.6}, r"gap is 0\.6: a finite number from 0 to 0\.5"),
        ("layered-bandit", {"unknown": 11}, "unknown is 11: a whole number from 0 to 10"),
        ("layered-bandit", {"n_contexts": 9, "unknown": 20}, r"unknown is 20, n_actions is 3: n_actions \*\* unknown loss candidates"),
        # Numbers with too many digits to be computed or printed.
        (
            "layered-bandit",
            {"n_contexts": 10_000, "unknown": 10_000},
            "unknown is 10000, n_actions is 3: .* more than 100,000; smaller numbers",
        ),
        ("layered-bandit", {"n_actions": 10**6, "n_contexts": 10**6, "unknown": 10**6}, "unknown is 1000000, n_actions is 1000000"),
        ("layered-bandit", {"n_states": 500_000}, "n_contexts, horizon, n_states, n_actions: .* GiB, more than half"),
        ("hidden-path", {"horizon": 40}, r"horizon is 40, n_actions is 2: n_actions \*\* \(horizon - payoff\) paths"),
        ("hidden-path", {"horizon": 18}, "horizon is 18, n_actions is 2: the trees of 65,536 paths take .* GiB, more than half"),
        ("hidden-path", {"horizon": 3, "n_actions": 100_000}, "the trees of 100,000 paths take"),
        ("hidden-path", {"horizon": 2}, "horizon is 2: a whole number"),
        ("hidden-path", {"payoff": 0}, "payoff is 0"),
        ("hidden-path", {"n_actions": 1}, "n_actions is 1"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            envs.make(name, **options)
