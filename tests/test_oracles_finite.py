"""Oracles of finite classes: ties, excluded candidates, running sums, and refused data, which change nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from strategies import random_transitions

import opo_fast as of
from opo_fast.model.transitions import Transitions

SIZES, ACTIONS = [1, 3, 2], 2
LAYOUT = of.Layout(SIZES, ACTIONS)


def trajectory(context: Any = 0, states: Any = (0, 1, 4), actions: Any = (0, 0, 0), losses: Any = (0.0, 0.0, 0.0)) -> of.Trajectory:
    return of.Trajectory(context, np.array([*states, 6]), np.array(actions), np.array(losses, float))


def constant(value: float) -> Any:
    return lambda c: np.full(LAYOUT.shape, value)


def leading(*targets: int) -> Any:
    """Dynamics that lead to the given positions of layers 1 and 2 with probability 1."""
    blocks = [np.zeros((a, ACTIONS, b)) for a, b in itertools.pairwise(SIZES)]
    for block, target in zip(blocks, targets, strict=True):
        block[..., target] = 1.0
    return lambda c: blocks


def mixed(share: float, *targets: int) -> Any:
    """`leading` with probability 1 - share, else uniform."""
    blocks = [share / b.shape[-1] + (1 - share) * b for b in leading(*targets)(0)]
    return lambda c: blocks


# -- losses ------------------------------------------------------------------------------------------------------------


def test_least_squares_by_hand():
    oracle = of.FiniteLossClass([constant(0.9), constant(0.25), constant(0.5)]).oracle(LAYOUT, None)
    assert oracle.fit() == 0
    oracle.observe(trajectory(losses=(1, 0, 0)))
    # (1 - f)^2 + 2 f^2 at .9, .25, .5
    np.testing.assert_allclose(oracle.scores, [0.01 + 2 * 0.81, 0.5625 + 2 * 0.0625, 0.25 + 2 * 0.25], rtol=1e-15)
    assert oracle.fit() == 1
    oracle.observe(trajectory(losses=(1, 1, 1)))
    np.testing.assert_allclose(oracle.scores, [1.63 + 0.03, 0.6875 + 3 * 0.5625, 0.75 + 0.75], rtol=1e-15)
    assert oracle.fit() == 2


def test_ties_go_to_the_lowest_index():
    oracle = of.FiniteLossClass([constant(1.0), constant(0.25), constant(0.75), constant(0.25)]).oracle(LAYOUT, None)
    assert oracle.fit() == 0
    oracle.observe(trajectory(losses=(0.5, 0.5, 0.5)))
    assert oracle.scores[1] == oracle.scores[2] == oracle.scores[3]
    assert oracle.fit() == 1
    dynamics = of.FiniteDynamicsClass([mixed(0.5, 1, 1), mixed(0.25, 0, 0), mixed(0.25, 0, 0)]).oracle(LAYOUT, None)
    assert dynamics.fit() == 0
    dynamics.observe(trajectory())
    assert dynamics.scores[1] == dynamics.scores[2]
    assert dynamics.fit() == 1


# -- dynamics ----------------------------------------------------------------------------------------------------------


def test_log_loss_by_hand():
    oracle = of.FiniteDynamicsClass([mixed(0.75, 0, 0), leading(0, 0), mixed(0.75, 1, 1)]).oracle(LAYOUT, None)
    oracle.observe(trajectory())
    # Layer 1 has three states, layer 2 two: .25 + .75/3 and .25 + .75/2; certainty; .75/3 and .75/2.
    np.testing.assert_allclose(oracle.scores, [math.log(0.5 * 0.625), 0.0, math.log(0.25 * 0.375)], rtol=1e-15)
    assert oracle.fit() == 1


def test_a_candidate_that_meets_an_impossible_transition_is_dead():
    oracle = of.FiniteDynamicsClass([leading(0, 0), mixed(0.999, 0, 0)]).oracle(LAYOUT, None)
    oracle.observe(trajectory(states=(0, 2, 4)))
    assert oracle.scores[0] == -np.inf
    assert oracle.fit() == 1
    for _ in range(50):
        oracle.observe(trajectory())
    assert oracle.scores[0] == -np.inf
    assert oracle.fit() == 1


def test_when_no_candidate_explains_the_data_the_transition_is_named_and_nothing_is_added():
    losses = of.FiniteLossClass([constant(0.9), constant(0.1)])
    agent = of.OPO(LAYOUT, losses, of.FiniteDynamicsClass([leading(0, 0), leading(1, 0)]), eta=0.1, beta_loss=0.1, beta_dynamics=0.1)
    agent.observe(trajectory())
    before = (agent.episode, agent.fits, agent.loss_oracle.scores.copy(), agent.dynamics_oracle.scores.copy())
    policy = agent.policy(0)
    # Candidate 1 was excluded before; under candidate 0 the last transition, from state 1 to state 5, is impossible.
    text = r"at context 'ward 3' the transition of layer 1 from state 1 under action 1 to state 5 has probability 0 under a candidate that"
    with pytest.raises(of.OpoError, match=text):
        agent.observe(trajectory("ward 3", states=(0, 1, 5), actions=(0, 1, 0), losses=(1, 1, 1)))
    assert (agent.episode, agent.fits) == before[:2]
    np.testing.assert_array_equal(agent.loss_oracle.scores, before[2])
    np.testing.assert_array_equal(agent.dynamics_oracle.scores, before[3])
    np.testing.assert_array_equal(agent.policy(0), policy)
    agent.observe(trajectory())
    assert agent.episode == 2


def test_oracles_alone_add_nothing_either():
    oracle = of.FiniteDynamicsClass([leading(0, 0)]).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match="layer 0 from state 0 under action 0 to state 2 has probability 0"):
        oracle.observe(trajectory(states=(0, 2, 4)))
    np.testing.assert_array_equal(oracle.scores, [0.0])


# -- running sums ------------------------------------------------------------------------------------------------------


class World:
    """Random candidates over three contexts, in one storage, with a log of random episodes."""

    def __init__(self, form: str, episodes: int = 30, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.tables = rng.random((4, 3, *LAYOUT.shape))
        self.blocks = [[random_transitions(rng, SIZES, ACTIONS, density=0.9) for _ in range(3)] for _ in range(4)]
        # Some zeros, but candidate 2 explains everything.
        self.blocks[2] = [random_transitions(rng, SIZES, ACTIONS) for _ in range(3)]
        self.calls = {"losses": 0, "dynamics": 0}
        self.form = form
        self.log = []
        for _ in range(episodes):
            states = (0, 1 + rng.integers(3), 4 + rng.integers(2))
            self.log.append(trajectory(int(rng.integers(3)), states, rng.integers(2, size=3), rng.random(3)))

    def loss(self, i: int, c: int) -> np.ndarray:
        self.calls["losses"] += 1
        return self.tables[i, c]

    def dynamics(self, i: int, c: int) -> Any:
        self.calls["dynamics"] += 1
        blocks = self.blocks[i][c]
        if self.form == "dense":
            return blocks
        sparse = [sp.csr_array(b.reshape(-1, b.shape[-1])) for b in blocks]
        return sparse if self.form == "csr" else Transitions(LAYOUT, sparse if self.form == "prebuilt csr" else blocks)

    def oracles(self) -> tuple[Any, Any]:
        losses = of.FiniteLossClass([lambda c, i=i: self.loss(i, c) for i in range(4)])
        dynamics = of.FiniteDynamicsClass([lambda c, i=i: self.dynamics(i, c) for i in range(4)])
        return losses.oracle(LAYOUT, None), dynamics.oracle(LAYOUT, None)

    def batch(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The scores of all loss and dynamics candidates from the first n episodes, summed term by term."""
        squared, log_likelihood = np.zeros(4), np.zeros(4)
        for i, t in itertools.product(range(4), self.log[:n]):
            for h in range(3):
                s, a = t.states[h], t.actions[h]
                squared[i] += (self.tables[i, t.context, s, a] - t.losses[h]) ** 2
                if h < 2:
                    p = self.blocks[i][t.context][h][s - LAYOUT.offsets[h], a, t.states[h + 1] - LAYOUT.offsets[h + 1]]
                    log_likelihood[i] += math.log(p) if p > 0 else -math.inf
        return squared, log_likelihood


@pytest.mark.parametrize("form", ["dense", "csr", "prebuilt", "prebuilt csr"])
def test_running_sums_equal_the_batch(form):
    world = World(form)
    losses, dynamics = world.oracles()
    for n, episode in enumerate(world.log, start=1):
        losses.observe(episode)
        dynamics.observe(episode)
        squared, log_likelihood = world.batch(n)
        np.testing.assert_allclose(losses.scores, squared, rtol=1e-12)
        np.testing.assert_allclose(dynamics.scores, log_likelihood, rtol=1e-12)
        assert losses.fit() == squared.argmin()
        assert dynamics.fit() == log_likelihood.argmax()
    assert np.isneginf(dynamics.scores).any()


def test_an_episode_costs_its_own_steps_only():
    """Candidates are evaluated once per context, and past episodes are not visited again."""
    world, untouched = World("dense"), World("dense")
    losses, dynamics = world.oracles()
    for episode in world.log:
        losses.observe(episode)
        dynamics.observe(episode)
        for name in ("states", "actions", "losses"):
            getattr(episode, name)[:] = 77
    assert world.calls == {"losses": 4 * 3, "dynamics": 4 * 3}
    squared, log_likelihood = untouched.batch(len(untouched.log))
    np.testing.assert_allclose(losses.scores, squared, rtol=1e-12)
    np.testing.assert_allclose(dynamics.scores, log_likelihood, rtol=1e-12)


def test_checking_first_gives_the_same_and_adds_nothing():
    world = World("dense")
    losses, dynamics = world.oracles()
    for oracle in (losses, dynamics):
        oracle.check(world.log[0])
        oracle.check(world.log[1])
        assert not oracle.scores.any()
        oracle.observe(world.log[0])
    squared, log_likelihood = world.batch(1)
    np.testing.assert_allclose(losses.scores, squared, rtol=1e-15)
    np.testing.assert_allclose(dynamics.scores, log_likelihood, rtol=1e-15)


def test_fits_are_functions_of_the_context():
    world = World("dense")
    losses, dynamics = world.oracles()
    for i, c in itertools.product(range(4), range(3)):
        np.testing.assert_array_equal(losses.losses(i, c), world.tables[i, c])
        for got, expected in zip(dynamics.transitions(i, c), world.blocks[i][c], strict=True):
            np.testing.assert_array_equal(got, expected)


def test_each_agent_has_its_own_sums():
    losses = of.FiniteLossClass([constant(0.2), constant(0.8)])
    dynamics = of.FiniteDynamicsClass([mixed(0.5, 0, 0)])
    first, second = (of.OPO(LAYOUT, losses, dynamics, episodes=5) for _ in range(2))
    first.observe(trajectory(losses=(1, 1, 1)))
    assert first.fits == (1, 0)
    assert second.fits == (0, 0)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "names", "text"),
    [
        ([], None, "models: at least one is needed"),
        ([np.zeros((6, 2))], None, r"models\[0\] is a ndarray: a callable"),
        ([constant(0.1), 3], None, r"models\[1\] is a int: a callable"),
        ([constant(0.1)], ["a", "b"], "names has 2 entries: one for each of the 1 models"),
    ],
)
@pytest.mark.parametrize("kind", [of.FiniteLossClass, of.FiniteDynamicsClass])
def test_bad_classes(kind, models, names, text):
    with pytest.raises(of.OpoError, match=text):
        kind(models, names)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (np.zeros((5, 2)), r"loss candidate 1 at context 0 has shape \(5, 2\)"),
        (np.full((6, 2), 1.5), r"loss candidate 1 at context 0: state 0, action 0: the loss is 1\.5"),
        (np.where(np.arange(12).reshape(6, 2) == 5, np.nan, 0.5), "loss candidate 1 at context 0: state 2, action 1: the loss is nan"),
        (np.where(np.arange(12).reshape(6, 2) == 8, -0.1, 0.5), r"loss candidate 1 at context 0: state 4, action 0: the loss is -0\.1"),
        (np.full((6, 2), "x"), "loss candidate 1 at context 0"),
        (None, "loss candidate 1 at context 0"),
    ],
)
def test_bad_loss_candidates(table, text):
    oracle = of.FiniteLossClass([constant(0.5), lambda c: table]).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match=text):
        oracle.observe(trajectory())
    assert not oracle.scores.any()


def spoiled(change: Any) -> Any:
    blocks = [b.copy() for b in mixed(0.5, 0, 0)(0)]
    change(blocks)
    return lambda c: blocks


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda c: mixed(0.5, 0, 0)(0)[:1], "dynamics candidate 1 at context 0 has 1 arrays: H - 1 = 2 are needed"),
        (lambda c: [np.ones((1, 1, 1)), np.ones((1, 1, 1))], r"candidate 1 at context 0, layer 0 has shape \(1, 1, 1\): \(1, 2, 3\)"),
        (lambda c: [np.ones((1, 2, 4)), np.ones((3, 2, 2))], r"candidate 1 at context 0, layer 0 has shape \(1, 2, 4\): \(1, 2, 3\)"),
        (lambda c: [sp.csr_array((2, 3)), sp.csr_array((6, 3))], r"candidate 1 at context 0, layer 1 has shape \(6, 3\): \(6, 2\)"),
        (lambda c: [np.ones(3), np.ones(3)], r"candidate 1 at context 0, layer 0 has shape \(3,\)"),
        (lambda c: Transitions(of.Layout([1, 3], 2), [np.full((1, 2, 3), 1 / 3)]), "candidate 1 at context 0 belongs to Layout"),
        (
            spoiled(lambda b: b[1].fill(np.nan)),
            "candidate 1 at context 0: layer 1, state 1, action 0: the probability of next state 4 is nan",
        ),
        (spoiled(lambda b: b[0].fill(-1)), "candidate 1 at context 0: layer 0, state 0, action 0: the probability of next state 1 is -1"),
        (spoiled(lambda b: b[0].fill(2)), r"the probability of next state 1 is 2\.0; a number in \[0, 1\] is needed"),
        (lambda c: [np.full((1, 2, 3), "x"), np.ones((3, 2, 2))], "dynamics candidate 1 at context 0, layer 0"),
        (lambda c: 3, "candidate 1 at context 0 is a int: H - 1 = 2 arrays are needed"),
        (lambda c: None, "candidate 1 at context 0 is a NoneType"),
        (lambda c: "ab", "candidate 1 at context 0 is a str"),
    ],
)
def test_bad_dynamics_candidates(model, text):
    oracle = of.FiniteDynamicsClass([mixed(0.5, 0, 0), model]).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match=text):
        oracle.observe(trajectory())
    assert not oracle.scores.any()


def test_a_context_that_cannot_be_a_key_is_refused():
    oracle = of.FiniteLossClass([constant(0.5)]).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match="context is a list, which is not hashable"):
        oracle.observe(trajectory(context=[1, 2]))
