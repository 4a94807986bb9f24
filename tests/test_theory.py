"""Parameters and bound against numbers worked out by hand and against the paper's formulas in high precision; the regret's terms
by hand and by the identities of the proof; the lemmas on random instances, and what breaks them."""

from __future__ import annotations

import copy
import functools
import math

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import layer_sizes, random_mask, random_model, random_transitions, seeded

import opo_fast as of
from opo_fast.analysis import history_at, optimistic_steps, oracle_guarantees, regret_decomposition
from opo_fast.analysis.lemmas import LemmaCheck, lemma_checks, oracle_errors
from opo_fast.analysis.theory import PRACTICAL, parameters, regret_bound
from opo_fast.runs.simulation import Simulation


def layered(horizon: int, n_states: int, n_actions: int) -> of.Layout:
    """Any layout of these sizes; the formulas look at nothing else."""
    return of.Layout([1] if horizon == 1 else [1, n_states - horizon + 1, *[1] * (horizon - 2)], n_actions)


def test_parameters_by_hand():
    # H = T = |S| = 1, |A| = 2, |F||P| chosen so that L = log(128 |F||P| / delta^2) = 10 at delta = 1/2.
    layout, size = of.Layout([1], 2), math.exp(10) / 512
    p = parameters(layout, 1, loss_class_size=size, dynamics_class_size=1, delta=0.5)
    log2 = 0.6931471805599453
    assert p.eta == pytest.approx(math.sqrt(2 * log2), rel=1e-14)
    # |S||A| log(T+1) = 2 log 2; 5184 = 72^2.
    assert p.beta_loss == pytest.approx(72 * math.sqrt(10 / (14 * log2)), rel=1e-13)
    assert p.beta_dynamics == pytest.approx(72 * math.sqrt(10 / (28 * log2)), rel=1e-13)


def test_eta_by_hand():
    # sqrt(2 log 4 / (2^2 * 8)) = sqrt(log(2) / 8)
    p = parameters(layered(2, 5, 4), 8, loss_class_size=3, dynamics_class_size=3)
    assert p.eta == pytest.approx(0.29435250562886867, rel=1e-14)


def test_the_published_size_of_the_betas():
    # H = 5, |S| = 20, |A| = 4, T = 1000, |F||P| = 100, delta = .05: about 6.8e4.
    p = parameters(layered(5, 20, 4), 1000, loss_class_size=10, dynamics_class_size=10, delta=0.05)
    assert 6.75e4 < p.beta_loss < 6.85e4
    # beta_loss / beta_dynamics = sqrt(2 H)
    assert p.beta_loss / p.beta_dynamics == pytest.approx(math.sqrt(10), rel=1e-13)


sizes = st.tuples(
    st.integers(1, 12), st.integers(0, 500), st.integers(1, 30), st.integers(1, 10**9), st.floats(1, 1e12), st.floats(1, 1e12),
    st.floats(1e-9, 0.999),
)  # fmt: skip


def exact(h, s, a, t, f, p, delta):
    """eta, beta_loss, beta_dynamics, and the two sides of the last step of the theorem's proof, to 40 digits."""
    mp.mp.dps = 40
    h, s, a, t, f, p, delta = (mp.mpf(x) for x in (h, s, a, t, f, p, delta))
    log_term, spread = mp.log(128 * t**4 * h * f * p / delta**2), s * a * mp.log(t + 1)
    eta = mp.sqrt(2 * mp.log(a) / (h**2 * t))
    beta_loss = mp.sqrt(5184 * t * h**7 * log_term / (7 * spread))
    beta_dynamics = mp.sqrt(5184 * t * h**6 * log_term / (14 * spread))
    azuma = 2 * h * mp.sqrt(2 * t * mp.log(8 / delta))
    tight = (
        h + h * (h + 1) + 224 * t * h**3 * log_term / beta_loss + 50 * t * h**4 * mp.log(8 * t * h * p / delta) / beta_dynamics
        + 5184 * t * h**7 * mp.log(4 * t * h * p / delta) / min(beta_loss, beta_dynamics)
        + 7 * (beta_loss + 2 * h * beta_dynamics) * spread + mp.sqrt(2 * h**4 * t * mp.log(a)) + azuma
    )  # fmt: skip
    # With the betas put in, the balanced terms are 2 * 72 sqrt(7 h^7 ..) and 3 * 72 sqrt(14 h^8 ..).
    root = 72 * mp.sqrt(t * log_term * spread)
    loose = root * (2 * mp.sqrt(7 * h**7) + 3 * h**4 * mp.sqrt(14)) + mp.sqrt(2 * h**4 * t * mp.log(a)) + 2 * (h + 1) ** 2 + azuma
    return eta, beta_loss, beta_dynamics, tight, loose


@given(sizes)
def test_formulas_in_high_precision(drawn):
    h, more, a, t, f, p, delta = drawn
    s = 1 if h == 1 else h + more
    layout = layered(h, s, a)
    assert layout.n_states == s
    eta, beta_loss, beta_dynamics, tight, loose = exact(h, s, a, t, f, p, delta)
    got = parameters(layout, t, loss_class_size=f, dynamics_class_size=p, delta=delta)
    assert got.eta == pytest.approx(float(eta), rel=1e-13)
    assert got.beta_loss == pytest.approx(float(beta_loss), rel=1e-13)
    assert got.beta_dynamics == pytest.approx(float(beta_dynamics), rel=1e-13)
    bound = regret_bound(layout, t, loss_class_size=f, dynamics_class_size=p, delta=delta)
    assert bound == pytest.approx(float(loose), rel=1e-12)
    assert bound >= float(tight)


@given(sizes, st.floats(0, 10), st.floats(0, 10))
def test_scales_are_factors(drawn, bonus_scale, eta_scale):
    h, more, a, t, f, p, delta = drawn
    layout = layered(h, 1 if h == 1 else h + more, a)
    given_ = {"loss_class_size": f, "dynamics_class_size": p, "delta": delta}
    plain, scaled = parameters(layout, t, **given_), parameters(layout, t, **given_, bonus_scale=bonus_scale, eta_scale=eta_scale)
    assert scaled.eta == pytest.approx(eta_scale * plain.eta, rel=1e-14, abs=1e-300)
    assert scaled.beta_loss == pytest.approx(bonus_scale * plain.beta_loss, rel=1e-14, abs=1e-300)
    assert scaled.beta_dynamics == pytest.approx(bonus_scale * plain.beta_dynamics, rel=1e-14, abs=1e-300)


def test_the_bound_is_vacuous_at_any_practical_number_of_episodes():
    layout, given_ = layered(5, 20, 4), {"loss_class_size": 10, "dynamics_class_size": 10}
    for episodes in (100, 10_000, 10_000_000):
        assert regret_bound(layout, episodes, **given_) > 5 * episodes
    assert regret_bound(layout, 10**17, **given_) < 5 * 10**17


def test_practical_setting():
    assert PRACTICAL == (2e-6, 50.0)


GOOD = {"loss_class_size": 4, "dynamics_class_size": 4, "delta": 0.1}


@pytest.mark.parametrize("function", [parameters, regret_bound])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"episodes": 0}, "episodes is 0"),
        ({"episodes": -1}, "episodes is -1"),
        ({"episodes": 3.0}, r"episodes is 3\.0: a whole number"),
        ({"delta": 0}, r"delta is 0\.0: a finite number strictly between 0 and 1"),
        ({"delta": 1}, r"delta is 1\.0"),
        ({"delta": "0.1"}, "delta is '0.1': a number"),
        ({"loss_class_size": 0}, r"loss_class_size is 0\.0: a finite number of at least 1"),
        ({"dynamics_class_size": 0.5}, r"dynamics_class_size is 0\.5"),
        ({"dynamics_class_size": float("inf")}, "dynamics_class_size is inf"),
    ],
)
def test_bad_inputs(function, change, text):
    options = {"episodes": 10, **GOOD, **change}
    with pytest.raises(of.OpoError, match=text):
        function(of.Layout([1, 2], 2), options.pop("episodes"), **options)


@pytest.mark.parametrize("name", ["bonus_scale", "eta_scale"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), None])
def test_bad_scales(name, value):
    with pytest.raises(of.OpoError, match=f"{name} is"):
        parameters(of.Layout([1, 2], 2), 10, **GOOD, **{name: value})


def test_class_sizes_whose_product_overflows():
    layout = of.Layout([1, 4, 6, 9], n_actions=4)
    one = parameters(layout, 1000, loss_class_size=1e200, dynamics_class_size=1e100)
    other = parameters(layout, 1000, loss_class_size=1e300, dynamics_class_size=1.0)
    assert one == pytest.approx(other, rel=1e-14)
    assert math.isfinite(regret_bound(layout, 1000, loss_class_size=1e200, dynamics_class_size=1e200))


# -- the regret's terms --------------------------------------------------------------------------------------------------

HAND = of.Layout([1, 2], 2)
TRUE_LOSSES, FITTED_LOSSES = [[0.6, 0.4], [0.8, 0.4], [0.1, 0.6]], [[0.5, 0.4], [0.9, 0.3], [0.2, 0.5]]
TRUE_BLOCK, FITTED_BLOCK = np.array([[[0.25, 0.75], [1.0, 0.0]]]), np.array([[[0.5, 0.5], [1.0, 0.0]]])
HAND_TRUTH, HAND_FIT = of.LayeredMDP(HAND, TRUE_LOSSES, [TRUE_BLOCK]), of.LayeredMDP(HAND, FITTED_LOSSES, [FITTED_BLOCK])
# The first bonus is 0.1 + 2 H 0.05 = 0.3 everywhere; with this eta a gap of 0.6 in Q is a factor of 27, one of 0.2 a factor of 3.
HAND_GIVEN = {"eta": math.log(27) / 0.6, "beta_loss": 0.2, "beta_dynamics": 0.1}


def hand_run(episodes):
    env = of.FiniteContexts([HAND_TRUTH])
    classes = of.FiniteLossClass([lambda c: np.array(FITTED_LOSSES)]), of.FiniteDynamicsClass([lambda c: [FITTED_BLOCK]])
    agent = of.OPO(HAND, *classes, **HAND_GIVEN)
    return env, agent, of.simulate(env, agent, episodes)


def test_the_first_two_steps_by_hand():
    first, second = optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN)
    np.testing.assert_allclose(first.bonus, 0.3, rtol=1e-14)
    np.testing.assert_allclose(first.q, [[0.4, 0.4], [0.6, 0.0], [0.0, 0.2]], atol=1e-15)
    np.testing.assert_allclose(first.v, [0.4, 0.3, 0.1], rtol=1e-14)
    np.testing.assert_allclose(first.truncation, [[0, 0], [0, 0], [0.1, 0]], atol=1e-15)
    np.testing.assert_allclose(second.policy, [[1 / 2, 1 / 2], [1 / 28, 27 / 28], [3 / 4, 1 / 4]], rtol=1e-13)
    np.testing.assert_allclose(second.visits, [[0.5, 0.5], [0.375, 0.375], [0.125, 0.125]], rtol=1e-14)
    np.testing.assert_allclose(second.bonus, [[0.2, 0.2], [12 / 55, 12 / 55], [4 / 15, 4 / 15]], rtol=1e-14)
    np.testing.assert_allclose(second.q[1:], [[15 / 22, 9 / 110], [0, 7 / 30]], rtol=1e-13)
    np.testing.assert_allclose(second.v[1:], [159 / 1540, 7 / 120], rtol=1e-13)
    np.testing.assert_allclose(second.ahead[0], [159 / 3080 + 7 / 240, 159 / 1540], rtol=1e-13)
    np.testing.assert_allclose(second.truncation, [[0, 0], [0, 0], [1 / 15, 0]], atol=1e-15)


def test_the_terms_of_two_episodes_by_hand():
    terms = regret_decomposition(*hand_run(2))
    # Episode 1: V = 1.00625 of the uniform policy, 0.775 of the best one (first action, then second and first), V^1 = 0.4.
    first = {"regret": 0.23125, "term_i": 0.60625, "term_ii": -0.375, "term_iii": 0.15, "term_iv": -0.525}
    assert {name: getattr(terms, name)[0] for name in first} == pytest.approx(first, rel=1e-13)
    played, optimal = ([float(part[0]) for part in errors] for errors in (terms.played, terms.optimal))
    assert played == pytest.approx([0.05, -0.025, 0.6, 0.01875], rel=1e-12)
    # Along the best policy: 0.1 + 0.25 (0.1) + 0.75 (-0.1), (0.15 - 0.2), twice 0.3, 0.75 (0.1).
    assert optimal == pytest.approx([0.05, -0.05, 0.6, 0.075], rel=1e-12)
    v1, v2 = 159 / 1540, 7 / 120
    q0 = np.array([0.3 + v1 / 2 + v2 / 2, 0.2 + v1])
    value = (0.6 + 0.25 * 29 / 70 + 0.75 * 0.225 + 0.4 + 29 / 70) / 2
    second = {
        "regret": value - 0.775,
        "term_i": value - q0.mean(),
        "term_ii": q0.mean() - 0.775,
        "term_iii": (q0[1] - q0[0]) / 2 + 0.25 * (v1 - 9 / 110) + 0.75 * v2,
        "term_iv": q0[0] - 0.6 - 0.25 * v1 - 0.75 * v2 + 0.25 * (9 / 110 - 0.4) + 0.75 * (0 - 0.1),
    }
    assert {name: getattr(terms, name)[1] for name in second} == pytest.approx(second, rel=1e-12)


class World:
    """Contexts with their own losses and dynamics; three candidates in each class, the truth in the middle."""

    def __init__(self, seed: int, *, masked: bool = False, sparse: bool = False, contexts: int = 2):
        rng, sizes, n_actions = np.random.default_rng(seed), (1, 3, 4, 2), 3
        self.layout = of.Layout(sizes, n_actions)
        self.mask = random_mask(rng, self.layout.shape) if masked else None

        def near(base):
            losses = 0.9 * base.losses + 0.1 * rng.random(self.layout.shape)
            blocks = [0.9 * x + 0.1 * y for x, y in zip(base.transitions.arrays(), random_transitions(rng, sizes, n_actions), strict=True)]
            form = [sp.csr_array(block.reshape(-1, block.shape[-1])) for block in blocks] if sparse else blocks
            return of.LayeredMDP(self.layout, losses, form, self.mask)

        bases = [random_model(rng, sizes, n_actions) for _ in range(contexts)]
        models = [[near(base) for base in bases] for _ in range(3)]
        self.env = of.FiniteContexts(models[1], rng.dirichlet(np.full(contexts, 3.0)))
        self.losses = of.FiniteLossClass([lambda c, i=i: models[i][c].losses for i in range(3)])
        self.dynamics = of.FiniteDynamicsClass([lambda c, i=i: models[i][c].transitions for i in range(3)])

    def agent(self, **options):
        given = {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1, **options}
        return of.OPO(self.layout, self.losses, self.dynamics, action_mask=self.mask, **given)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_terms_sum_to_the_regret_of_every_episode(masked, sparse):
    world = World(3, masked=masked, sparse=sparse)
    agent = world.agent()
    run = of.simulate(world.env, agent, 60, seed=1)
    assert len(run.contexts) == 2
    assert len(set(zip(run.loss_fit, run.dynamics_fit, strict=True))) > 1
    terms = regret_decomposition(world.env, agent, run)
    np.testing.assert_allclose(terms.regret, run.regret, atol=1e-10)
    np.testing.assert_allclose(terms.term_i + terms.term_iii + terms.term_iv, run.regret, atol=1e-10)
    np.testing.assert_allclose(terms.term_iii + terms.term_iv, terms.term_ii, atol=1e-10)
    np.testing.assert_allclose(terms.played.total, terms.term_i, atol=1e-10)
    np.testing.assert_allclose(terms.optimal.total, -terms.term_iv, atol=1e-10)
    assert min(np.abs(column).max() for column in (*terms[:5], *terms.played, *terms.optimal)) > 1e-3


def test_the_optimistic_value_is_that_of_the_agent():
    # V^t = V^{pi^t} - term (i) is what the agent's own chain holds once episode t has been observed.
    world = World(4)
    agent, values, optimistic, contexts = world.agent(), [], [], []
    run = Simulation(world.env, agent, 40)
    for t in range(40):
        contexts.append(run.context(t))
        run.step()
        optimistic.append(agent.value(contexts[-1]))
        values.append(run.columns["value"][t])
    terms = regret_decomposition(world.env, agent, contexts)
    np.testing.assert_allclose(np.array(values) - terms.term_i, optimistic, atol=1e-12)
    for whole, part in zip(terms[:5], regret_decomposition(world.env, agent, contexts[:25])[:5], strict=True):
        np.testing.assert_array_equal(whole[:25], part)


def test_parts_of_a_bandit():
    # One state: under pi* term (iv) is f^t(a*) - l(a*) - b, or -l(a*) where max{0, .} cuts.
    layout, true, fitted = of.Layout([1], 2), np.array([[0.3, 0.8]]), np.array([[0.5, 0.6]])
    env = of.FiniteContexts([of.LayeredMDP(layout, true, [])])
    classes = of.FiniteLossClass([lambda c: fitted]), of.FiniteDynamicsClass([lambda c: []])
    agent = of.OPO(layout, *classes, eta=0.5, beta_loss=0.4, beta_dynamics=0.1)
    terms = regret_decomposition(env, agent, of.simulate(env, agent, 30))
    p = 1 - terms.regret / 0.5  # of the better action
    np.testing.assert_allclose(terms.played.loss, -0.2 * p + 0.2 * (1 - p), atol=1e-14)
    np.testing.assert_array_equal(terms.played.dynamics, 0)
    visits = np.concatenate([[0], np.cumsum(p)[:-1]])
    np.testing.assert_allclose(terms.optimal.bonus, (0.2 + 2 * 0.05) / (1 + visits), rtol=1e-12)
    np.testing.assert_allclose(terms.term_iv, np.maximum(0.5 - terms.optimal.bonus, 0) - 0.3, atol=1e-14)


def test_of_what_run():
    env, agent, run = hand_run(4)
    for bad, text in [
        (lambda: regret_decomposition(env, agent, of.simulate(env, hand_run(1)[1], 5)), "run ends at episode 6: .* has observed 4"),
        (lambda: regret_decomposition(env, World(1).agent(), [0]), "run ends at episode 1: .* has observed 0"),
        (lambda: regret_decomposition(env, "opo", run), "agent is a str, whose terms are undefined: opo, e-uc3rl"),
        (lambda: regret_decomposition(3, agent, run), "cmdp is a int without mdp"),
        (lambda: regret_decomposition(env, agent, 3), "run is a int"),
        (lambda: regret_decomposition(env, agent, []), "run: at least one is needed"),
        (lambda: history_at(agent, 0, 6), "episodes is 6: a whole number from 1 to 5"),
        (lambda: optimistic_steps([HAND_FIT, 3], **HAND_GIVEN), r"history\[1\] is a int"),
        (lambda: optimistic_steps([HAND_FIT], **{**HAND_GIVEN, "eta": -1}), "eta is -1"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()
    oracles = copy.deepcopy(agent.loss_oracle), copy.deepcopy(agent.dynamics_oracle)
    other = of.OPO(HAND, *oracles, eta=0.1, beta_loss=0.2, beta_dynamics=0.1)
    of.simulate(env, other, 4)
    with pytest.raises(of.OpoError, match=r"the regret of episode 2 is .* the agent that played the run"):
        regret_decomposition(env, other, run)
    run.contexts = []
    with pytest.raises(of.OpoError, match="run kept no contexts"):
        regret_decomposition(env, agent, run)


# -- the lemmas ----------------------------------------------------------------------------------------------------------


@st.composite
def instances(draw):
    """A true model, a history that has nothing to do with it, and parameters."""
    rng, sizes, n_actions = seeded(draw), draw(layer_sizes(max_horizon=4, max_size=5)), draw(st.integers(1, 4))
    mask = random_mask(rng, (sum(sizes), n_actions)) if draw(st.booleans()) else None
    truth, *fits = (
        random_model(rng, sizes, n_actions, draw(st.sampled_from(["dense", "csr"])), mask=mask, density=draw(st.sampled_from([1.0, 0.3])))
        for _ in range(draw(st.integers(2, 4)))
    )
    if draw(st.booleans()):
        fits.append(truth.with_losses(fits[0].losses))
    history = [fits[i] for i in np.sort(rng.integers(len(fits), size=draw(st.integers(1, 25))))]
    scales = st.floats(-2, 4).map(lambda x: 10.0**x)
    return truth, history, {"eta": draw(scales) / 10, "beta_loss": draw(scales), "beta_dynamics": draw(scales)}


@given(instances())
def test_steps_are_those_of_the_reference(drawn):
    _, history, given_ = drawn
    *_, last = optimistic_steps(history, **given_)
    if len(history) > 1:
        np.testing.assert_allclose(last.policy, of.reference.policy_chain(history[:-1], **given_), atol=1e-9)
    visits = sum((of.occupancy(last.model, step.policy) for step in list(optimistic_steps(history, **given_))[:-1]), 0 * last.visits)
    np.testing.assert_allclose(last.visits, visits, atol=1e-12)
    # Q^t is the Q of its own policy at losses that the truncation has raised.
    raised = last.model.losses - last.bonus + last.truncation
    scale = 1 + np.abs(raised).max()
    shifted = of.LayeredMDP(last.model.layout, (raised + scale) / (2 * scale), last.model.transitions)
    expected = 2 * scale * of.evaluate(shifted, last.policy).v[0] - scale * last.model.layout.horizon
    assert last.v[0] == pytest.approx(expected, abs=1e-10 * scale)


@given(instances())
def test_the_lemmas_hold_for_any_fits(drawn):
    truth, history, given_ = drawn
    checks = lemma_checks(truth, optimistic_steps(history, **given_), **given_)
    assert [str(check) for check in checks.values() if not check.holds] == []
    assert checks["value difference"].left.size == len(history)


def sides(check):
    return [*zip(check.left, check.right, strict=True)]


def test_both_sides_by_hand():
    checks = lemma_checks(HAND_TRUTH, optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN), **HAND_GIVEN)
    close, eta = functools.partial(pytest.approx, rel=1e-11, abs=1e-13), HAND_GIVEN["eta"]
    v1, v2 = 159 / 1540, 7 / 120
    q0 = np.array([0.3 + v1 / 2 + v2 / 2, 0.2 + v1])
    # Under the true dynamics the uniform policy plays the six pairs with (.5, .5, .3125, .3125, .1875, .1875); one of the
    # first two has the squared Hellinger distance d and L1 distance 1/2, all but the other one the squared error 0.01.
    d = 2 - math.sqrt(1 / 2) - math.sqrt(3 / 2)
    assert checks["value difference"].left == close([-0.375, q0.mean() - 0.775])
    assert checks["value difference, played"].left[0] == close(-0.60625)
    mirror = checks["online mirror descent"]
    assert mirror.left == close([q0.mean() - q0.min(), 0.3 + v1 - 9 / 110, 0.1 + v2])
    squares = [0.16 + (q0**2).mean(), 0.18 + (15 / 22) ** 2 / 28 + (9 / 110) ** 2 * 27 / 28, 0.02 + (7 / 30) ** 2 / 4]
    assert mirror.right == close(math.log(2) / eta + eta / 2 * np.array(squares))
    assert checks["term iii"].right == close([2 * math.log(2) / eta + 8 * eta])
    # In both steps the tightest pair is the first of the last state, with N = 0 and 1/8.
    assert sides(checks["optimism"]) == [close((-0.1, 22.5)), close((-0.1, 2.5 * 1.00125 + 20))]
    errors = 2 * 2 / 0.4 + 2 * 4 / 0.1 + 7.5 * 0.015 + (90 + 720 + 60) * d / 2
    bonuses = 0.2 + 0.625 * 12 / 55 + 0.375 * 4 / 15
    assert checks["term iv"].right == close([6 + errors])
    assert checks["term i"].right == close([2 + errors + 2 * bonuses])
    assert sides(checks["change of measure"]) == [(0, 0), close((0.125, 3 * 0.1875 + 36 * d / 2))]
    assert sides(checks["change of measure, back"]) == [(0, 0), close((0.1875, 3 * 0.125 + 2808 * d / 2))]
    assert sides(checks["visits where explored"]) == [close((1 / 6, 1))]  # the second step's dynamics are inaccurate
    assert sides(checks["bonus where under-explored"]) == []
    bounds = [10 / (0.1 / (864 * 16)) * d / 2, 6 * math.log(3) * 0.6, 36 * math.log(3) * 0.6]
    for name, left, right in zip(("inaccurate dynamics", "under-explored", "explored"), (bonuses, 0, 0), bounds, strict=True):
        assert sides(checks[f"bonus, {name}"]) == [close((left, right))]
    assert sides(checks["bonus"]) == [close((bonuses, sum(bounds)))]
    second = [0.625 * p / 1.3125 for p in (1 / 28, 27 / 28)], [0.375 * p / 1.1875 for p in (0.75, 0.25)]
    logs = [0.5 + 0.5 / 1.5] * 2 + [0.3125 + x for x in second[0]] + [0.1875 + x for x in second[1]]
    assert sides(checks["logarithmic sums"]) == [close((left, 2 * math.log(3))) for left in logs]


def test_the_right_side_of_optimism_where_the_dynamics_are_wrong():
    first, second = optimistic_steps([HAND_FIT] * 2, **HAND_GIVEN)
    raised = second._replace(q=second.q + np.array([[100, 0], [0, 0], [0, 0]]))
    check = lemma_checks(HAND_TRUTH, [first, raised], **HAND_GIVEN)["optimism"]
    assert not check.holds
    assert check.right[1] == pytest.approx(2.5 * (1 + 0.5 * 0.01) + 20 * (1 + 0.5 / 16), rel=1e-12)


def test_a_masked_action_changes_no_side():
    layout, mask = of.Layout([1, 2], 3), [[True, True, False], [True, False, True], [False, True, True]]
    place = np.array([[0, 1], [0, 2], [1, 2]])

    def wider(losses, block):
        every, rows = np.zeros(layout.shape), np.zeros((1, 3, 2))
        np.put_along_axis(every, place, np.array(losses), axis=1)
        rows[:, :2] = block
        return of.LayeredMDP(layout, every, [rows], mask)

    plain = lemma_checks(HAND_TRUTH, optimistic_steps([HAND_FIT] * 9, **HAND_GIVEN), **HAND_GIVEN)
    truth, fit = wider(TRUE_LOSSES, TRUE_BLOCK), wider(FITTED_LOSSES, FITTED_BLOCK)
    masked = lemma_checks(truth, optimistic_steps([fit] * 9, **HAND_GIVEN), **HAND_GIVEN)
    for name, check in plain.items():
        np.testing.assert_allclose(masked[name].left, check.left, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(masked[name].right, check.right, rtol=1e-12, err_msg=name)


def test_the_events_of_the_bonus_bound_by_hand():
    # Two actions with losses 1 and 1, true dynamics: uniform for ever, so that N grows by 1/2; beta_dynamics / 2 = 2 is gamma'.
    truth, given_ = of.LayeredMDP(of.Layout([1], 2), [[1.0, 1.0]], []), {"eta": 1.0, "beta_loss": 6.0, "beta_dynamics": 4.0}
    checks = lemma_checks(truth, optimistic_steps([truth] * 5, **given_), **given_)
    denominators = [1, 1.5, 2, 2.5, 3]
    assert sides(checks["bonus where under-explored"]) == [pytest.approx((1, half / n)) for n in denominators[:3] for half in (3, 2)]
    assert sides(checks["visits where explored"]) == [pytest.approx((n / 6, n)) for n in denominators[3:]]
    # b = min{1, 3/n} + 2 min{1, 2/n}, and the first episode does not count.
    assert sides(checks["bonus, under-explored"]) == [pytest.approx((3 + 3, 2 * math.log(6) * 14))]
    assert sides(checks["bonus, explored"]) == [pytest.approx((1 + 4 / 2.5 + 1 + 4 / 3, 12 * math.log(6) * 14))]
    assert sides(checks["bonus, inaccurate dynamics"]) == [(0, 0)]


# Losses that are told 0.4 too high: 50 episodes, true dynamics.
def biased(truth, by=0.4):
    return [truth.with_losses(np.minimum(1.0, truth.losses + by))] * 50


def violated(truth, steps, given_):
    return {name for name, check in lemma_checks(truth, steps, **given_).items() if not check.holds}


LARGE = {"eta": 0.3, "beta_loss": 400.0, "beta_dynamics": 400.0}
SMALL = {"eta": 0.3, "beta_loss": 1.0, "beta_dynamics": 1.0}
TRUTH = random_model(np.random.default_rng(5), [1, 3, 3], 3)
LOW = TRUTH.with_losses(0.5 * TRUTH.losses)


def test_too_small_a_bonus_is_not_optimistic():
    right, small = biased(LOW), {**LARGE, "beta_loss": 1e-3, "beta_dynamics": 1e-3}
    assert violated(LOW, optimistic_steps(right, **LARGE), LARGE) == set()
    assert violated(LOW, optimistic_steps(right, **small), LARGE) == {"optimism", "term iv"}


def test_too_large_a_bonus_costs_more_than_the_bound():
    wrong = {**SMALL, "beta_loss": 1e4, "beta_dynamics": 1e4}
    history = [TRUTH] * 300
    assert violated(TRUTH, optimistic_steps(history, **SMALL), SMALL) == set()
    assert violated(TRUTH, optimistic_steps(history, **wrong), SMALL) == {"bonus, explored", "bonus"}
    # Where no pair counts as explored the bonus is at its cap, which is what the lemma allows there; one above it is not.
    raised = (step._replace(bonus_loss=step.bonus_loss + 30) for step in optimistic_steps(biased(LOW), **LARGE))
    assert "bonus where under-explored" in violated(LOW, raised, LARGE)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_learning_rate_that_is_too_small_loses_more_than_mirror_descent(share):
    # H = 3, three actions, T = 2000: the bound of term (iii) is sqrt(2 H^4 T log |A|), about 597, at the theory's eta.
    eta = parameters(TRUTH.layout, 2000, loss_class_size=1, dynamics_class_size=1).eta
    given_, history = {"eta": eta, "beta_loss": 1e-2, "beta_dynamics": 1e-2}, [TRUTH] * 2000
    checks = lemma_checks(TRUTH, optimistic_steps(history, **given_), **given_)
    assert all(check.holds for check in checks.values())
    assert checks["term iii"].right[0] == pytest.approx(math.sqrt(2 * 3**4 * 2000 * math.log(3)), rel=1e-12)
    slow = violated(TRUTH, optimistic_steps(history, **{**given_, "eta": share * eta}), given_)
    assert slow == {"online mirror descent", "term iii"}


def test_a_learning_rate_that_is_too_large_loses_more_than_mirror_descent():
    # One state, losses that alternate: an agent that follows the last one is wrong in every episode.
    layout = of.Layout([1], 2)
    models = [of.LayeredMDP(layout, [loss], []) for loss in ([0.5, 0.0], [0.0, 1.0], [1.0, 0.0])]
    truth, history = models[0].with_losses([[0.5, 0.5]]), [models[0], *models[1:] * 200]
    given_ = {"eta": 0.06, "beta_loss": 1e-9, "beta_dynamics": 1e-9}
    assert "online mirror descent" not in violated(truth, optimistic_steps(history, **given_), given_)
    assert "online mirror descent" in violated(truth, optimistic_steps(history, **{**given_, "eta": 50.0}), given_)


def test_visits_that_are_not_those_of_the_fitted_dynamics():
    given_ = {**SMALL, "beta_loss": 4.0, "beta_dynamics": 4.0}
    steps = list(optimistic_steps([TRUTH] * 100, **given_))
    assert violated(TRUTH, steps, given_) == set()
    forgotten = [step._replace(visits=0 * step.visits) for step in steps]
    assert violated(TRUTH, forgotten, given_) == {"change of measure, back", "visits where explored"}
    fourfold = [step._replace(visits=4 * step.visits) for step in steps]
    assert violated(TRUTH, fourfold, given_) == {"change of measure"}


def test_a_value_of_another_policy():
    steps = [step._replace(v=step.q.max(axis=1)) for step in optimistic_steps(biased(TRUTH), **SMALL)]
    assert violated(TRUTH, steps, SMALL) >= {"value difference", "value difference, played"}


@pytest.mark.parametrize(("true_form", "fitted_form"), [(None, None), (sp.csr_array, None), (None, sp.csr_array), (sp.csr_array,) * 2])
def test_errors_of_the_fits_by_hand(true_form, fitted_form):
    blocks = [block if form is None else form(block[0]) for form, block in ((true_form, TRUE_BLOCK), (fitted_form, FITTED_BLOCK))]
    truth, fit = of.LayeredMDP(HAND, TRUE_LOSSES, blocks[:1]), of.LayeredMDP(HAND, FITTED_LOSSES, blocks[1:])
    errors = oracle_errors(truth, optimistic_steps([fit] * 2, **HAND_GIVEN))
    # Every pair but one is 0.1 off, and one of the first two actions leads to (1/4, 3/4) and is said to lead to (1/2, 1/2).
    np.testing.assert_allclose(errors.squared, [0, 0.5 * 0.01 + 0.625 * 0.01 + 0.375 * 0.01], rtol=1e-12)
    np.testing.assert_allclose(errors.hellinger, [0, 0.5 * (2 - math.sqrt(1 / 2) - math.sqrt(3 / 2))], rtol=1e-12)


def test_the_guarantees_by_hand():
    bound = oracle_guarantees(of.Layout([1], 2), 1, loss_class_size=1, dynamics_class_size=1, delta=0.5)
    assert bound == pytest.approx((68 * math.log(4), 2 * math.log(2)), rel=1e-14)
    bound = oracle_guarantees(of.Layout([1, 2], 2), 10, loss_class_size=3, dynamics_class_size=7, delta=0.1)
    assert bound == pytest.approx((136 * math.log(60_000), 4 * math.log(1400)), rel=1e-14)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_oracles_keep_their_guarantees(seed):
    world, given_ = World(seed, contexts=3), {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1}
    agent = world.agent()
    of.simulate(world.env, agent, 150, seed=seed)
    mean = np.zeros((2, 151))
    for context, probability in enumerate(world.env.probabilities):
        steps = optimistic_steps(history_at(agent, context), **given_)
        mean += probability * np.array(oracle_errors(world.env.mdp(context), steps))
    bound = oracle_guarantees(world.layout, 151, loss_class_size=3, dynamics_class_size=3, delta=0.05)
    assert mean[0].max() <= bound.squared
    assert 0 < mean[1].max() <= bound.hellinger


def test_a_biased_oracle_breaks_its_guarantee_and_not_the_lemmas_that_carry_its_errors():
    # It says that every action costs 1 and leads elsewhere, whatever it sees.
    layout = of.Layout([1, 2], 1)
    blocks = [np.array([[[1.0, 0.0]]]), np.array([[[0.0, 1.0]]])]
    truth, fit = of.LayeredMDP(layout, np.zeros((3, 1)), blocks[:1]), of.LayeredMDP(layout, np.ones((3, 1)), blocks[1:])
    given_ = {"eta": 0.3, "beta_loss": 3e3, "beta_dynamics": 3e3}
    steps = list(optimistic_steps([fit] * 3000, **given_))
    errors = oracle_errors(truth, steps)
    bound = oracle_guarantees(layout, 3000, loss_class_size=1, dynamics_class_size=1)
    # One step of two is 1 off in each episode, and the first step's next states are 2 apart.
    np.testing.assert_allclose(errors.squared, 2.0 * np.arange(3000), rtol=1e-12)
    np.testing.assert_allclose(errors.hellinger, 2.0 * np.arange(3000), rtol=1e-12)
    assert errors.squared[-1] > bound.squared
    assert errors.hellinger[-1] > bound.hellinger
    assert violated(truth, steps, given_) == set()


def test_a_check_shows_its_tightest_place():
    check = LemmaCheck("Lemma", np.array([1.0, 2.0]), np.array([3.0, 2.5]))
    assert (check.holds, str(check)) == (True, "holds     2 <= 2.5 (tightest of 2)  Lemma")
    assert check.slack.tolist() == [2.0, 0.5]
    assert str(LemmaCheck("Lemma", np.array([2.0]), np.array([1.0]))).startswith("VIOLATED  2 <= 1")
    assert not LemmaCheck("Lemma", np.array([1.0]), np.array([2.0]), exact=True).holds
    assert str(LemmaCheck("Lemma", np.array([]), np.array([]))) == "holds     nowhere to compare  Lemma"


def test_what_the_lemmas_are_given():
    steps = list(optimistic_steps([HAND_FIT], **HAND_GIVEN))
    for bad, text in [
        (lambda: lemma_checks(3, steps, **SMALL), r"truth is a int: an opo_fast\.LayeredMDP"),
        (lambda: lemma_checks(TRUTH, steps, **SMALL), r"steps\[0\] has .* the layout of truth"),
        (lambda: lemma_checks(HAND_TRUTH, [3], **SMALL), r"steps\[0\] is a int: a Step of optimistic_steps"),
        (lambda: lemma_checks(HAND_TRUTH, [], **SMALL), "steps: at least one is needed"),
        (lambda: lemma_checks(HAND_TRUTH, 3, **SMALL), "steps is a int"),
        (lambda: lemma_checks(HAND_TRUTH, steps, **{**SMALL, "beta_loss": 0}), r"beta_loss is 0\.0: a finite number of at least 1e-280"),
        (lambda: oracle_errors(None, steps), "truth is a NoneType"),
        (lambda: oracle_guarantees(HAND, 0, loss_class_size=1, dynamics_class_size=1), "episodes is 0"),
        (lambda: oracle_guarantees(HAND, 9, loss_class_size=1, dynamics_class_size=0), r"dynamics_class_size is 0\.0"),
        (lambda: oracle_guarantees(HAND, 9, loss_class_size=1, dynamics_class_size=1, delta=1), r"delta is 1\.0"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()


def test_steps_of_another_mask_are_refused():
    """An allowed pair of the truth that the steps' model masks has no estimate to compare."""
    layout = of.Layout([1, 2], 2)
    mask = np.ones(layout.shape, bool)
    mask[1, 1] = False
    losses, blocks = np.full(layout.shape, 0.5), [np.full((1, 2, 2), 0.5)]
    masked, free = of.LayeredMDP(layout, losses, blocks, mask), of.LayeredMDP(layout, losses, blocks)
    given = {"eta": 0.5, "beta_loss": 1.0, "beta_dynamics": 0.1}
    for truth, fit in ((free, masked), (masked, free)):
        with pytest.raises(of.OpoError, match=r"steps\[0\] has another action mask than truth"):
            lemma_checks(truth, optimistic_steps([fit] * 3, **given), **given)
