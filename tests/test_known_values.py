"""Published values, and those of another library; rewards are mapped to losses and back by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_mask, random_rows, seeded

import opo_fast as of

BACKENDS = ("numba", "numpy")


def table(n_states, choices):
    """(P, rewards, mask) of a model given as {state: [({next: probability}, reward), ...]}, actions in that order."""
    n_actions = max(len(c) for c in choices.values())
    P = np.zeros((n_states, n_actions, n_states))
    rewards = np.zeros((n_states, n_actions))
    mask = np.zeros((n_states, n_actions), bool)
    for s, options in choices.items():
        for a, (row, reward) in enumerate(options):
            mask[s, a], rewards[s, a] = True, reward
            for s_next, p in row.items():
                P[s, a, s_next] += p
    return P, rewards, mask


def losses_of(rewards, mask, worst=None):
    """Losses (r_max - r) / (r_max - r_min); a masked pair gets loss 0, which would be chosen if the mask did not hold."""
    top, low = rewards[mask].max(), rewards[mask].min()
    return np.where(mask, (top - rewards) / (top - low), 0.0), top, top - low


def total_reward(P, rewards, mask, horizon, start=0, backend="numba", maximise=True):
    """The largest (or least) expected sum of rewards over `horizon` steps."""
    sign = 1.0 if maximise else -1.0
    losses, top, span = losses_of(sign * rewards, mask)
    mdp = of.LayeredMDP.stationary(P, losses, horizon, start, mask)
    return sign * (horizon * top - span * of.solve(mdp, backend=backend).v[0])


# -- Puterman's inventory (Puterman 2005, sections 3.2 and 4.6.1; the numbers of quantecon's tests) ---------------------

DEMAND = {0: 0.25, 1: 0.5, 2: 0.25}
PUTERMAN_PAIRS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)]
PUTERMAN_REWARDS = [0, -1, -2, -5, 5, 0, -3, 6, -1, 5]
PUTERMAN_VALUES = [
    [Fraction(67, 16), Fraction(129, 16), Fraction(194, 16), Fraction(227, 16)],
    [Fraction(2), Fraction(25, 4), Fraction(10), Fraction(21, 2)],
    [Fraction(0), Fraction(5), Fraction(6), Fraction(5)],
]
PUTERMAN_POLICY = [[3, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]


@pytest.fixture(scope="module")
def inventory():
    P, rewards, mask = np.zeros((4, 4, 4)), np.zeros((4, 4)), np.zeros((4, 4), bool)
    for (s, a), reward in zip(PUTERMAN_PAIRS, PUTERMAN_REWARDS, strict=True):
        mask[s, a], rewards[s, a] = True, reward
        for demand, p in DEMAND.items():
            P[s, a, max(0, s + a - demand)] += p
    losses = np.where(mask, (6 - rewards) / 11, 0.0)
    return P, losses, mask


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sparse", [False, True])
def test_puterman_inventory_in_exact_sixteenths(inventory, backend, sparse):
    P, losses, mask = inventory
    if sparse:
        P = sp.csr_array(P.reshape(16, 4))
    # From a start distribution every later layer holds all four states: layer 1 + t of the model is decision epoch t.
    mdp = of.LayeredMDP.stationary(P, losses, 3, [0.25] * 4, mask)
    solution = of.solve(mdp, backend=backend)
    for epoch in range(3):
        layer = mdp.layout.layer(1 + epoch)
        expected = [float((6 * (3 - epoch) - v) / 11) for v in PUTERMAN_VALUES[epoch]]
        np.testing.assert_allclose(solution.v[layer], expected, rtol=0, atol=2e-15)
        assert solution.policy[layer].argmax(axis=1).tolist() == PUTERMAN_POLICY[epoch]
    start = sum(PUTERMAN_VALUES[0]) / 4
    assert solution.v[0] == pytest.approx(float((18 - start) / 11), abs=2e-15)


def test_puterman_inventory_in_loss_form(inventory):
    published = [1.25568182, 0.90340909, 0.53409091, 0.34659091]
    for start, value in enumerate(published):
        P, losses, mask = inventory
        assert of.solve(of.LayeredMDP.stationary(P, losses, 3, start, mask)).v[0] == pytest.approx(value, abs=5e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_uniform_policy_counts_the_actions_of_each_state(inventory, backend):
    P, losses, mask = inventory
    mdp = of.LayeredMDP.stationary(P, losses, 1, [0.25] * 4, mask)
    policy = mdp.uniform_policy()
    assert policy[1].tolist() == [0.25] * 4
    assert policy[2].tolist() == [1 / 3, 1 / 3, 1 / 3, 0.0]
    assert policy[3].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert policy[4].tolist() == [1.0, 0.0, 0.0, 0.0]
    # One step: the mean reward over the actions of each state is -2, 2/3, 5/2, 5.
    expected = [float((6 - r) / 11) for r in (Fraction(-2), Fraction(2, 3), Fraction(5, 2), Fraction(5))]
    np.testing.assert_allclose(of.evaluate(mdp, policy, backend=backend).v[1:], expected, rtol=0, atol=1e-15)


# -- models of a probabilistic model checker ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_fknp11_figure_2(backend):
    """Forejt, Kwiatkowska, Norman, Parker 2011: largest reward cumulated in 1..4 steps."""
    P, rewards, mask = table(
        4,
        {
            0: [({1: 1.0}, 2)],
            1: [({0: 0.7, 2: 0.3}, 3), ({2: 0.5, 3: 0.5}, 6)],
            2: [({2: 1.0}, 0)],
            3: [({3: 1.0}, 0), ({0: 1.0}, 5)],
        },
    )
    values = [total_reward(P, rewards, mask, h, backend=backend) for h in (1, 2, 3, 4)]
    np.testing.assert_allclose(values, [2, 8, 10.5, 11.5], rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mdp_rewards(backend):
    """`mdp_rewards.nm` of the PRISM test suite, reward structure "a": 4 states, 7 choices, go or stay with 1/2."""
    P, rewards, mask = table(
        4,
        {
            0: [({1: 1.0}, 5), ({1: 0.5, 0: 0.5}, 2)],
            1: [({2: 1.0}, 12), ({2: 0.5, 1: 0.5}, 5)],
            2: [({3: 1.0}, 11), ({3: 0.5, 2: 0.5}, 11)],
            3: [({3: 1.0}, 0)],
        },
    )
    assert mask.sum() == 7
    largest = [total_reward(P, rewards, mask, h, backend=backend) for h in (1, 2, 3)]
    least = [total_reward(P, rewards, mask, h, backend=backend, maximise=False) for h in (1, 2, 3)]
    np.testing.assert_allclose(largest, [5, 17, 28], rtol=0, atol=2e-14)
    np.testing.assert_allclose(least, [2, 5.5, 11.25], rtol=0, atol=2e-14)


@pytest.fixture(scope="module")
def mdp_simple():
    """`mdp_simple.nm` of the PRISM test suite: in s = 0..4 go on, or end with t = 1 or t = 2; the target is t = 1."""
    states = [(s, 0) for s in range(6)] + [(0, 1), (0, 2), (1, 1), (1, 2)]
    at = {state: i for i, state in enumerate(states)}
    choices = {}
    for s, p in enumerate([0.1, 0.2, 0.3, 0.4, 0.5]):
        back = 1 if s == 2 else 0
        choices[at[s, 0]] = [({at[s + 1, 0]: 1.0}, 0), ({at[back, 1]: p, at[back, 2]: 1 - p}, 0)]
    choices[at[5, 0]] = [({at[0, 1]: 1.0}, 0)]
    for state in states[6:]:
        choices[at[state]] = [({at[state]: 1.0}, 0)]
    P, _, mask = table(10, choices)
    target = np.array([t == 1 for _, t in states])
    return P, mask, target


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("steps", "largest", "least"), [(1, 0.1, 0.0), (2, 0.2, 0.0), (4, 0.4, 0.0), (6, None, 0.1)])
def test_mdp_simple(mdp_simple, backend, steps, largest, least):
    P, mask, target = mdp_simple
    assert mask.shape[0] == 10
    assert mask.sum() == 15
    layout = of.Layout([1] + [10] * steps, 2)
    every_mask = np.concatenate([mask[:1]] + [mask] * steps)
    transitions = [P[:1]] + [P] * (steps - 1)
    for maximise, expected in ((True, largest), (False, least)):
        if expected is None:
            continue
        losses = np.zeros(layout.shape)
        losses[layout.layer(steps)] = (~target if maximise else target)[:, None]
        value = of.solve(of.LayeredMDP(layout, losses, transitions, every_mask), backend=backend).v[0]
        assert (1 - value if maximise else value) == pytest.approx(expected, abs=1e-15)


@pytest.fixture(scope="module")
def resource_gathering_file(shared):
    path = shared / "cases" / "resource_gathering.npz"
    if not path.is_file():
        pytest.skip(f"the model is not beside the repository ({path})")
    with np.load(path) as file:
        return dict(file)


def gathering(z, reward):
    """CSR rows (state, action) of the model, rewards and mask; a state's choices are its first actions."""
    group = z["row_group"]
    n_states, counts = group.size - 1, np.diff(group)
    n_actions = int(counts.max())
    mask = np.arange(n_actions) < counts[:, None]
    rows = sp.csr_array((z["data"], z["indices"], z["indptr"]), shape=(group[-1], n_states))
    pick = sp.csr_array((np.ones(group[-1]), (np.flatnonzero(mask), np.arange(group[-1]))), shape=(mask.size, group[-1]))
    rewards = np.zeros(mask.shape)
    rewards[mask] = z[f"reward_{reward}"]
    return sp.csr_array(pick @ rows), rewards, mask


@pytest.mark.parametrize(
    ("reward", "steps", "value", "digits"),
    [
        ("rew_gold", 10, 0.9, 1e-13),
        ("rew_gold", 20, 1.87561, 1e-13),
        ("rew_gold", 50, 5.22624883402189, 1e-12),
        ("rew_gold", 200, 22.07144159280847, 1e-11),
        ("attacks", 20, 0.840472071, 1e-12),
    ],
)
def test_resource_gathering(resource_gathering_file, reward, steps, value, digits):
    """The quantitative verification benchmark set: largest gold (or attacks) within so many steps."""
    P, rewards, mask = gathering(resource_gathering_file, reward)
    assert mask.sum() == 302
    assert P.nnz == 326
    for backend in BACKENDS:
        assert total_reward(P, rewards, mask, steps, backend=backend) == pytest.approx(value, abs=digits)


def test_resource_gathering_loss(resource_gathering_file):
    P, rewards, mask = gathering(resource_gathering_file, "rew_gold")
    mdp = of.LayeredMDP.stationary(P, np.where(mask, 1 - rewards, 0.0), 200, 0, mask)
    assert mdp.layout.horizon == 200
    assert of.solve(mdp).v[0] == pytest.approx(177.92855840719153, abs=1e-10)


# -- forest (the example of pymdptoolbox) ------------------------------------------------------------------------------


def forest(n_states=3, r1=4.0, r2=2.0, p=0.1):
    P, rewards = np.zeros((n_states, 2, n_states)), np.zeros((n_states, 2))
    for s in range(n_states):
        P[s, 0, min(s + 1, n_states - 1)] += 1 - p
        P[s, 0, 0] += p
        P[s, 1, 0] = 1.0
    rewards[-1, 0] = r1
    rewards[1:-1, 1], rewards[-1, 1] = 1.0, r2
    return P, rewards


@pytest.mark.parametrize("backend", BACKENDS)
def test_forest_undiscounted(backend):
    P, rewards = forest()
    published = np.array([[3.33, 0.9, 0], [6.93, 3.6, 1], [10.93, 7.6, 4]])
    mdp = of.LayeredMDP.stationary(P, (4 - rewards) / 4, 3, np.full(3, 1 / 3))
    v = of.solve(mdp, backend=backend).v[1:].reshape(3, 3).T
    np.testing.assert_allclose(4 * np.array([3, 2, 1]) - 4 * v, published, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forest_discounted_as_in_the_docstring(backend):
    """A discount of 0.9 is a move of 0.1 to a sink of reward 0, and the sink pays the loss of reward 0."""
    P, rewards = forest()
    with_sink = np.zeros((4, 2, 4))
    with_sink[:3, :, :3], with_sink[:3, :, 3], with_sink[3, :, 3] = 0.9 * P, 0.1, 1.0
    losses = np.vstack([(4 - rewards) / 4, [[1.0, 1.0]]])
    published = np.array([[2.6973, 0.81, 0], [5.9373, 3.24, 1], [9.9373, 7.24, 4]])
    mdp = of.LayeredMDP.stationary(with_sink, losses, 3, np.full(4, 0.25))
    solution = of.solve(mdp, backend=backend)
    v = solution.v[1:].reshape(3, 4).T
    np.testing.assert_allclose(4 * np.array([3, 2, 1]) - 4 * v[:3], published, rtol=0, atol=1e-13)
    policy = solution.policy[1:].argmax(axis=1).reshape(3, 4).T[:3]
    assert policy.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


# -- another library ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:infinite horizon solution methods")
@settings(max_examples=25)
@given(st.data())
def test_backward_induction_of_quantecon(data):
    quantecon = pytest.importorskip("quantecon", reason="quantecon is the other library")
    n_states, n_actions, horizon = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    rng = seeded(data.draw)
    rows = random_rows(rng, n_states * n_actions, n_states, data.draw(st.sampled_from([1.0, 0.4])))
    losses = rng.random((n_states, n_actions))
    mask = random_mask(rng, losses.shape)
    s, a = np.nonzero(mask)
    other = quantecon.markov.DiscreteDP(-losses[mask], rows[mask.ravel()], 1.0, s, a)
    vs, _ = quantecon.markov.backward_induction(other, horizon)
    P = sp.csr_array(rows) if data.draw(st.booleans()) else rows.reshape(n_states, n_actions, n_states)
    mdp = of.LayeredMDP.stationary(P, losses, horizon, np.full(n_states, 1 / n_states), mask)
    np.testing.assert_allclose(of.solve(mdp).v[1:], -vs[:-1].ravel(), rtol=1e-13, atol=1e-14)


def test_steps_are_not_cut_short_before_the_goal_pays():
    """A corridor of six states in which only the last step pays: every one of the H sweeps is needed."""
    P = np.zeros((6, 1, 6))
    P[np.arange(6), 0, np.minimum(np.arange(6) + 1, 5)] = 1.0
    losses = np.ones((6, 1))
    losses[5] = 0.0
    for horizon, value in ((5, 5.0), (6, 5.0), (7, 5.0)):
        assert of.solve(of.LayeredMDP.stationary(P, losses, horizon)).v[0] == min(value, horizon)
    assert of.solve(of.LayeredMDP.stationary(P, losses, 4)).v[0] == 4.0
