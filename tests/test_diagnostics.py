"""The diagnostics, against a direct computation, and whether the advice that they lead to helps."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from strategies import random_mask

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.algorithm.self_tuning import self_tuning_chain
from opo_fast.analysis import history_at, optimistic_steps
from opo_fast.cli.run import advice
from opo_fast.model.reference import occupancy
from opo_fast.runs.result import DIAGNOSTICS

T = 61
"""Number of episodes, with diagnostics in the last one (see `opo_fast.runs.simulation`)."""


def world(masked=False, seed=3):
    env = envs.random_finite(horizon=4, n_states=3, n_actions=3, n_contexts=2, n_losses=6, n_dynamics=5, seed=seed)
    if not masked:
        return env
    mask = random_mask(np.random.default_rng(seed), env.layout.shape)
    dynamics = [lambda c, model=model: model(c).arrays() for model in env.dynamics_models]
    return envs.Environment(env.layout, env.loss_models, dynamics, true_loss=3, true_dynamics=2, contexts=range(2), action_mask=mask)


def last_of(env, agent, episodes=T):
    """The context of the last episode, and the result's numbers for it; the agent has not observed this episode."""
    run = of.simulate(env, agent, episodes, seed=2, progress=False)
    return run, run.contexts[run.context_index[-1]], {name: getattr(run, name)[-1] for name in DIAGNOSTICS}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bonus_scale", [1e-6, 3e-5, 1.0])
def test_shares_of_cut_off_estimates_and_of_vacuous_bonuses(masked, bonus_scale):
    env = world(masked)
    agent = of.OPO(
        env.layout, env.loss_class, env.dynamics_class, episodes=T, bonus_scale=bonus_scale, eta_scale=20, action_mask=env.action_mask
    )
    _, context, found = last_of(env, agent)
    given = {"eta": agent.eta, "beta_loss": agent.beta_loss, "beta_dynamics": agent.beta_dynamics}
    # The policy of the last episode uses the fits from before it, with one step for each earlier episode.
    *_, last, coming = optimistic_steps(history_at(agent, context, T), **given)
    layout, model = env.layout, last.model
    n_pairs = below = vacuous = 0
    played = 0.0
    visits = occupancy(model, coming.policy)
    for h in range(layout.horizon):
        for s in range(*layout.offsets[h : h + 2]):
            for a in range(layout.n_actions):
                if env.action_mask is not None and not env.action_mask[s, a]:
                    continue
                estimate = model.losses[s, a] - last.bonus[s, a]
                if h < layout.horizon - 1:
                    estimate += model.transitions.arrays()[h][s - layout.offsets[h], a] @ last.v[layout.layer(h + 1)]
                n_pairs += 1
                below += estimate < 0
                played += visits[s, a] * (estimate < 0) / layout.horizon
                vacuous += last.bonus[s, a] >= layout.horizon - h
    assert found["truncated"] == pytest.approx(below / n_pairs, rel=1e-12)
    assert found["truncated_played"] == pytest.approx(played, rel=1e-9, abs=1e-15)
    assert found["vacuous_bonuses"] == pytest.approx(vacuous / n_pairs, rel=1e-12)
    assert all(math.isnan(found[name]) for name in ("plausible_losses", "plausible_dynamics", "hedge_bound"))
    if bonus_scale == 1.0:
        assert found["truncated"] == found["vacuous_bonuses"] == 1.0


def test_numbers_of_candidates_and_the_bound_of_the_policy_steps():
    env = world()
    log = []

    class Listening(of.OPO):
        def observe(self, trajectory):
            log.append(trajectory)
            super().observe(trajectory)

    agent = Listening(env.layout, env.loss_class, env.dynamics_class, delta=0.1)
    run, context, found = last_of(env, agent)
    # The recursions of the plausible sets, each with half of delta.
    losses, dynamics = set(range(6)), set(range(5))
    errors, scores = np.zeros(6), np.zeros(5)
    for t, trajectory in enumerate(log[:-1], start=1):
        # The last step of the chain for a policy uses the data from before the previous episode.
        assert (run.plausible_losses[t], run.plausible_dynamics[t]) == (len(losses), len(dynamics))
        c, path, played = trajectory.context, trajectory.states, trajectory.actions
        for i, model in enumerate(env.loss_models):
            errors[i] += ((model(c)[path[:-1], played] - trajectory.losses) ** 2).sum()
        for i, model in enumerate(env.dynamics_models):
            for h, block in enumerate(model(c).arrays()):
                at = env.layout.offsets[h : h + 2]
                scores[i] += math.log(block[path[h] - at[0], played[h], path[h + 1] - at[1]])
        losses = {i for i in losses if errors[i] <= errors.min() + math.log(6 / 0.05) / 2} or {int(errors.argmin())}
        dynamics = {i for i in dynamics if scores[i] >= scores.max() - math.log(5 / 0.05)} or {int(scores.argmax())}
    assert 1 <= found["plausible_losses"] < 6
    assert 1 <= found["plausible_dynamics"] < 5
    hedge = self_tuning_chain([agent.plausible_at(agent.history[k], context) for k in range(T - 1)], agent.rule)
    layers = [env.layout.layer(h) for h in range(env.layout.horizon)]
    assert found["hedge_bound"] == pytest.approx(sum(2 * hedge.gap[layer].max() for layer in layers), rel=1e-9)
    assert (found["truncated"], found["truncated_played"], found["vacuous_bonuses"]) == (0.0, 0.0, 1.0)


def late_gap(env, episodes, **options):
    run = of.simulate(env, agents.make("opo", env, episodes=episodes, **options), episodes, seed=1, progress=False)
    return run.gap_closed(slice(-episodes // 10, None)), advice(run, episodes // 10)


@pytest.mark.parametrize(
    ("make", "episodes", "factor", "word", "better"),
    [
        # Bonuses on a long horizon that hide all differences between actions.
        (lambda: envs.random_finite(horizon=20, n_states=4, n_contexts=2, seed=5), 300, 2e-6, "decrease", 2e-9),
        (lambda: world(), 300, 1.0, "decrease", 2e-6),
        # An agent without optimism leaves the path of the lock at once, and never observes its reward.
        (lambda: envs.combination_lock(seed=1), 500, 0.0, "increase", 2e-6),
        (lambda: envs.combination_lock(seed=1), 500, 1e-8, "increase", 2e-6),
    ],
)
def test_the_advice_names_the_direction_that_helps(make, episodes, factor, word, better):
    env = make()
    before, said = late_gap(env, episodes, bonus_scale=factor)
    assert f"{word} --bonus-scale" in said
    after, _ = late_gap(env, episodes, bonus_scale=better)
    assert after > max(before + 0.2, 0.5)
    # The other half of the advice, no bonus at all, helps too.
    alone, said = late_gap(env, episodes)
    assert alone > 0.9
    assert said == ""


def test_a_run_that_goes_well_or_has_no_bonus_gets_no_advice():
    env = world()
    for name in ("opo", "greedy", "uniform"):
        run = of.simulate(env, agents.make(name, env, episodes=200), 200, seed=1, progress=False)
        assert advice(run, 20) == ""


def test_an_agent_at_the_theorys_constants_says_that_it_plays_uniformly():
    env = world()
    for options, expected in (({"tuning": "theory"}, 1), ({"bonus_scale": 2e-6, "eta_scale": 50}, 0), ({}, 0)):
        agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=150, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            of.simulate(env, agent, 150, progress=False)
        said = [str(warning.message) for warning in caught if "policy is uniform" in str(warning.message)]
        assert len(said) == expected
        if expected:
            np.testing.assert_allclose(agent.policy(0), 1 / 3, rtol=1e-14)
            assert said[0].startswith("after 100 episodes every bonus is still above the greatest loss-to-go 4")
