"""LOLIPOP: policy covers against an enumeration of all policies, trusted transitions, epochs, and saved states."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast import reference
from opo_fast.agents import LOLIPOP
from opo_fast.runs.simulation import Simulation


def setting(seed=0, sizes=(1, 2, 2), n_actions=2, n_contexts=2, n_candidates=3):
    rng = np.random.default_rng(seed)
    candidates = [[random_model(rng, sizes, n_actions) for _ in range(n_contexts)] for _ in range(n_candidates)]
    env = of.FiniteContexts(candidates[-1])
    losses = of.FiniteLossClass([lambda c, m=m: m[c].losses for m in candidates])
    dynamics = of.FiniteDynamicsClass([lambda c, m=m: m[c].transitions for m in candidates])
    return env, losses, dynamics


def advanced(agent, env, episodes, seed=0):
    run = Simulation(env, agent, episodes, seed)
    while run.episode < episodes:
        run.step()
    return agent


def all_policies(layout):
    return [np.array(actions) for actions in itertools.product(range(layout.n_actions), repeat=layout.n_states)]


def models_of(agent, context):
    """Losses and transitions of M_{m-1} and of this epoch's finished segments, by hand."""
    layout = agent.layout
    losses = np.zeros(layout.shape)
    before, now = [], []
    for h in range(layout.horizon):
        loss_fit, fit = agent.before[h].fits
        losses[layout.layer(h)] = agent.loss_class.models[loss_fit](context)[layout.layer(h)]
        if h < layout.horizon - 1:
            before.append(agent.dynamics_class.models[fit](context).arrays()[h])
    for h in range(agent.layer):
        now.append(agent.dynamics_class.models[agent.now[h].fits[1]](context).arrays()[h])
    return losses, before, now


def trusted_occupancy(agent, trusted, actions):
    """d^h(s, a; pi) of the coming segment's layer."""
    layout = agent.layout
    d = np.ones(1)
    for h in range(agent.layer):
        chosen = actions[layout.layer(h)]
        d = np.einsum("s,sj->j", d, trusted[h][np.arange(chosen.size), chosen])
    return d


def hybrid_value(agent, losses, before, trusted, actions):
    """V(s_1) with trusted transitions before the layer and M_{m-1} from it on; missing probability costs 1 in each later step."""
    layout = agent.layout
    total, d = 0.0, np.ones(1)
    for h in range(layout.horizon):
        chosen = actions[layout.layer(h)]
        states = np.arange(chosen.size)
        total += d @ losses[layout.layer(h)][states, chosen]
        if h == layout.horizon - 1:
            break
        p = (trusted if h < agent.layer else before)[h][states, chosen]
        total += d @ (1 - p.sum(axis=1)) * (layout.horizon - 1 - h)
        d = d @ p
    return total


@pytest.mark.parametrize("episodes", [0, 1, 2, 3, 5, 7, 8, 9, 13, 17, 21, 29, 37, 41])
@pytest.mark.parametrize("trust_scale", [6.0, 1e6])
def test_covers_are_those_of_an_enumeration_of_all_policies(episodes, trust_scale):
    env, losses, dynamics = setting()
    agent = advanced(LOLIPOP(env.layout, losses, dynamics, eta_scale=200.0, trust_scale=trust_scale), env, max(episodes, 1))
    if episodes == 0:
        agent = LOLIPOP(env.layout, losses, dynamics, eta_scale=200.0, trust_scale=trust_scale)
    layout, context = env.layout, 1
    table, before, now = models_of(agent, context)
    policies = all_policies(layout)
    # Trusted transitions, layer by layer: max over policies of d(s) P(s'|s,a) >= 1/zeta.
    trusted = []
    for h in range(agent.layer):
        reach = np.zeros(layout.layer_sizes[h])
        for actions in policies:
            d = np.ones(1)
            for j in range(h):
                chosen = actions[layout.layer(j)]
                d = d @ trusted[j][np.arange(chosen.size), chosen]
            reach = np.maximum(reach, d)
        trusted.append(np.where(reach[:, None, None] * now[h] >= 1 / agent.zeta, now[h], 0.0))
    if trust_scale == 1e6 and agent.layer:
        assert all((p > 0).all() for p in trusted)
    mdp = of.LayeredMDP(layout, table, before)
    best = reference.solve(mdp)
    least = min(hybrid_value(agent, table, before, trusted, actions) for actions in policies)
    scores = []
    size = layout.layer_sizes[agent.layer] * layout.n_actions
    for actions in policies:
        regret = hybrid_value(agent, table, before, trusted, actions) - least
        d = trusted_occupancy(agent, trusted, actions)
        chosen = actions[layout.layer(agent.layer)]
        hit = np.zeros((d.size, layout.n_actions))
        hit[np.arange(d.size), chosen] = d
        scores.append(hit / (size + agent.eta * regret))
    top = np.max(scores, axis=0)
    cover = agent.cover(context)
    # For each reachable pair the cover has a policy with the best ratio of all policies, and pi* is in the cover.
    found = np.zeros_like(top)
    index = {actions.tobytes(): score for actions, score in zip(policies, scores, strict=True)}
    for member in cover.actions:
        found = np.maximum(found, index[np.ascontiguousarray(member).tobytes()])
    np.testing.assert_allclose(found, top, rtol=1e-9, atol=1e-300)
    values = [reference.evaluate(mdp, np.eye(layout.n_actions)[member]).v[0] for member in cover.actions]
    gaps = np.array(values) - best.v[0]
    assert gaps.min() == pytest.approx(0.0, abs=1e-12)
    inverse = 1 / cover.probabilities
    np.testing.assert_allclose(inverse - inverse.min(), agent.eta * gaps, rtol=1e-6, atol=1e-6)
    assert cover.probabilities.sum() == pytest.approx(1.0)
    assert len(cover.actions) <= size + 1


def test_an_untrusted_layer_is_not_explored_but_the_optimum_is_played():
    env, losses, dynamics = setting()
    agent = advanced(LOLIPOP(env.layout, losses, dynamics, trust_scale=1e-9), env, 14)
    assert agent.layer > 0
    cover = agent.cover(0)
    assert len(cover.actions) == 1
    table, before, _ = models_of(agent, 0)
    np.testing.assert_array_equal(np.eye(2)[cover.actions[0]], reference.solve(of.LayeredMDP(env.layout, table, before)).policy)


def test_segments_and_calls():
    env, losses, dynamics = setting()
    agent = LOLIPOP(env.layout, losses, dynamics)
    run = Simulation(env, agent, 45, 0)
    steps = []
    for _ in range(45):
        steps.append((agent.epoch, agent.layer))
        run.step()
    expected = [(m, h) for m in range(1, 5) for h in range(3) for _ in range(2 ** (m - 1))]
    assert steps == expected
    # Four epochs, three segments each, one fit of losses and one of dynamics: O(H log T) calls.
    assert agent.oracle_calls == 24


def test_each_segment_learns_from_its_own_episodes():
    env, losses, dynamics = setting(4)
    agent = LOLIPOP(env.layout, losses, dynamics)
    run = Simulation(env, agent, 9, 0)
    by_hand = [losses.oracle(env.layout, None) for _ in range(3)]
    seen = []
    observe = agent.observe

    def recorded(trajectory):
        seen.append(trajectory)
        observe(trajectory)

    agent.observe = recorded
    while run.episode < 9:
        run.step()
    for h in range(3):
        for trajectory in seen[3 + 2 * h : 5 + 2 * h]:
            by_hand[h].observe(trajectory)
        assert agent.before[h].fits[0] == by_hand[h].fit()


def test_the_draw_depends_on_seed_and_episode_alone():
    env, losses, dynamics = setting()
    first, second, other = (LOLIPOP(env.layout, losses, dynamics, seed=seed) for seed in (3, 3, 4))
    for agent in (first, second, other):
        advanced(agent, env, 30)
    for context in (0, 1):
        np.testing.assert_array_equal(first.policy(context), first.policy(context))
        np.testing.assert_array_equal(first.policy(context), second.policy(context))
    # Over many episodes the frequencies of the draws match the probabilities.
    agent = LOLIPOP(env.layout, losses, dynamics, seed=1)
    cover = agent.cover(0)
    drawn = []
    for episode in range(4000):
        agent.episode = episode
        drawn.append(agent.policy(0).argmax(axis=1).tobytes())
    shares = [drawn.count(member.tobytes()) / 4000 for member in cover.actions]
    np.testing.assert_allclose(shares, cover.probabilities, atol=4 * np.sqrt(0.25 / 4000))


def test_a_restored_agent_goes_on_with_the_same_bits():
    env, losses, dynamics = setting()
    make = lambda: LOLIPOP(env.layout, losses, dynamics, eta_scale=100.0, trust_scale=1e3)  # noqa: E731
    whole, first, second = make(), make(), make()
    result = of.simulate(env, whole, 60, seed=2)
    for split in (1, 10, 40):
        of.simulate(env, first, split - first.episode, seed=2)
        second.restore(json.loads(json.dumps(first.state(), default=lambda array: array.tolist())))
        assert (second.epoch, second.layer, second.oracle_calls) == (first.epoch, first.layer, first.oracle_calls)
    rest = of.simulate(env, second, 20, seed=2)
    np.testing.assert_array_equal(rest.value, result.value[40:])
    assert second.epoch == whole.epoch


def test_masked_actions_and_sparse_models():
    rng = np.random.default_rng(5)
    mask = np.array([[True, True, False], [True, False, True], [True, True, True], [False, False, True], [True, True, False]])
    candidates = [[random_model(rng, (1, 2, 2), 3, "csr", mask=mask) for _ in range(2)] for _ in range(2)]
    env = of.FiniteContexts(candidates[1])
    losses = of.FiniteLossClass([lambda c, m=m: m[c].losses for m in candidates])
    dynamics = of.FiniteDynamicsClass([lambda c, m=m: m[c].transitions for m in candidates])
    agent = LOLIPOP(env.layout, losses, dynamics, action_mask=mask, trust_scale=1e6, eta_scale=10.0)
    of.simulate(env, agent, 40, seed=0)
    for context in (0, 1):
        actions = agent.cover(context).actions
        assert mask[np.arange(5), actions].all()


def test_what_does_not_fit_is_refused():
    env, losses, dynamics = setting()
    with pytest.raises(of.OpoError, match=r"loss_class is a FiniteLossOracle: a function class"):
        LOLIPOP(env.layout, losses.oracle(env.layout, None), dynamics)
    with pytest.raises(of.OpoError, match="LOLIPOP plans for each pair"):
        LOLIPOP(of.Layout([1, 500, 500], 10), losses, dynamics)
    with pytest.raises(of.OpoError, match="seed is -1"):
        LOLIPOP(env.layout, losses, dynamics, seed=-1)
