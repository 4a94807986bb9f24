"""Self-tuning chains: kernels and engine against the plain NumPy code, the same bits in every form, and the bounds of AdaHedge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import linprog
from strategies import random_mask, random_model

import opo_fast as of
from opo_fast import envs
from opo_fast.algorithm import self_tuning
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import Bonus
from opo_fast.algorithm.self_tuning import (
    START_GAP,
    AdaHedge,
    Plausible,
    SelfTuningRule,
    least_expectation,
    optimistic_values,
    self_tuning_chain,
    self_tuning_rule,
)
from opo_fast.model.transitions import Transitions
from opo_fast.oracles import DisjointLinearLossClass, TabularDynamicsClass
from opo_fast.runs.simulation import Simulation

SMALL, WIDE, LARGE = [1, 3, 4, 2], [1, 5, 3], [1, 30, 20, 40]
LAYOUTS = {"packed": (SMALL, 3), "packed, vectors": (WIDE, 4), "single": (LARGE, 5), "single, vectors": (LARGE, 4)}


@dataclass(frozen=True)
class BonusRule(SelfTuningRule):
    """A rule whose bonus has an effect from step `switch` on."""

    switch: int = 0

    def bonus(self, step):
        small = step >= self.switch
        return Bonus(
            0.4 if small else 1e9,
            np.full(len(self.layer_sizes), 0.02 if small else 1e9),
            min(1 << step.bit_length(), self.switch if not small else 1 << 60),
            small,
        )


class Source:
    """Models and plausible sets at three contexts: 6 losses and 5 dynamics, some of which are excluded over time."""

    def __init__(self, sizes, n_actions, form="dense", *, mask=None, seed=0, radius=False):
        rng = np.random.default_rng(seed)
        self.layout = of.Layout(sizes, n_actions)
        self.mask = mask
        self.density = 0.4 if form == "csr" else 1.0
        self.models = {
            context: [random_model(rng, sizes, n_actions, form, mask=mask, density=self.density) for _ in range(5)] for context in range(3)
        }
        self.f = {context: 0.3 * rng.random((6, *self.layout.shape)) for context in range(3)}
        self.listed = not radius
        self.radii = {context: rng.choice([0.0, 0.05, 0.4, 1.0], self.layout.shape) for context in range(3)}

    def rows(self, array):
        rows = array.reshape(-1).copy() if self.mask is None else array[self.mask]
        rows.flags.writeable = False
        return rows

    def losses(self, fit, context):
        return self.rows(self.f[context][fit])

    def transitions(self, fit, context) -> Transitions:
        return self.models[context][fit].transitions

    def members(self, version, size):
        return tuple(range(version, size))

    def lower(self, version, context):
        return self.rows(self.f[context][list(self.members(version, 6))].min(axis=0))

    def candidates(self, version):
        return self.members(version, 5) if self.listed else None

    def radius(self, version, context):
        return self.rows(self.radii[context] / (1 + version))

    def plausible(self, fits, context):
        model = self.models[context][fits.dynamics].with_losses(self.f[context][fits.loss])
        if fits.loss_version is None:
            return Plausible(model)
        lower = self.f[context][list(self.members(fits.loss_version, 6))].min(axis=0)
        if not self.listed:
            return Plausible(model, lower, self.radii[context] / (1 + fits.dynamics_version))
        return Plausible(model, lower, [self.models[context][i].transitions for i in self.members(fits.dynamics_version, 5)])


def history_of(n, seed=0, plausible=True):
    """Fits change often at first; sets shrink."""
    rng = np.random.default_rng(seed)
    history, steps = History(), []
    loss_version = dynamics_version = 0
    for k in range(n):
        if rng.random() < 3 / (k + 3):
            loss_version, dynamics_version = min(5, loss_version + int(rng.integers(2))), min(3, dynamics_version + int(rng.integers(2)))
        versions = (loss_version, dynamics_version) if plausible else (None, None)
        fits = Fits(int(rng.integers(loss_version, 6)), int(rng.integers(dynamics_version, 5)), *versions)
        if k and rng.random() > 0.2:
            previous = steps[-1]
            fits = previous._replace(loss_version=fits.loss_version, dynamics_version=fits.dynamics_version)
            if plausible and (previous.loss < loss_version or previous.dynamics < dynamics_version):
                fits = fits._replace(loss=max(previous.loss, loss_version), dynamics=max(previous.dynamics, dynamics_version))
        history.append(fits)
        steps.append(fits)
    return history, steps


def rule_of(source, switch=None, plausible=True):
    rule = self_tuning_rule(source.layout, loss_class_size=6, dynamics_class_size=5, delta=0.05, episodes=None, plausible=plausible)
    return rule if switch is None else BonusRule(**vars(rule), switch=switch)


def engine_of(source, rule, memory=1 << 29):
    return ChainEngine(source.layout, source.mask, rule, source, memory)


def engine_policy(engine, history, n, context=0):
    chain, lane = engine.chain(context, history, n)
    return chain.policy(lane).copy(), chain.hedge.gap[lane : chain.hedge.size : chain.lanes].copy()


CASES = [
    (shape, form, switch)
    for shape in LAYOUTS
    for form in ("dense", "csr", "masked", "radius", "radius csr", "no sets")
    for switch in (None, 0, 40)
    if switch is None or form in ("dense", "masked") or (form == "no sets" and switch == 0)
]


def source_of(shape, form, seed=0):
    sizes, n_actions = LAYOUTS[shape]
    mask = random_mask(np.random.default_rng(3), (sum(sizes), n_actions)) if form == "masked" else None
    return Source(sizes, n_actions, "csr" if form.endswith("csr") else "dense", mask=mask, seed=seed, radius=form.startswith("radius"))


@pytest.mark.parametrize(("shape", "form", "switch"), CASES)
def test_the_engine_is_the_plain_form_after_300_steps(shape, form, switch, monkeypatch):
    n, known = 300, {}
    plain = self_tuning.occupancy

    def once(model, policy):
        # The plain form looks at every past policy in every step; models and policies are the same objects.
        key = id(model.transitions), id(policy)
        if key not in known:
            known[key] = plain(model, policy), model, policy
        return known[key][0]

    monkeypatch.setattr(self_tuning, "occupancy", once)
    source = source_of(shape, form)
    rule = rule_of(source, switch, plausible=form != "no sets")
    history, steps = history_of(n, plausible=form != "no sets")
    hedge = self_tuning_chain([source.plausible(fits, 0) for fits in steps], rule)
    policy, gap = engine_policy(engine_of(source, rule), history, n)
    np.testing.assert_allclose(policy, source.rows(hedge.policy), rtol=0, atol=1e-10)
    np.testing.assert_allclose(gap, hedge.gap, rtol=1e-10)


@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize("form", ["dense", "csr", "radius"])
def test_one_step_to_the_last_digits(shape, form):
    source = source_of(shape, form, seed=4)
    rule = rule_of(source)
    history, steps = history_of(1)
    hedge = self_tuning_chain([source.plausible(fits, 1) for fits in steps], rule)
    policy, gap = engine_policy(engine_of(source, rule), history, 1, context=1)
    np.testing.assert_allclose(policy, source.rows(hedge.policy), rtol=0, atol=1e-12)
    np.testing.assert_allclose(gap, hedge.gap, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize("switch", [None, 40])
def test_same_bits_whatever_the_threads_budgets_packs_and_stops(shape, switch):
    source = source_of(shape, "dense")
    rule, (history, _) = rule_of(source, switch), history_of(90)
    engine = engine_of(source, rule)
    policy, gap = engine_policy(engine, history, 90)

    def same(found):
        np.testing.assert_array_equal(found[0], policy)
        np.testing.assert_array_equal(found[1], gap)

    before = of.get_threads()
    try:
        for threads in (1, 2, 3):
            of.set_threads(threads)
            same(engine_policy(engine_of(source, rule), history, 90))
            ahead = engine_of(source, rule)
            ahead.prefetch([2, 0, 1], history, 50)
            same(engine_policy(ahead, history, 90))
    finally:
        of.set_threads(before)
    same(engine_policy(engine_of(source, rule, memory=0), history, 90))
    stepwise = engine_of(source, rule)
    for n in range(1, 91):
        stepwise.chain(0, history, n)
    same(engine_policy(stepwise, history, 90))
    half = engine_of(source, rule)
    half.chain(0, history, 45)
    resumed = engine_of(source, rule)
    resumed.restore(half.state(), history, 45)
    same(engine_policy(resumed, history, 90))


@pytest.mark.parametrize("form", ["dense", "csr", "masked"])
@pytest.mark.parametrize("single", [[1, 3], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_candidates_in_single_and_double_precision_are_read_as_what_they_are(form, single):
    """For numbers that float32 represents exactly, the dtype of a candidate changes no bit."""
    mixed, double = source_of("single", form), source_of("single", form)
    for context, models in mixed.models.items():
        for i, mdp in enumerate(models):
            rounded = Transitions(mixed.layout, mdp.transitions.arrays(), action_mask=mixed.mask, dtype=np.float32)
            exact = rounded.as_float64()
            assert exact.dtype == np.float64
            assert exact.data.tobytes() == rounded.data.astype(np.float64).tobytes()
            for source, transitions in ((mixed, rounded if i in single else exact), (double, exact)):
                losses = np.zeros(source.layout.shape)
                source.models[context][i] = of.LayeredMDP(source.layout, losses, transitions, source.mask)
    history, _ = history_of(60)
    engines = engine_of(mixed, rule_of(mixed)), engine_of(double, rule_of(double))
    for n in (1, 20, 60):
        for one, other in zip(*(engine_policy(engine, history, n) for engine in engines), strict=True):
            np.testing.assert_array_equal(one, other)
    if len(single) == 5:
        chain, _ = engines[0].chain(0, history, 60)
        assert all(found.copied == 0 for found in chain.sets.candidates.values())


def test_visits_are_not_computed_where_the_bonus_cannot_matter(monkeypatch):
    source = source_of("packed", "dense")
    history, _ = history_of(90)
    rule = rule_of(source)
    assert not rule.bonus(89).needed
    chain, lane = engine_of(source, rule).chain(0, history, 90)
    assert chain.last is None
    always = BonusRule(**vars(rule))
    monkeypatch.setattr(BonusRule, "bonus", lambda self, step: SelfTuningRule.bonus(self, step)._replace(needed=True))
    with_visits, lane_too = engine_of(source, always).chain(0, history, 90)
    assert with_visits.last is not None
    np.testing.assert_array_equal(chain.policy(lane), with_visits.policy(lane_too))


# -- the plain form against what is known ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_least_expectation_within_a_radius_is_the_linear_programme(form):
    source = source_of("packed", f"radius {form}", seed=2)
    model = source.models[0][0]
    rng = np.random.default_rng(1)
    for h in range(3):
        v = rng.random(source.layout.layer_sizes[h + 1])
        found = least_expectation(source.plausible(Fits(0, 0, 0, 0), 0), h, v)
        array = model.transitions.arrays()[h]
        rows = np.asarray(array.todense() if array.ndim == 2 else array.reshape(-1, v.size))
        for row, radius, least in zip(rows, source.radii[0][source.layout.layer(h)].reshape(-1), found.reshape(-1), strict=True):
            # Variables: the row p, and |p - row|, whose sum is at most twice the total variation.
            eye = np.eye(v.size)
            best = linprog(
                np.concatenate([v, 0 * v]),
                A_ub=np.block([[eye, -eye], [-eye, -eye], [np.zeros(v.size), np.ones(v.size)]]),
                b_ub=np.concatenate([row, -row, [2 * radius]]),
                A_eq=np.concatenate([np.ones(v.size), 0 * v])[None],
                b_eq=[1.0],
            )
            assert least == pytest.approx(best.fun, abs=1e-9)


def test_adahedge_regret_is_at_most_twice_its_gaps():
    rng = np.random.default_rng(0)
    hedge = AdaHedge(np.full((40, 4), 0.25))
    lost, sums = np.zeros(40), np.zeros((40, 4))
    for _ in range(500):
        q = rng.random((40, 4)) ** rng.integers(1, 5) * rng.choice([0.0, 1.0, 20.0], (40, 1))
        lost += (hedge.policy * q).sum(axis=1)
        sums += q
        hedge.update(q)
        assert (lost - sums.min(axis=1) <= 2 * hedge.gap + 1e-9).all()


def test_adahedge_by_hand():
    hedge = AdaHedge(np.full((1, 2), 0.5))
    hedge.update(np.array([[0.0, 1.0]]))
    eta = np.log(2) / START_GAP
    gap = START_GAP + 0.5 + np.log((1 + np.exp(-eta)) / 2) / eta
    assert hedge.gap[0] == pytest.approx(gap, rel=1e-12)
    wrong = np.exp(-np.log(2) / gap)
    np.testing.assert_allclose(hedge.policy, [[1 / (1 + wrong), wrong / (1 + wrong)]], rtol=1e-12)


def test_regret_of_the_chain_is_at_most_twice_its_gaps_in_every_state():
    source = source_of("packed", "dense")
    rule, (_, steps) = rule_of(source), history_of(200)
    hedge = AdaHedge(source.models[0][0].uniform_policy())
    lost, sums = 0.0, 0.0
    for fits in steps:
        q = optimistic_values(source.plausible(fits, 0), hedge.policy, np.zeros(source.layout.shape), rule.bonus(0)).q
        lost, sums = lost + (hedge.policy * q).sum(axis=1), sums + q
        hedge.update(q)
    assert (lost - sums.min(axis=1) <= 2 * hedge.gap).all()


def test_betas_follow_the_doubled_number_of_steps():
    layout = of.Layout([1, 2, 2], 2)
    sizes = {"loss_class_size": 4.0, "dynamics_class_size": 3.0}
    rule = self_tuning_rule(layout, **sizes, delta=0.1, episodes=None, plausible=True)
    for step, episodes in [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8), (1023, 1024), (1024, 2048)]:
        theory = of.analysis.parameters(layout, episodes, **sizes, delta=0.1)
        assert (rule.bonus(step).beta_loss, rule.bonus(step).beta_dynamics[0]) == theory[1:]
        # The bonus stays the same until the number of steps doubles, or until it begins to have an effect.
        assert rule.bonus(step).end >= episodes
        assert rule.bonus(rule.bonus(step).end).needed
    first = next(2**k for k in range(60) if rule.bonus(2**k).needed)
    assert rule.bonus(0).end == first
    assert rule.bonus(first).end == 2 * first
    fixed = self_tuning_rule(layout, **sizes, delta=0.1, episodes=500, plausible=True)
    assert fixed.bonus(3).beta_loss == of.analysis.parameters(layout, 500, **sizes, delta=0.1).beta_loss
    # The bonus only has an effect after a very large number of steps.
    assert rule.bonus(100).needed is False
    assert rule.bonus(10**9).needed is True


# -- agents ------------------------------------------------------------------------------------------------------------


def parametric(env):
    """Least squares per pair, and counts at each context."""
    return DisjointLinearLossClass(lambda c: np.array([1.0, c]), 2), TabularDynamicsClass(per_context=True)


@pytest.mark.parametrize("classes", ["finite", "parametric"])
@pytest.mark.parametrize("n_states", [3, 40])
def test_runs_have_the_same_bits_whatever_the_threads_budgets_prefetching_and_pauses(classes, n_states, set_threads, tmp_path):
    env = envs.random_finite(horizon=4, n_states=n_states, n_actions=3, n_contexts=3, n_losses=6, n_dynamics=5, seed=1)
    given = (env.loss_class, env.dynamics_class) if classes == "finite" else parametric(env)
    columns = ("value", "observed_loss", "plausible_losses", "plausible_dynamics", "hedge_bound", "loss_fit", "dynamics_fit")

    class Eager(of.OPO):
        lookahead = 0

    def digest(run):
        return b"".join(getattr(run, name).tobytes() for name in columns)

    found = set()
    for threads in (1, 2):
        set_threads(threads)
        for kind, options in ((of.OPO, {}), (Eager, {}), (of.OPO, {"memory": 0})):
            found.add(digest(of.simulate(env, kind(env.layout, *given, **options), 40, seed=7, progress=False)))
    first = of.OPO(env.layout, *given)
    paused = Simulation(env, first, 40, 7)
    for _ in range(25):
        paused.step()
    first.save(tmp_path / "agent.npz")
    going_on = Simulation(env, of.OPO(env.layout, *given).load(tmp_path / "agent.npz"), 40, 7)
    going_on.restore(paused.state())
    for _ in range(15):
        going_on.step()
    found.add(digest(going_on.result()))
    assert len(found) == 1
