"""Environments from functions: terminal values, losses that depend on the next state, and action masks."""

from __future__ import annotations

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.oracles import TrajectoryLog


def walk(context, stage, state, action):
    """Up with chance 1/4 or 3/4, else down."""
    up = 0.75 if action == "push" else 0.25
    return {state + 1: up, state - 1: 1 - up}


def test_only_states_that_are_reached_are_kept():
    env = envs.from_functions(4, 0, ["push", "rest"], walk, loss=lambda c, t, s, a: 0.1 * (a == "push"))
    assert env.layout == of.Layout([1, 2, 3, 4], 2)
    assert env.state_names == ("0", "1", "-1", "2", "0", "-2", "3", "1", "-1", "-3")
    assert env.action_mask is None
    mdp = env.mdp(0)
    # Two pushes: 9/16 at 2, 6/16 at 0, 1/16 at -2.
    policy = np.tile([1.0, 0.0], (env.layout.n_states, 1))
    np.testing.assert_allclose(of.occupancy(mdp, policy)[3:6, 0], [9 / 16, 6 / 16, 1 / 16], rtol=1e-14)
    assert of.evaluate(mdp, policy).v[0] == pytest.approx(0.4, rel=1e-14)


def test_terminal_values_by_hand():
    """One push from 0: salvage 1 below 0, 0 above: V = 0.1 + 1/4; resting: 3/4."""
    env = envs.from_functions(1, 0, ["push", "rest"], walk, loss=lambda c, t, s, a: 0.1 * (a == "push"), terminal=lambda c, s: float(s < 0))
    assert env.layout == of.Layout([1, 2], 2)
    q = of.solve(env.mdp(0)).q[0]
    np.testing.assert_allclose(q, [0.35, 0.75], rtol=1e-14)
    table = of.policy_table(agents.make("optimum", env, episodes=1), 0, env)
    assert next(row.action_name for row in table.best()) == "push"


def test_terminal_values_of_a_stationary_model():
    P = np.array([[[0.2, 0.8], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]])
    losses, terminal = np.array([[0.1, 0.4], [0.3, 0.2]]), np.array([0.0, 1.0])
    v = terminal
    for _ in range(3):
        v = (losses + P @ v).min(axis=1)
    for start, expected in ((0, v[0]), ([0.25, 0.75], 0.25 * v[0] + 0.75 * v[1])):
        mdp = of.LayeredMDP.stationary(P, losses, 3, start, terminal=terminal)
        assert of.solve(mdp).v[0] == pytest.approx(expected, rel=1e-14)
    masked = of.LayeredMDP.stationary(P, losses, 3, 0, [[True, False], [True, True]], terminal=terminal)
    assert masked.layout == of.Layout([1, 2, 2, 2], 2)
    one = of.LayeredMDP.stationary(P, losses, 1, 0, terminal=terminal)
    np.testing.assert_allclose(of.solve(one).q[0], losses[0] + P[0] @ terminal, rtol=1e-14)
    with pytest.raises(of.OpoError, match=r"terminal has shape \(3,\): \(2,\) is needed"):
        of.LayeredMDP.stationary(P, losses, 3, terminal=[0, 1, 0])
    with pytest.raises(of.OpoError, match="terminal: state 1, action 0"):
        of.LayeredMDP.stationary(P, losses, 3, terminal=[0, 2])


def fall(context, stage, state, action, following):
    return 0.9 if following < state else 0.2


@pytest.mark.parametrize("terminal", [None, lambda c, s: 0.5])
def test_a_loss_of_the_next_state_is_drawn_with_it(terminal):
    env = envs.from_functions(3, 0, ["push", "rest"], walk, next_loss=fall, terminal=terminal)
    mdp = env.mdp(0)
    # The means: 0.9 P(down) + 0.2 P(up).
    expected = [0.9 * 0.25 + 0.2 * 0.75, 0.9 * 0.75 + 0.2 * 0.25]
    np.testing.assert_allclose(mdp.losses[: 1 + 2 + 3], np.tile(expected, (6, 1)), rtol=1e-14)
    log = TrajectoryLog.collect(env, 4000, 1)
    names = np.array(env.state_names, int)
    steps = names[log.states[:, 1:3]] - names[log.states[:, :2]]
    np.testing.assert_array_equal(log.losses[:, :2], np.where(steps < 0, 0.9, 0.2))
    # Without terminal values the last next state is in no layer, but the loss still has the distribution of the pair.
    last = log.losses[log.actions[:, 2] == 0, 2]
    assert set(last) == {0.9, 0.2}
    assert abs((last == 0.9).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / last.size)
    if terminal is not None:
        assert (log.losses[:, 3] == 0.5).all()
    result = of.simulate(env, agents.make("opo", env, episodes=50), 50, seed=1, log=True)
    assert set(result.log.losses[:, :3].ravel()) == {0.9, 0.2}


def test_candidates_contexts_and_allowed_actions():
    sure = lambda context, stage, state, action: (state + (action == "push")) % 3  # noqa: E731
    env = envs.from_functions(
        3,
        {0: 0.5, 1: 0.5},
        ["push", "rest"],
        [walk, sure],
        loss=[lambda c, t, s, a: 0.5, lambda c, t, s, a: float(s == c)],
        allowed=lambda stage, state: ["rest"] if state == 1 else ["push", "rest"],
        contexts=[0, 2],
        probabilities=[0.25, 0.75],
        true_loss=1,
        true_dynamics=1,
    )
    assert env.layout.layer_sizes[:2] == (1, 2)
    assert env.state_names[:3] == ("start", "0", "1")
    assert env.action_mask[1].tolist() == [True, True]
    assert env.action_mask[2].tolist() == [False, True]
    # State 2 costs 1 in context 2, and resting in 0 and 1 never reaches it. State 0 costs 1 in context 0, and pushing leaves it.
    assert of.solve(env.mdp(2)).v[0] == 0.0
    assert of.solve(env.mdp(0)).v[0] == pytest.approx(0.5 * 1.0)
    assert len(env.dynamics_class) == len(env.loss_class) == 2
    assert of.simulate(env, agents.make("opo", env, episodes=300), 300).gap_closed(slice(-30, None)) > 0.9


def test_what_a_function_must_not_return():
    for transitions, loss, words in (
        (lambda *given: {0: 0.5, 1: 0.4}, lambda *given: 0.0, r"transitions\(0, 0, 0, 'a'\): the probabilities sum to 0\.9; 1 is needed"),
        (lambda *given: {0: -0.5, 1: 1.5}, lambda *given: 0.0, r"transitions\(0, 0, 0, 'a'\)\[0\] is -0\.5"),
        (lambda *given: 0, lambda *given: 1.5, r"loss\(0, 0, 0, 'a'\) is 1\.5"),
    ):
        with pytest.raises(of.OpoError, match=words):
            envs.from_functions(2, 0, ["a"], transitions, loss)
    with pytest.raises(of.OpoError, match=r"allowed\(0, 0\) has 'c': one of \['a'\] is needed"):
        envs.from_functions(2, 0, ["a"], lambda *given: 0, lambda *given: 0.0, allowed=lambda *given: ["c"])
    with pytest.raises(of.OpoError, match="loss and next_loss: exactly one of them is needed"):
        envs.from_functions(2, 0, ["a"], lambda *given: 0)


def test_an_agent_without_the_mask_is_refused_with_a_hint():
    env = envs.from_functions(
        2, 0, ["a", "b"], lambda *given: 0, lambda *given: 0.0, allowed=lambda stage, state: ["a"] if stage else ["a", "b"]
    )
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class)
    words = r"state 1 \(layer 1\), action 1: the action is masked and has probability 0\.5; .*takes the mask as action_mask=env.action_mask"
    with pytest.raises(of.OpoError, match=words):
        of.simulate(env, agent, 3)
    of.simulate(env, of.OPO(env.layout, env.loss_class, env.dynamics_class, action_mask=env.action_mask), 3)


@pytest.mark.parametrize("answer", [None, ["a", "b"], ([1], 1.0), np.zeros(2)])
def test_what_is_no_next_state_is_named(answer):
    with pytest.raises(of.OpoError, match=r"transitions\('c', 0, 'x', 'u'\) is .*a next state, or a mapping"):
        envs.from_functions(3, "x", ["u", "v"], [lambda *given: answer], loss=lambda *given: 0.5, contexts=["c"])
