"""The OPO agent: its parameters and policies, both backends, the bound of term (iii), learning on ICU-Sepsis, refused arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from strategies import random_mask, random_model, random_transitions

import opo_fast as of
from opo_fast import envs
from opo_fast.algorithm.parameters import PRACTICAL


class World:
    """Two contexts, three candidates in each class, the truth in the middle; perhaps some actions masked."""

    def __init__(self, masked: bool, seed: int = 0, sizes: tuple[int, ...] = (1, 3, 4, 2)) -> None:
        rng = np.random.default_rng(seed)
        self.layout = of.Layout(list(sizes), 3)
        self.mask = random_mask(rng, self.layout.shape) if masked else None
        tables = 0.3 + 0.4 * rng.random((3, 2, *self.layout.shape))
        blocks = [[random_transitions(rng, sizes, 3) for _ in range(2)] for _ in range(3)]
        self.losses = of.FiniteLossClass([lambda c, i=i: tables[i, c] for i in range(3)])
        self.dynamics = of.FiniteDynamicsClass([lambda c, i=i: blocks[i][c] for i in range(3)])
        self.cmdp = of.FiniteContexts([of.LayeredMDP(self.layout, tables[1, c], blocks[1][c], self.mask) for c in range(2)])

    def agent(self, **options: Any) -> of.OPO:
        given = {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1, "action_mask": self.mask, **options}
        return of.OPO(self.layout, self.losses, self.dynamics, **given)


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_both_backends_play_the_same(masked):
    world = World(masked)
    runs = [of.simulate(world.cmdp, world.agent(backend=backend), 60, seed=1, backend=backend) for backend in ("numba", "numpy")]
    assert len(set(runs[0].loss_fit.tolist())) > 1
    for name in ("value", "regret"):
        np.testing.assert_allclose(getattr(runs[0], name), getattr(runs[1], name), atol=1e-10)
    for name in ("observed_loss", "loss_fit", "dynamics_fit", "context_index"):
        np.testing.assert_array_equal(getattr(runs[0], name), getattr(runs[1], name))


@pytest.mark.parametrize("masked", [False, True])
def test_asking_changes_nothing(masked):
    world = World(masked)

    class Curious(of.OPO):
        def policy(self, context):
            for other in (1, context, 0, 1):
                super().policy(other)[:] = np.nan
            self.saturation(0)
            return super().policy(context)

    plain = of.simulate(world.cmdp, world.agent(), 40, seed=2)
    agent = Curious(world.layout, world.losses, world.dynamics, eta=0.5, beta_loss=0.6, beta_dynamics=0.1, action_mask=world.mask)
    curious = of.simulate(world.cmdp, agent, 40, seed=2)
    assert curious.value.tobytes() == plain.value.tobytes()
    assert curious.observed_loss.tobytes() == plain.observed_loss.tobytes()


def test_the_first_policy_is_uniform_over_allowed_actions_and_masked_ones_stay_at_zero():
    world = World(masked=True)
    agent = world.agent()
    allowed = world.mask
    np.testing.assert_array_equal(agent.policy(0), allowed / allowed.sum(axis=1, keepdims=True))
    of.simulate(world.cmdp, agent, 50)
    policy = agent.policy(0)
    assert (policy[~allowed] == 0.0).all()
    assert (policy[allowed] > 0).all()
    np.testing.assert_allclose(policy.sum(axis=1), 1.0, rtol=1e-14)
    assert np.abs(policy - agent.policy(1)).max() > 0.01


def test_the_second_policy_is_uniform_where_all_bonuses_start_at_the_cap():
    # k = 1: N = 0, both bonuses 1, so f - (1 + 2H) + P V < 0 everywhere and Q = 0.
    world = World(masked=False)
    agent = world.agent(beta_loss=2.0, beta_dynamics=2.0)
    of.simulate(world.cmdp, agent, 1)
    assert agent.episode == 1
    np.testing.assert_allclose(agent.policy(0), np.full(world.layout.shape, 1 / 3), rtol=1e-15)
    assert agent.saturation(0) == 1.0


def test_theory_constants_keep_the_policy_uniform_and_the_practical_ones_do_not():
    world = World(masked=False)
    theory = of.OPO(world.layout, world.losses, world.dynamics, episodes=60, tuning="theory")
    result = of.simulate(world.cmdp, theory, 60)
    assert (result.saturation == 1.0).all()
    np.testing.assert_allclose(theory.policy(0), np.full(world.layout.shape, 1 / 3), rtol=1e-14)
    practical = of.OPO(world.layout, world.losses, world.dynamics, episodes=60, **PRACTICAL._asdict())
    result = of.simulate(world.cmdp, practical, 60)
    assert result.saturation[-1] == 0.0
    assert np.abs(practical.policy(0) - 1 / 3).max() > 0.1


def test_oracles_of_ones_own_and_function_classes_give_the_same():
    world = World(masked=False)
    oracles = world.losses.oracle(world.layout, None), world.dynamics.oracle(world.layout, None)
    agent = of.OPO(world.layout, *oracles, eta=0.5, beta_loss=0.6, beta_dynamics=0.1)
    assert agent.loss_oracle is oracles[0]
    own, plain = of.simulate(world.cmdp, agent, 30), of.simulate(world.cmdp, world.agent(), 30)
    assert own.value.tobytes() == plain.value.tobytes()


def test_losses_alone_are_learned_with_one_known_dynamics():
    world = World(masked=False)
    known = of.FiniteDynamicsClass([lambda c: world.cmdp.mdp(c).transitions])
    agent = of.OPO(world.layout, world.losses, known, episodes=200, **PRACTICAL._asdict())
    result = of.simulate(world.cmdp, agent, 200)
    assert result.loss_fit[-1] == 1
    assert result.gap_closed(slice(180, None)) > 0.9


def test_a_single_action_leaves_nothing_to_learn():
    rng = np.random.default_rng(0)
    mdp = random_model(rng, [1, 3, 2], 1)
    losses, dynamics = of.FiniteLossClass([lambda c: mdp.losses]), of.FiniteDynamicsClass([lambda c: mdp.transitions])
    agent = of.OPO(mdp.layout, losses, dynamics, episodes=20, tuning="theory")
    assert agent.eta == 0.0
    result = of.simulate(of.FiniteContexts([mdp]), agent, 20)
    np.testing.assert_allclose(result.regret, 0.0, atol=1e-15)
    assert np.isnan(result.gap_closed())


# -- the bound of term (iii) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "n_actions", "episodes"), [([1], 5, 300), ([1, 4, 4], 3, 400), ([1, 3, 3, 3, 3, 3], 4, 200), ([1, 1], 2, 10)]
)
def test_exponential_weights_stay_below_their_bound(sizes, n_actions, episodes):
    # One context, singleton classes, beta = 0: only term (iii) of the analysis is left, at most sqrt(2 H^4 T log|A|).
    for seed in range(3):
        mdp = random_model(np.random.default_rng(seed), sizes, n_actions)
        losses, dynamics = of.FiniteLossClass([lambda c, m=mdp: m.losses]), of.FiniteDynamicsClass([lambda c, m=mdp: m.transitions])
        agent = of.OPO(mdp.layout, losses, dynamics, episodes=episodes, bonus_scale=0.0)
        assert agent.beta_loss == agent.beta_dynamics == 0.0
        assert agent.eta == math.sqrt(2 * math.log(n_actions) / (len(sizes) ** 2 * episodes))
        result = of.simulate(of.FiniteContexts([mdp]), agent, episodes)
        bound = math.sqrt(2 * len(sizes) ** 4 * episodes * math.log(n_actions))
        assert 0 < result.cumulative_regret[-1] < bound
        # The agent learns: its regret is below that of the uniform policy.
        assert result.cumulative_regret[-1] < (result.uniform_value - result.optimal_value).sum()


# -- ICU-Sepsis --------------------------------------------------------------------------------------------------------


def test_icu_sepsis_is_learned_from_trajectories_alone():
    pytest.importorskip("icu_sepsis", reason="needs the extra icu")
    env = envs.make("icu-sepsis")
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=150, action_mask=env.action_mask, **PRACTICAL._asdict())
    # Before any data the fits are the first candidates, which are not the truth.
    assert agent.fits == (0, 0)
    assert env.true_loss > 0
    assert env.true_dynamics > 0
    result = of.simulate(env, agent, 150, seed=0)
    assert result.gap_closed(slice(135, None)) > 0.7
    assert result.dynamics_fit[-1] == env.true_dynamics


# -- parameters --------------------------------------------------------------------------------------------------------


def test_parameters_by_hand_and_from_theory_mix():
    world = World(masked=False)
    theory = of.OPO(world.layout, world.losses, world.dynamics, episodes=50, tuning="theory")
    scaled = of.OPO(world.layout, world.losses, world.dynamics, episodes=50, bonus_scale=0.5, eta_scale=3.0, beta_loss=0.25)
    assert scaled.beta_loss == 0.25
    assert scaled.beta_dynamics == pytest.approx(0.5 * theory.beta_dynamics, rel=1e-15)
    assert scaled.eta == pytest.approx(3 * theory.eta, rel=1e-15)
    # The classes' sizes enter: H = 4, |S| = 10, |A| = 3, |F| = |P| = 3, T = 50, delta = .05.
    log_term = math.log(128 * 50**4 * 4 * 9 / 0.05**2)
    assert theory.beta_loss == pytest.approx(math.sqrt(5184 * 50 * 4**7 * log_term / (7 * 10 * 3 * math.log(51))), rel=1e-12)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tuning": "theory"}, "episodes is missing: the theory's parameters need it"),
        ({"eta": 0.1, "beta_loss": 0.1}, "episodes is missing"),
        ({"episodes": 0}, "episodes is 0: a whole number at least 1 is needed"),
        ({"episodes": 1.5}, r"episodes is 1\.5: a whole number"),
        ({"episodes": 5, "delta": 0.0}, r"delta is 0\.0: a finite number strictly between 0 and 1"),
        ({"episodes": 5, "delta": 1.0}, r"delta is 1\.0"),
        ({"episodes": 5, "delta": float("nan")}, "delta is nan"),
        ({"episodes": 5, "bonus_scale": -1e-9}, "bonus_scale is -1e-09: a finite number of at least 0 is needed"),
        ({"episodes": 5, "eta_scale": -1}, r"eta_scale is -1\.0"),
        ({"episodes": 5, "eta_scale": float("inf")}, "eta_scale is inf"),
        ({"episodes": 5, "bonus_scale": "big"}, "bonus_scale is 'big': a number is needed"),
        ({"eta": -0.1, "beta_loss": 0.1, "beta_dynamics": 0.1}, r"eta is -0\.1"),
        ({"eta": 0.1, "beta_loss": float("nan"), "beta_dynamics": 0.1}, "beta_loss is nan"),
        ({"eta": 0.1, "beta_loss": 0.1, "beta_dynamics": -2}, r"beta_dynamics is -2\.0"),
        ({"episodes": 5, "backend": "gpu"}, "backend is 'gpu': 'numba' or 'numpy' is needed"),
        ({"episodes": 5, "memory": -1}, "memory is -1"),
        ({"episodes": 5, "action_mask": np.ones((3, 3), bool)}, r"action_mask has shape \(3, 3\): \(10, 3\) is needed"),
        ({"episodes": 5, "action_mask": np.ones((10, 3))}, "action_mask has dtype float64: booleans are needed"),
        ({"episodes": 5, "action_mask": np.zeros((10, 3), bool)}, "state 0 .layer 0. allows no action"),
    ],
)
def test_bad_options(options, text):
    world = World(masked=False)
    with pytest.raises(of.OpoError, match=text):
        of.OPO(world.layout, world.losses, world.dynamics, **options)


def test_bad_classes_and_layouts():
    world = World(masked=False)
    with pytest.raises(of.OpoError, match=r"layout is a list: an opo_fast\.Layout is needed"):
        of.OPO([1, 2], world.losses, world.dynamics, episodes=5)
    with pytest.raises(of.OpoError, match=r"loss_class is a list: a function class .* \(missing: observe, fit, losses\)"):
        of.OPO(world.layout, [], world.dynamics, episodes=5)
    with pytest.raises(of.OpoError, match=r"dynamics_class is a FiniteLossOracle.* \(missing: transitions"):
        of.OPO(world.layout, world.losses, world.losses.oracle(world.layout, None), episodes=5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"states": np.array([0, 1, 2, 8, 10])}, r"trajectory\.states\[2\] is 2: a state of layer 2, 4 to 7, is needed"),
        ({"states": np.array([0, 1, 4, 8, 9])}, r"trajectory\.states\[4\] is 9: the end state 10 is needed"),
        ({"states": np.array([0, 1, 4, 8])}, r"trajectory\.states has shape \(4,\): \(5,\) is needed"),
        ({"states": np.array([0, 1, 4, 8, 10.5])}, r"trajectory\.states has dtype float64: whole numbers"),
        ({"actions": np.array([0, 3, 0, 0])}, r"trajectory\.actions\[1\] is 3: 0 to 2 is needed"),
        ({"actions": np.array([0, -1, 0, 0])}, r"trajectory\.actions\[1\] is -1"),
        ({"losses": np.array([0, 0, 1.5, 0])}, r"trajectory\.losses\[2\] is 1\.5: a number in \[0, 1\] is needed"),
        ({"losses": np.array([0, np.nan, 0, 0])}, r"trajectory\.losses\[1\] is nan"),
        ({"losses": np.array(["a"] * 4)}, r"trajectory\.losses has dtype <U1: numbers are needed"),
        ({"context": {}}, "context is a dict, which is not hashable"),
    ],
)
def test_a_bad_trajectory_changes_nothing(change, text):
    world = World(masked=False)
    agent = world.agent()
    good = {"context": 0, "states": np.array([0, 1, 4, 8, 10]), "actions": np.zeros(4, int), "losses": np.ones(4)}
    agent.observe(of.Trajectory(**good))
    before, scores = agent.policy(0), agent.loss_oracle.scores.copy()
    with pytest.raises(of.OpoError, match=text):
        agent.observe(of.Trajectory(**{**good, **change}))
    assert agent.episode == 1
    np.testing.assert_array_equal(agent.policy(0), before)
    np.testing.assert_array_equal(agent.loss_oracle.scores, scores)
    with pytest.raises(of.OpoError, match="trajectory is a int without context"):
        agent.observe(3)


def test_a_masked_action_cannot_have_been_played():
    world = World(masked=True)
    agent = world.agent()
    state = int(np.flatnonzero(~world.mask[0])[0])
    with pytest.raises(of.OpoError, match=rf"trajectory\.actions\[0\] is {state}, which is masked in state 0"):
        agent.observe(of.Trajectory(0, np.array([0, 1, 4, 8, 10]), np.array([state, 0, 0, 0]), np.zeros(4)))


def test_a_candidate_whose_rows_do_not_sum_to_one_is_named_with_its_place():
    world = World(masked=False)
    blocks = [b.copy() for b in world.dynamics.models[0](1)]
    blocks[1][2, 1, 0] += 0.25
    agent = of.OPO(world.layout, world.losses, of.FiniteDynamicsClass([lambda c: blocks]), eta=1, beta_loss=1, beta_dynamics=1)
    agent.observe(of.Trajectory(1, np.array([0, 1, 4, 8, 10]), np.zeros(4, int), np.zeros(4)))
    text = r"transitions of fit 0 at context 1\[1\]: layer 1, state 3 \(position 2\), action 1: the row sums to 1\.2"
    with pytest.raises(of.OpoError, match=text):
        agent.policy(1)
