"""Tabular optimistic policy optimization against a direct implementation; the simple baselines; agents by name."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pytest
from strategies import random_mask, random_model

import opo_fast as of
from opo_fast import agents
from opo_fast.agents import BonusFreeOPO, EpsilonGreedy, Greedy, Optimum, TabularOPO, Uniform
from opo_fast.envs import combination_lock, random_finite
from opo_fast.runs.simulation import Simulation


def environment(seed=0, masked=False, sizes=(1, 3, 2, 4), n_actions=3, n_contexts=2):
    rng = np.random.default_rng(seed)
    mask = random_mask(rng, (sum(sizes), n_actions)) if masked else None
    return of.FiniteContexts([random_model(rng, sizes, n_actions, mask=mask) for _ in range(n_contexts)]), mask


def recorded(env, agent, episodes, seed=0):
    """(trajectory, policy) of each episode."""
    run = Simulation(env, agent, episodes, seed)
    seen = []
    observe = agent.observe

    def both(trajectory):
        seen.append((trajectory, agent.policy(trajectory.context)))
        observe(trajectory)

    agent.observe = both
    while run.episode < episodes:
        run.step()
    agent.observe = observe
    return seen


class ByHand:
    """The loop at one context, implemented directly: dictionaries of counts and a plain backward pass."""

    def __init__(self, layout, mask, episodes, delta, bonus_scale, eta):
        self.layout, self.bonus_scale, self.eta = layout, bonus_scale, eta
        self.allowed = np.ones(layout.shape, bool) if mask is None else mask
        self.log_loss = math.log(2 * layout.n_states * layout.n_actions * episodes * layout.horizon / (delta / 3))
        self.log_dynamics = math.log(3 * layout.n_states * layout.n_actions * episodes * layout.horizon / (delta / 3))
        self.policy = self.allowed / self.allowed.sum(axis=1, keepdims=True)
        self.losses, self.next = {}, {}

    def learn(self, trajectory):
        layout, horizon = self.layout, self.layout.horizon
        q = np.zeros(layout.shape)
        v = np.zeros(layout.n_states + 1)
        for s in reversed(range(layout.n_states)):
            h = layout.layer_of(s)
            for a in np.flatnonzero(self.allowed[s]):
                seen = self.losses.get((s, a), [])
                n = max(len(seen), 1)
                width = layout.layer_sizes[h + 1] if h < horizon - 1 else 0
                b = math.sqrt(2 * self.log_loss / n) + horizon * math.sqrt(4 * width * self.log_dynamics / n)
                ahead = np.mean([v[s2] for s2 in self.next[s, a]]) if seen else 0.0
                q[s, a] = max(0.0, (np.mean(seen) if seen else 0.0) - self.bonus_scale * b + ahead)
            v[s] = (self.policy[s] * q[s]).sum()
        weights = self.policy * np.exp(-self.eta * q)
        self.policy = weights / weights.sum(axis=1, keepdims=True)
        for s, a, loss, following in zip(trajectory.states, trajectory.actions, trajectory.losses, trajectory.states[1:], strict=False):
            self.losses.setdefault((s, a), []).append(loss)
            self.next.setdefault((s, a), []).append(following)
        return v[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("per_context", [True, False])
def test_tabular_opo_is_the_loop_of_the_notes(masked, per_context):
    env, mask = environment(masked=masked)
    agent = TabularOPO(env.layout, episodes=80, bonus_scale=0.002, eta_scale=5.0, per_context=per_context, action_mask=mask)
    assert agent.eta == pytest.approx(5 * math.sqrt(2 * math.log(3) / (16 * 80)))
    by_hand = [ByHand(env.layout, mask, 80, 0.05, 0.002, agent.eta) for _ in range(2)]
    for trajectory, policy in recorded(env, agent, 80):
        mine = by_hand[trajectory.context if per_context else 0]
        np.testing.assert_allclose(policy, mine.policy, atol=1e-12)
        value = mine.learn(trajectory)
    assert agent.value(trajectory.context) == pytest.approx(value, abs=1e-12)
    assert agent.planning_calls == 80
    assert value > 0


def test_tabular_opo_without_bonus_and_with_exact_losses_converges():
    # With deterministic transitions and losses 0 and 1 all estimates are exact, and the policy converges to the optimum.
    layout = of.Layout([1, 2], 2)
    move = [np.array([[[1.0, 0.0], [0.0, 1.0]]])]
    mdp = of.LayeredMDP(layout, np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), move)
    env = of.FiniteContexts([mdp])
    result = of.simulate(env, TabularOPO(layout, episodes=2000, bonus_scale=0.0, eta_scale=3.0), 2000, seed=0)
    assert result.optimal_value[0] == 1.0
    assert result.regret[-100:].max() < 1e-3


def test_tabular_opo_is_optimistic_with_the_constants_of_the_theory():
    env, _ = environment(3, sizes=(1, 2, 2), n_actions=2)
    agent = TabularOPO(env.layout, episodes=300)
    seen = recorded(env, agent, 300)
    for trajectory, policy in seen[-20:]:
        assert agent.value(trajectory.context) <= of.evaluate(env.mdp(trajectory.context), policy).v[0]
    # A bonus of at least the remaining number of steps is saturated; the last layer falls below that first.
    assert 0.5 < agent.saturation(0) < 1.0
    assert TabularOPO(env.layout, episodes=300).saturation(0) == 1.0


def test_a_restored_table_goes_on_with_the_same_bits():
    env, mask = environment(1, masked=True)
    make = lambda: TabularOPO(env.layout, episodes=60, bonus_scale=0.01, eta_scale=5.0, action_mask=mask)  # noqa: E731
    whole, first, second = make(), make(), make()
    result = of.simulate(env, whole, 60, seed=4)
    recorded(env, first, 25, seed=4)
    second.restore(json.loads(json.dumps(first.state(), default=lambda array: array.tolist())))
    assert second.saturation(0) == first.saturation(0) < 1.0
    rest = of.simulate(env, second, 35, seed=4)
    np.testing.assert_array_equal(rest.value, result.value[25:])
    empty = make()
    empty.restore(make().state())
    np.testing.assert_array_equal(empty.policy(0), make().policy(0))


def test_a_table_that_is_too_large_is_refused():
    with pytest.raises(of.OpoError, match="which a table can hold"):
        TabularOPO(of.Layout([1, 20000, 20000], 2), episodes=10)


def test_uniform_and_optimum():
    env, mask = environment(2, masked=True)
    for context in (0, 1):
        np.testing.assert_allclose(Uniform(env.layout, action_mask=mask).policy(context), mask / mask.sum(axis=1, keepdims=True))
        np.testing.assert_array_equal(Optimum(env).policy(context), of.solve(env.mdp(context)).policy)
    result = of.simulate(env, Optimum(env), 20, seed=0)
    np.testing.assert_array_equal(result.regret, np.zeros(20))
    result = of.simulate(env, Uniform(env.layout, action_mask=mask), 20, seed=0)
    np.testing.assert_array_equal(result.value, result.uniform_value)
    with pytest.raises(of.OpoError, match="cmdp is a str"):
        Optimum("env")


def test_greedy_plays_the_optimum_of_the_newest_fits():
    env = random_finite(seed=3)
    agent = Greedy(env.layout, env.loss_class, env.dynamics_class)
    trajectory, _ = recorded(env, agent, 30)[-1]
    i, j = agent.loss_oracle.scores.argmin(), agent.dynamics_oracle.scores.argmax()
    context = trajectory.context
    model = of.LayeredMDP(env.layout, env.loss_class.models[i](context), env.dynamics_class.models[j](context))
    np.testing.assert_array_equal(agent.policy(context), of.solve(model).policy)
    assert agent.value(context) == of.solve(model).v[0]
    policy = agent.policy(context)
    policy[:] = 0.0
    assert agent.policy(context).any()


def test_epsilon_greedy_mixes_with_the_uniform_policy():
    env = random_finite(seed=3)
    agent, greedy = (kind(env.layout, env.loss_class, env.dynamics_class) for kind in (EpsilonGreedy, Greedy))
    np.testing.assert_allclose(agent.policy(env.contexts[0]), np.full(env.layout.shape, 1 / 3))
    for trajectory, _ in recorded(env, agent, 26):
        greedy.observe(trajectory)
    assert agent.epsilon == pytest.approx(1 / 3)
    context = env.contexts[1]
    np.testing.assert_allclose(agent.policy(context), greedy.policy(context) * 2 / 3 + 1 / 9)
    constant = EpsilonGreedy(env.layout, env.loss_class, env.dynamics_class, epsilon=0.25)
    assert constant.epsilon == 0.25
    with pytest.raises(of.OpoError, match=r"state belongs to an agent whose scale is 1\.0: 0\.5 is needed"):
        EpsilonGreedy(env.layout, env.loss_class, env.dynamics_class, scale=0.5).restore(agent.state())


def test_opo_without_bonus_is_opo_with_betas_of_0():
    env = combination_lock(horizon=4)
    options = {"episodes": 50, "eta_scale": 10.0}
    one = BonusFreeOPO(env.layout, env.loss_class, env.dynamics_class, **options)
    two = of.OPO(env.layout, env.loss_class, env.dynamics_class, beta_loss=0.0, beta_dynamics=0.0, **options)
    first, second = (of.simulate(env, agent, 50, seed=0) for agent in (one, two))
    np.testing.assert_array_equal(first.value, second.value)
    assert first.saturation[-1] == 0.0


# -- by name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 3])
def test_every_agent_runs_by_name_in_its_practical_setting(horizon):
    env = random_finite(horizon=horizon, n_states=1 if horizon == 1 else 3)
    for name in agents.names(env.layout):
        agent = agents.make(name, env, episodes=40)
        assert isinstance(agent, agents.Agent)
        result = of.simulate(env, agent, 40, seed=0)
        assert result.regret.min() > -1e-12
        assert agent.planning_calls >= 0
        other = agents.make(name, env, episodes=40)
        other.restore(agent.state())
        for context in env.contexts:
            np.testing.assert_array_equal(other.policy(context), agent.policy(context))


def test_every_agent_keeps_to_the_mask():
    from opo_fast.envs import make

    env = make("icu-sepsis", horizon=2)
    assert env.action_mask is not None
    for name in agents.names(env.layout):
        if name == "lolipop":
            with pytest.raises(of.OpoError, match="LOLIPOP plans for each pair"):
                agents.make(name, env, episodes=4)
        elif name == "rm-ucdd":
            with pytest.warns(UserWarning, match="p_min is 0"):
                of.simulate(env, agents.make(name, env, episodes=4), 4, seed=0)
        else:
            of.simulate(env, agents.make(name, env, episodes=4), 4, seed=0)


def test_names_fit_the_layout():
    everything = agents.names()
    assert {"opo", "e-uc3rl", "rm-ucdd", "lolipop", "tabular-opo", "uniform", "greedy", "optimum", "uccb", "regcb"} <= set(everything)
    assert set(everything) - set(agents.names(of.Layout([1, 2], 2))) == {"po-cmab", "uccb", "squarecb", "falcon", "regcb"}
    assert agents.names(of.Layout([1], 2)) == everything


def test_scales_and_options_reach_the_agent():
    env = random_finite()
    theory = agents.make("opo", env, episodes=100, bonus_scale=1.0, eta_scale=1.0)
    literal = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=100, tuning="theory")
    assert (theory.eta, theory.beta_loss) == (literal.eta, literal.beta_loss)
    learns = agents.make("opo", env, episodes=100, bonus_scale=2e-6)
    assert learns.beta_loss == pytest.approx(literal.beta_loss * 2e-6)
    assert learns.eta == pytest.approx(literal.eta * 50)
    assert agents.make("opo", env, episodes=100).tuning == "auto"
    assert agents.make("rm-ucdd", env, episodes=100).p_min == agents.minimum_reachability(env)
    assert agents.make("rm-ucdd", env, episodes=100, p_min=0.5).p_min == 0.5
    assert agents.make("opo", env, episodes=100, backend="numpy").backend == "numpy"
    assert agents.make("lolipop", env, episodes=100, seed=7).streams.seed == 7


def test_what_is_unknown_is_named():
    env = random_finite()
    with pytest.raises(of.OpoError, match=r"agent is 'opos' \(did you mean 'opo'\?\)"):
        agents.make("opos", env, episodes=10)
    with pytest.raises(of.OpoError, match="p_min is not an option of agent 'opo': one of tuning, delta, bonus_scale"):
        agents.make("opo", env, episodes=10, p_min=0.1)
    with pytest.raises(of.OpoError, match="env is a FiniteContexts without loss_class: agent 'greedy' needs it"):
        agents.make("greedy", of.FiniteContexts([random_model(np.random.default_rng(0), (1, 2), 2)]), episodes=10)
    with pytest.raises(of.OpoError, match=r"Layout\(\[1\], n_actions\), that of a bandit"):
        agents.make("falcon", env, episodes=10)


def test_an_endless_environment_is_sampled_for_its_reachability():
    from opo_fast.envs import random_linear

    env = random_linear(n_contexts=None)
    agent = agents.make("rm-ucdd", env, episodes=10)
    assert 0 < agent.p_min < 1


def test_public_classes_say_what_their_parameters_are():
    for name in agents.__all__:
        entry = getattr(agents, name)
        if inspect.isclass(entry) and name not in ("Agent", "AgentInfo", "Uniform"):
            assert "Parameters\n" in inspect.getdoc(entry), name
