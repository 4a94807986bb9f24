"""The events of the proof: by hand, against `lemma_checks`, over many seeds, and with one ingredient broken."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.analysis import (
    agent_steps,
    context_events,
    event_frequencies,
    event_study,
    lemma_checks,
    optimistic_steps,
    run_events,
    stack,
    stacked_steps,
)  # fmt: skip
from opo_fast.analysis.events import Statement

SMALL = {"eta": 0.3, "beta_loss": 4.0, "beta_dynamics": 4.0}
LAYOUT = of.Layout([1, 2], 2)


def random_world(**options):
    return envs.make("random-finite", **{"horizon": 3, "n_states": 3, "n_contexts": 3, "n_losses": 4, "n_dynamics": 4, **options})


def played(env, episodes=60, seed=0, **options):
    agent = agents.make("opo", env, episodes=episodes, **options)
    return agent, of.simulate(env, agent, episodes, seed)


def thresholds(horizon, beta=4.0):
    return {"beta_loss": beta, "beta_dynamics": beta, "gamma_visits": beta / 2, "gamma": beta / 2 / (432 * horizon**4)}


@pytest.mark.parametrize("own", [{}, {"tuning": "theory"}, SMALL])
def test_stacked_steps_are_the_steps_one_by_one(own):
    env = random_world(seed=1)
    agent, _ = played(env, 40, **(own or {"tuning": "auto"}))
    for context, found in zip(range(3), stacked_steps(agent, range(3)), strict=True):
        single = stack(step for _, _, step in agent_steps(agent, [(context, range(40))]))
        for name, mine, theirs in zip(found._fields[2:], found[2:], single[2:], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-9, err_msg=name)
        for mine, theirs in zip(found.which, single.which, strict=True):
            np.testing.assert_array_equal(found.models[mine].losses, single.models[theirs].losses)


def test_the_events_of_three_episodes_by_hand():
    # Two actions of equal loss in one state, then a state each; the fit leads the first action to either with probability 1/2.
    truth = of.LayeredMDP(LAYOUT, [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [np.array([[[1.0, 0.0], [0.0, 1.0]]])])
    fit = of.LayeredMDP(LAYOUT, truth.losses, [np.array([[[0.5, 0.5], [0.0, 1.0]]])])
    given = {"eta": 1e-9, "beta_loss": 4.0, "beta_dynamics": 4.0}
    steps = stack(optimistic_steps([fit, fit, truth, truth], **given))
    events = context_events(truth, steps, beta_loss=4.0, beta_dynamics=4.0, gamma=0.5, gamma_visits=1.75)
    # All policies are uniform: q is 1/2 for the first two pairs and 1/4 for the others, under the fit (1/8, 1/8, 3/8, 3/8) for these.
    t = np.arange(4)
    np.testing.assert_allclose(events.true_visits[:, 0], t[:, None] * [0.5, 0.5], atol=1e-8)
    np.testing.assert_allclose(events.true_visits[:, 1:], t[:, None, None] * np.full((2, 2), 0.25), atol=1e-8)
    np.testing.assert_allclose(events.estimated_visits[1, 1:], [[0.125] * 2, [0.375] * 2], atol=1e-8)
    np.testing.assert_allclose(events.estimated_visits[2:], events.true_visits[2:], atol=1e-8)
    # (1 - 1/sqrt 2)^2 + 1/2 = 2 - sqrt 2 for one half of each past episode; 0.29 in episode 2, and the truth from episode 3 on.
    np.testing.assert_allclose(events.hellinger, [0, (2 - math.sqrt(2)) / 2, 0, 0], atol=1e-8)
    assert events.inaccurate.tolist() == [False, False, False, False]
    # 1 + t/2 <= 1.75 for t <= 1 (t from 0), 1 + t/4 <= 1.75 for t <= 3.
    assert events.under_explored[:, 0].tolist() == [[True] * 2] * 2 + [[False] * 2] * 2
    assert events.under_explored[:, 1:].all()
    # b = min{1, 2/(1+N)} + 4 min{1, 2/(1+N)} is 5 for all pairs in two layers; the first episode does not count.
    np.testing.assert_allclose(events.bonuses, [[0, 0, 0], [0, 10, 0], [0, 5, 5], [0, 5, 4]], atol=1e-6)
    np.testing.assert_allclose(events.factor, [math.nan, math.nan, 1, 1], atol=1e-8)
    # 1 - 2/(1 + N) at the pair with B that is visited most: of the first layer in two episodes, then of the second.
    np.testing.assert_allclose(events.capped, [1 - 2, 1 - 2 / 1.5, 1 - 2 / 1.5, 1 - 2 / 1.75], atol=1e-6)
    np.testing.assert_allclose(events.regret, 0, atol=1e-8)


@pytest.mark.parametrize("options", [SMALL, {"tuning": "theory"}])
def test_the_events_agree_with_the_lemmas_checked_step_by_step(options):
    env = random_world(seed=2)
    agent, run = played(env, **options)
    found = run_events(env, agent, run)
    given = {"eta": agent.eta, "beta_loss": agent.beta_loss, "beta_dynamics": agent.beta_dynamics}
    for context, events in zip(found.contexts, found.each, strict=True):
        checks = lemma_checks(env.mdp(context), (s for _, _, s in agent_steps(agent, [(context, range(60))])), **given)
        for i, name in enumerate(("bonus, inaccurate dynamics", "bonus, under-explored", "bonus, explored")):
            assert events.bonuses[:, i].sum() == pytest.approx(checks[name].left[0], rel=1e-9, abs=1e-9)
        assert [events.term_i.sum(), events.term_iii.sum(), events.term_iv.sum()] == pytest.approx(
            [checks[name].left[0] for name in ("term i", "term iii", "term iv")], rel=1e-9
        )
        np.testing.assert_allclose(events.term_i + events.term_iii + events.term_iv, events.regret, atol=1e-10)
    if options is SMALL:
        assert max((~events.under_explored & ~events.inaccurate[:, None, None]).sum() for events in found.each) > 0
    expected = of.analysis.regret_decomposition(env, agent, run, expected=True)
    columns = found.columns()
    np.testing.assert_allclose(columns["regret"], expected.regret, atol=1e-10)
    cases = sum(columns[f"bonus_case_{i}"] for i in (1, 2, 3))
    np.testing.assert_allclose(cases, [0, *expected.played.bonus[1:]], atol=1e-9)
    assert found.pairs == env.layout.n_states * env.layout.n_actions
    np.testing.assert_allclose(columns["under_explored"][0], 1.0)


def frequencies(env, seeds, episodes=60, **options):
    return event_frequencies([run_events(env, *played(env, episodes, seed, **options)).statements() for seed in range(seeds)])


WORLDS = [
    ("random-finite", {"horizon": 3, "n_states": 3, "n_contexts": 3, "n_losses": 4, "n_dynamics": 4}),
    ("random-linear", {"horizon": 3, "n_states": 2, "n_contexts": 3, "n_losses": 4, "n_dynamics": 4}),
    ("combination-lock", {"horizon": 4, "n_contexts": 2}),
]


@pytest.mark.parametrize("options", [SMALL, {"tuning": "theory"}], ids=["by hand", "theory"])
@pytest.mark.parametrize(("name", "sizes"), WORLDS)
def test_every_statement_is_on_the_papers_side(name, sizes, options):
    found = frequencies(envs.make(name, **sizes), 6, **options)
    assert [f"{key}: {one}" for key, one in found.items() if one.held < one.runs] == []
    assert all(one.consistent for one in found.values())


def test_self_tuning_with_its_own_gaps_in_the_place_of_term_iii():
    env = random_world(seed=3)
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=40)
    found = run_events(env, agent, of.simulate(env, agent, 40))
    gaps = sum(agent.diagnostics(context).hedge_bound for context in range(3)) / 3
    statements = found.statements()
    assert statements["term iii"].right == pytest.approx(gaps, rel=1e-12)
    assert all(statement.holds for statement in statements.values())
    # The probability of statements that rest on optimism is lower by the delta of the plausible sets.
    shares = {"hellinger": 1 - 0.05 / 8, "term iii": 1.0, "term i, bonus": 1 - 0.05 / 2, "azuma": 1 - 0.05 / 4}
    shares |= {"term iv": 1 - 0.05 / 4 - 0.05, "expected": 1 - 3 * 0.05 / 4 - 0.05, "regret": 1 - 2 * 0.05, "trivial": 1.0}
    assert {name: statements[name].probability for name in shares} == pytest.approx(shares, rel=1e-12)
    growing = of.OPO(env.layout, env.loss_class, env.dynamics_class)
    with pytest.raises(of.OpoError, match=r"build it as opo_fast\.OPO\(layout, loss_class, dynamics_class, episodes=T\)"):
        run_events(env, growing, of.simulate(env, growing, 40))


def test_a_part_of_a_run_is_refused():
    env = random_world()
    agent, run = played(env, 10)
    later = of.simulate(env, agent, 5)
    for part in (run, later):
        with pytest.raises(of.OpoError, match="all 15 of the agent are needed"):
            run_events(env, agent, part)


def test_the_run_of_another_agent_or_environment_is_refused():
    env = random_world()
    own = {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1}
    agent, run = played(env, 40, **own)
    other, _ = played(env, 40, **{**own, "eta": 0.6})
    with pytest.raises(of.OpoError, match=r"run: the regret of episode \d+ is .* for this agent: the agent that played the run, new"):
        run_events(env, other, run)
    elsewhere = random_world(seed=9)
    with pytest.raises(of.OpoError, match=r"run: the regret of episode \d+ is .* and the environment of the run are needed"):
        run_events(elsewhere, agent, run)
    fewer = of.FiniteContexts(env.mdps[:2])
    with pytest.raises(of.OpoError, match=r"run: the context of episode \d+, 2, has no positive probability in cmdp"):
        run_events(fewer, agent, run)
    assert run_events(env, agent, run).played == pytest.approx(run.regret.sum(), rel=1e-12)


def test_a_single_action_at_the_constants_of_the_theory():
    layout = of.Layout([1, 2], 1)
    env = of.FiniteContexts([of.LayeredMDP(layout, np.full((3, 1), 0.5), [np.full((1, 1, 2), 0.5)])])
    classes = of.FiniteLossClass([lambda c: np.full((3, 1), 0.5)]), of.FiniteDynamicsClass([lambda c: [np.full((1, 1, 2), 0.5)]])
    agent = of.OPO(layout, *classes, tuning="theory", episodes=20)
    found = run_events(env, agent, of.simulate(env, agent, 20)).statements()
    assert (found["term iii"].left, found["term iii"].right) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert all(statement.holds for statement in found.values())


def test_a_statement_about_no_number_does_not_hold():
    assert not Statement("lemma", math.nan, 1.0, 1.0).holds
    assert not Statement("lemma", 1.0, math.nan, 1.0).holds
    assert Statement("lemma", -math.inf, 0.0, 1.0).holds
    sides = [(1.0, 0.0), (math.nan, 2.0), (1.0, 2.0), (-math.inf, 2.0)]
    for order in (sides, sides[::-1]):
        found = event_frequencies([{"one": Statement("lemma", *both, 1.0)} for both in order])["one"]
        assert (found.held, found.share) == (2, 0.5)
        assert math.isnan(found.tightest)
    assert math.isnan(event_frequencies([{"one": Statement("lemma", 0.0, 0.0, 1.0)}])["one"].share)


def test_event_studies_that_are_refused_before_the_first_run(monkeypatch):
    env = random_world()
    monkeypatch.setattr(sys.modules["opo_fast.analysis.event_study"], "simulate", None)
    for options, text in [
        ({"seeds": [0, 1, 0]}, r"seeds\[2\] is 0, and so is seeds\[0\]"),
        ({"seeds": [0.5]}, r"seeds\[0\] is 0\.5: a whole number"),
        ({"seeds": []}, "seeds: at least one"),
        ({"gamma": 1e9}, r"gamma is 1000000000\.0: at most"),
        ({"gamma_visits": "x"}, "gamma_visits is 'x': a number"),
        ({"delta": 1}, r"delta is 1\.0"),
        ({"beta_loss": 1e-320, "beta_dynamics": 1.0, "eta": 1.0}, "beta_loss is 1e-320: a finite number of at least 1e-280"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            event_study(env, 5, **{"seeds": 2, **options})
    with pytest.raises(of.OpoError, match="env is a int without layout"):
        event_study(3, 5)


def test_delta_reaches_the_agent_of_a_study():
    env = random_world()
    found = event_study(env, 5, 1, delta=0.5)
    own = of.analysis.parameters(env.layout, 5, loss_class_size=env.loss_class.size, dynamics_class_size=env.dynamics_class.size, delta=0.5)
    assert found.gamma_visits == pytest.approx(min(own.beta_loss, own.beta_dynamics) / 2, rel=1e-12)


def test_wrong_kinds_are_refused():
    env = random_world()
    agent, run = played(env, 10, **SMALL)
    other = next(optimistic_steps([random_world(horizon=2).mdp(0)], **SMALL))
    good = {"one": Statement("lemma", 0.0, 1.0, 1.0)}
    for bad, text in [
        (lambda: run_events(env, agent, run, gamma_visits="x"), "gamma_visits is 'x': a number"),
        (lambda: run_events(env, agent, run, gamma="x"), "gamma is 'x': a number"),
        (lambda: stack([*optimistic_steps([env.mdp(0)], **SMALL), other]), r"steps\[1\] has another layout or action mask than steps\[0\]"),
        (lambda: event_frequencies([1]), r"runs\[0\] is a int: what RunEvents.statements gives"),
        (lambda: event_frequencies([good, {}]), r"runs\[1\] has the statements"),
        (lambda: event_frequencies([{"one": 1}]), r"runs\[0\]\['one'\] is a int"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()


# -- one ingredient broken -----------------------------------------------------------------------------------------------


def steps_of(env, episodes=80, **options):
    agent, _ = played(env, episodes, **(options or SMALL))
    return env.mdp(0), next(stacked_steps(agent, [0]))


def test_visits_that_are_forgotten_break_the_factor_of_six():
    truth, steps = steps_of(random_world())
    assert np.nanmax(context_events(truth, steps, **thresholds(3)).factor) <= 6
    assert np.nanmax(context_events(truth, steps._replace(visits=0 * steps.visits), **thresholds(3)).factor) > 6


def test_a_threshold_above_the_papers_breaks_the_factor_of_six():
    # The fit never reaches a state that the truth always reaches; gamma = 10^9 hides event A.
    truth = of.LayeredMDP(LAYOUT, np.full((3, 2), 0.5), [np.array([[[1.0, 0.0], [1.0, 0.0]]])])
    fit = truth.with_losses(truth.losses), of.LayeredMDP(LAYOUT, truth.losses, [np.array([[[0.0, 1.0], [0.0, 1.0]]])])
    steps = stack(optimistic_steps([fit[1]] * 40, **SMALL))
    assert np.isnan(context_events(truth, steps, **thresholds(2)).factor).all()
    assert np.nanmax(context_events(truth, steps, **{**thresholds(2), "gamma": 1e9}).factor) > 6


def test_a_bonus_above_its_cap_breaks_the_claim():
    truth, steps = steps_of(random_world())
    assert np.nanmax(context_events(truth, steps, **thresholds(3)).capped) <= 1e-12
    raised = steps._replace(bonus_loss=steps.bonus_loss + 2)
    assert np.nanmax(context_events(truth, raised, **thresholds(3)).capped) > 0


def test_visits_counted_fourfold_break_the_change_of_measure():
    truth, steps = steps_of(random_world())
    fourfold = context_events(truth, steps._replace(visits=4 * steps.visits + 1), **thresholds(3))
    assert np.nanmax(fourfold.measure) > 0
    assert np.nanmax(context_events(truth, steps, **thresholds(3)).measure) <= 1e-9


class Stuck:
    """A class whose oracle always gives the same candidate."""

    def __init__(self, inner, candidate):
        self.inner, self.candidate, self.size = inner, candidate, inner.size

    def oracle(self, layout, action_mask=None):
        oracle = self.inner.oracle(layout, action_mask)
        oracle.fit = lambda: self.candidate
        return oracle


def test_an_oracle_of_the_dynamics_that_does_not_learn_breaks_its_guarantee():
    env = envs.make("combination-lock", horizon=4, n_contexts=2)
    held = []
    for dynamics in (env.dynamics_class, Stuck(env.dynamics_class, 0)):
        agent = of.OPO(env.layout, env.loss_class, dynamics, **SMALL)
        held.append(run_events(env, agent, of.simulate(env, agent, 300)).statements()["hellinger"].holds)
    assert held == [True, False]


def test_an_oracle_of_the_losses_that_does_not_learn_breaks_its_guarantee():
    # One state, one action, loss 0; the candidate says 1: the sum of squares is t - 1, and 68 log(2 T^3 2 8 / .05) is 2,100 at T = 3,000.
    layout = of.Layout([1], 1)
    env = of.FiniteContexts([of.LayeredMDP(layout, [[0.0]], [])])
    classes = of.FiniteLossClass([lambda c: np.zeros((1, 1)), lambda c: np.ones((1, 1))]), of.FiniteDynamicsClass([lambda c: []])
    held = []
    for losses in (classes[0], Stuck(classes[0], 1)):
        agent = of.OPO(layout, losses, classes[1], **SMALL)
        statement = run_events(env, agent, of.simulate(env, agent, 3000)).statements()["squared"]
        assert statement.right == pytest.approx(68 * math.log(2 * 3000**3 * 2 * 8 / 0.05), rel=1e-12)
        held.append(statement.holds)
    assert held == [True, False]
    assert statement.left == pytest.approx(2999)


def test_contexts_that_are_not_drawn_from_their_distribution_break_azuma():
    # The uniform policy loses 1/2 in one context and nothing in the other; only the first one is played.
    layout = of.Layout([1], 2)
    models = [of.LayeredMDP(layout, losses, []) for losses in ([[0.0, 1.0]], [[0.0, 0.0]])]
    classes = of.FiniteLossClass([lambda c: models[c].losses]), of.FiniteDynamicsClass([lambda c: []])
    held = []
    for probabilities in ([0.5, 0.5], [1.0, 0.0]):
        agent = of.OPO(layout, *classes, tuning="theory", episodes=1000)
        with pytest.warns(UserWarning, match="the policy is uniform"):
            run = of.simulate(of.FiniteContexts(models, probabilities), agent, 1000)
        statement = run_events(of.FiniteContexts(models), agent, run).statements()["azuma"]
        held.append(statement.holds)
    assert statement.left == pytest.approx(250)
    assert statement.right == pytest.approx(2 * math.sqrt(2000 * math.log(160)), rel=1e-9)
    assert held == [True, False]


def test_frequencies_with_their_intervals():
    def runs(held, probability):
        return [{"one": Statement("lemma", 0.0 if i < held else 2.0, 1.0, probability)} for i in range(200)]

    # Clopper-Pearson at 190 of 200: [.9099, .9757]; at 200 of 200: [.025^(1/200), 1].
    found = event_frequencies(runs(190, 0.95))["one"]
    assert (found.low, found.high) == pytest.approx((0.9099, 0.9757), abs=1e-3)
    assert (found.held, found.runs, found.consistent, found.tightest, found.share) == (190, 200, True, 1.0, 2.0)
    assert event_frequencies(runs(200, 0.95))["one"].low == pytest.approx(0.025 ** (1 / 200), rel=1e-9)
    assert not event_frequencies(runs(180, 0.95))["one"].consistent
    assert not event_frequencies(runs(199, 1.0))["one"].consistent
    with pytest.raises(of.OpoError, match="runs: at least one is needed"):
        event_frequencies([])
