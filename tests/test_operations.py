"""Operations on one model: kernels against the reference, closed forms, long horizons, sampling."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import FORMS, models_with_policy, random_model, random_policy, seeded

import opo_fast as of
from opo_fast.model import slices
from opo_fast.model import transitions as transitions_module

CLOSE = {"rtol": 0, "atol": 1e-12}
BACKENDS = ("numba", "numpy")


def assert_same_operations(mdp, policy):
    np.testing.assert_allclose(of.occupancy(mdp, policy), of.occupancy(mdp, policy, backend="numpy"), **CLOSE)
    mine, other = of.evaluate(mdp, policy), of.evaluate(mdp, policy, backend="numpy")
    np.testing.assert_allclose(mine.q, other.q, **CLOSE)
    np.testing.assert_allclose(mine.v, other.v, **CLOSE)
    mine, other = of.solve(mdp), of.solve(mdp, backend="numpy")
    np.testing.assert_allclose(mine.q, other.q, **CLOSE)
    np.testing.assert_allclose(mine.v, other.v, **CLOSE)


# -- kernels and reference ---------------------------------------------------------------------------------------------


@given(models_with_policy())
def test_kernels_equal_the_reference(case):
    assert_same_operations(*case)


@pytest.mark.parametrize("form", FORMS)
def test_optimal_policies_agree(form):
    rng = np.random.default_rng(5)
    mdp = random_model(rng, [1, 7, 7, 7], 4, form, masked=True)
    np.testing.assert_array_equal(of.solve(mdp).policy, of.solve(mdp, backend="numpy").policy)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_form_equals_the_reference_and_one_thread(monkeypatch, set_threads, form, threads):
    """The forms with several threads inside a layer, which are normally chosen for large models, on a small one."""
    rng = np.random.default_rng(11)
    small = random_model(rng, [1, 30, 41, 7], 3, form, masked=True, density=0.5)
    policy = random_policy(rng, small)
    assert (small.transitions.threads, small.transitions.parts) == (1, 1)
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 2, 1: 2})
    large = of.LayeredMDP(small.layout, small.losses, small.transitions.arrays(), small.action_mask)
    assert large.transitions.threads > 1
    assert (large.transitions.parts > 1) == (form == "csr")
    set_threads(threads)
    assert_same_operations(large, policy)
    occupancy = of.occupancy(large, policy)
    set_threads(1)
    assert of.occupancy(large, policy).tobytes() == occupancy.tobytes()
    assert of.evaluate(large, policy).v.tobytes() == of.evaluate(small, policy).v.tobytes()


def test_forms_of_one_model_agree():
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.ones(6), size=(6, 3))
    losses, start = rng.random((6, 3)), rng.dirichlet(np.ones(6))
    stationary = of.LayeredMDP.stationary(P, losses, 4, start)
    sparse = of.LayeredMDP.stationary(sp.csr_array(P.reshape(18, 6)), losses, 4, start)
    layout = of.Layout([1, 6, 6, 6, 6], 3)
    first = np.broadcast_to(start, (1, 3, 6))
    layered = of.LayeredMDP(layout, np.vstack([np.zeros((1, 3))] + [losses] * 4), [first, P.copy(), P.copy(), P.copy()])
    assert stationary.transitions.nbytes < layered.transitions.nbytes
    policy = random_policy(rng, layered)
    for other in (sparse, layered):
        np.testing.assert_allclose(of.occupancy(other, policy), of.occupancy(stationary, policy), **CLOSE)
        np.testing.assert_allclose(of.evaluate(other, policy).q, of.evaluate(stationary, policy).q, **CLOSE)
        np.testing.assert_allclose(of.solve(other).v, of.solve(stationary).v, **CLOSE)


def test_float32_storage_stays_within_its_documented_error():
    rng = np.random.default_rng(4)
    for form in FORMS:
        rng2 = np.random.default_rng(rng.integers(2**32))
        state = rng2.bit_generator.state
        full = random_model(rng2, [1, 9, 9, 9, 9], 4, form)
        rng2.bit_generator.state = state
        single = random_model(rng2, [1, 9, 9, 9, 9], 4, form, dtype=np.float32)
        assert single.transitions.data.dtype == np.float32
        policy = random_policy(rng, full)
        assert np.abs(of.evaluate(full, policy).v - of.evaluate(single, policy).v).max() < 6e-8 * full.layout.horizon**2
        assert_same_operations(single, policy)


@given(st.data())
def test_bonus_and_weights_equal_the_reference(data):
    rng = seeded(data.draw)
    shape = data.draw(st.sampled_from([(1, 1), (3, 2), (8, 5), (2, 17)]))
    visits = rng.exponential(size=shape) * 10.0 ** data.draw(st.integers(-3, 6))
    beta = 10.0 ** data.draw(st.integers(-6, 6))
    np.testing.assert_allclose(of.bonus(visits, beta), of.bonus(visits, beta, backend="numpy"), rtol=1e-15)
    policy, q = rng.dirichlet(np.ones(shape[1]), size=shape[0]), 5 * rng.random(shape)
    eta = 10.0 ** data.draw(st.integers(-3, 4))
    mine, other = of.exponential_weights(policy, q, eta), of.exponential_weights(policy, q, eta, backend="numpy")
    np.testing.assert_allclose(mine, other, **CLOSE)


@given(models_with_policy())
def test_rollouts_of_both_backends_are_the_same_episode(case):
    mdp, policy = case
    one = of.rollout(mdp, policy, np.random.default_rng(8), context="c")
    two = of.rollout(mdp, policy, np.random.default_rng(8), context="c", backend="numpy")
    assert one.context == "c"
    assert one.states.tolist() == two.states.tolist()
    assert one.actions.tolist() == two.actions.tolist()
    assert one.losses.tolist() == two.losses.tolist()


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_computed_model(backend):
    """Two layers, two actions: action 0 goes to state 1 or 2 with 1/4 and 3/4, action 1 to state 2."""
    layout = of.Layout([1, 2], 2)
    mdp = of.LayeredMDP(layout, [[0.5, 0.0], [0.25, 1.0], [0.5, 0.75]], [[[[0.25, 0.75], [0.0, 1.0]]]])
    policy = [[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]
    q = [[0.5, 0.5], [0.125, 0.0], [0.4375, 0.4375]]
    np.testing.assert_array_equal(of.occupancy(mdp, policy, backend=backend), q)
    value = of.evaluate(mdp, policy, backend=backend)
    np.testing.assert_array_equal(value.v, [0.828125, 0.25, 0.625])
    np.testing.assert_array_equal(value.q, [[1.03125, 0.625], [0.25, 1.0], [0.5, 0.75]])
    best = of.solve(mdp, backend=backend)
    np.testing.assert_array_equal(best.v, [0.5, 0.25, 0.5])
    np.testing.assert_array_equal(best.policy, [[0, 1], [1, 0], [1, 0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_lowest_action_wins_ties(backend):
    mdp = of.LayeredMDP(of.Layout([1], 4), [[0.5, 0.25, 0.25, 0.25]], [], [[True, False, True, True]])
    assert of.solve(mdp, backend=backend).policy.tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_layer_one_action_one_state(backend):
    mdp = of.LayeredMDP(of.Layout([1], 1), [[0.75]], [])
    assert of.occupancy(mdp, [[1.0]], backend=backend).tolist() == [[1.0]]
    assert of.evaluate(mdp, [[1.0]], backend=backend).v.tolist() == [0.75]
    assert of.solve(mdp, backend=backend).q.tolist() == [[0.75]]
    assert of.policy_chain([mdp] * 3, eta=1, beta_loss=1, beta_dynamics=1, backend=backend).tolist() == [[1.0]]
    assert of.rollout(mdp, [[1.0]], np.random.default_rng(0), backend=backend).states.tolist() == [0, 1]
    assert of.LayeredMDP.stationary([[[1.0]]], [[0.75]], 1).layout.layer_sizes == (1,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bonus_is_the_papers_formula(backend):
    # min{1, (beta/2) / (1 + N)}: unvisited pairs have min{1, beta/2}, and nothing is divided by 0.
    np.testing.assert_array_equal(of.bonus([0.0, 1.0, 3.0, 1e300], 4.0, backend=backend), [1.0, 1.0, 0.5, 2e-300])
    np.testing.assert_array_equal(of.bonus([[0.0], [1.0]], 1.0, backend=backend), [[0.5], [0.25]])
    assert of.bonus(np.zeros((0, 3)), 1.0, backend=backend).shape == (0, 3)
    single = of.bonus(3, 2.0, backend=backend)
    assert (single.shape, float(single)) == ((), 0.25)


# -- exponential weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_actions", range(1, 26))
def test_equal_q_keeps_uniform_bitwise(backend, n_actions):
    policy = np.full((3, n_actions), 1.0 / n_actions)
    for level in (0.0, 0.1, 7.3, 1e6):
        assert (of.exponential_weights(policy, np.full(policy.shape, level), 0.37, backend=backend) == policy).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gap", [1e3, 1e4, 1e5, 1e6, 1e300])
def test_wide_gaps_give_exactly_0_and_1(backend, gap):
    q = np.array([[0.0, gap, gap], [gap, 0.0, gap]])
    for eta in (1.0, 1e8):
        assert of.exponential_weights(np.full((2, 3), 1 / 3), q, eta, backend=backend).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_q_near_the_largest_number_gives_no_nan(backend):
    q = np.array([[1.7e308, 1.6e308], [-1.7e308, 1.7e308]])
    assert of.exponential_weights(np.full((2, 2), 0.5), q, 1e10, backend=backend).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_follow_the_exponential(backend):
    gaps = np.array([0.0, 1e-9, 0.3, 5.0, 100.0, 650.0])
    weights = of.exponential_weights(np.full((1, 6), 1 / 6), gaps[None], 1.0, backend=backend)[0]
    total = math.fsum(math.exp(-gap) for gap in gaps)
    np.testing.assert_allclose(weights, [math.exp(-gap) / total for gap in gaps], rtol=1e-13)
    assert abs(weights.sum() - 1) <= 1e-15


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_action_of_probability_0_keeps_it(backend):
    policy = of.exponential_weights([[0.0, 0.5, 0.5]], [[-1e300, 1.0, 1.0]], 1.0, backend=backend)
    assert policy.tolist() == [[0.0, 0.5, 0.5]]


# -- long horizons -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_thousand_steps(form, backend):
    """State 0 is left with probability 0.9: its occupancy 0.1^(h-1) falls below 1e-300 to 0."""
    horizon = 2000
    P = np.array([[[0.1, 0.9], [0.1, 0.9]], [[0.0, 1.0], [0.0, 1.0]]])
    losses = [[1.0, 1.0], [0.0, 0.0]]
    mdp = of.LayeredMDP.stationary(P if form == "dense" else sp.csr_array(P.reshape(4, 2)), losses, horizon)
    policy = mdp.uniform_policy()
    q = of.occupancy(mdp, policy, backend=backend)
    assert np.isfinite(q).all()
    sums = np.add.reduceat(q.sum(axis=1), mdp.layout.offsets[:-1])
    np.testing.assert_allclose(sums, 1.0, rtol=0, atol=1e-12)
    reach = q[1::2].sum(axis=1)
    np.testing.assert_allclose(reach[:270], 0.1 ** np.arange(1, 271), rtol=1e-12)
    assert (reach[330:] == 0).all()
    assert (q * mdp.losses).sum() == pytest.approx(1 / 0.9, abs=1e-12)
    assert of.evaluate(mdp, policy, backend=backend).v[0] == pytest.approx(1 / 0.9, abs=1e-12)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_chain_over_two_thousand_steps(form):
    rng = np.random.default_rng(2)
    P = np.array([[[0.1, 0.9], [0.02, 0.98]], [[1e-3, 0.999], [0.0, 1.0]]])
    P = P if form == "dense" else sp.csr_array(P.reshape(4, 2))
    base = of.LayeredMDP.stationary(P, rng.random((2, 2)), 2000)
    settings = {"eta": 0.5, "beta_loss": 1e-3, "beta_dynamics": 1e-7}
    history = [base, base, base.with_losses(1 - base.losses), base]
    policy = of.policy_chain(history, **settings)
    assert np.isfinite(policy).all()
    np.testing.assert_allclose(policy.sum(axis=1), 1.0, rtol=0, atol=1e-15)
    # Q is up to 2000 here, so rounding may change it by 1e-12.
    np.testing.assert_allclose(policy, of.policy_chain(history, backend="numpy", **settings), rtol=0, atol=1e-10)


# -- sampling ----------------------------------------------------------------------------------------------------------


class Uniforms(np.random.Generator):
    """A generator that returns given uniforms, one row for the actions, the next states and the losses."""

    def __new__(cls, values):
        return super().__new__(cls, np.random.PCG64(0))

    def __init__(self, values):
        super().__init__(np.random.PCG64(0))
        self.values = np.array(values, float)

    def random(self, size=None, *args, **kwargs):
        return np.broadcast_to(self.values if self.values.ndim == 2 else self.values[:, None], size).copy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, 1 - 2**-53])
def test_sampler_never_returns_probability_0(backend, form, row, u):
    """Rows of tiny entries, of leading and trailing zeros, and of a sum below 1; uniforms up to the last below 1."""
    rows = np.zeros((3, 1, 6))
    rows[0, 0, 1:5] = [1e-18, 0.3, 0.7, 1e-18]
    rows[1, 0, 2:4] = [0.4, 0.6 - 5e-9]
    rows[2, 0, 1] = 1.0
    layout = of.Layout([1, 3, 6], 1)
    first = np.array([[[0.5, 0.3, 0.2]]])
    blocks = [first, rows] if form == "dense" else [sp.csr_array(first[0]), sp.csr_array(rows[:, 0])]
    mdp = of.LayeredMDP(layout, np.zeros(layout.shape), blocks)
    to_row = [0.25, 0.6, 0.9][row]
    uniforms = Uniforms([[u] * 3, [to_row, u, u], [u] * 3])
    states = of.rollout(mdp, np.ones(layout.shape), uniforms, backend=backend).states
    assert states[1] == 1 + row
    assert rows[row, 0, states[2] - 4] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_sampler_never_plays_an_action_of_probability_0(backend):
    mdp = of.LayeredMDP(of.Layout([1], 4), np.zeros((1, 4)), [])
    policy = [[0.0, 0.5, 0.5 - 5e-9, 0.0]]
    assert of.rollout(mdp, policy, Uniforms([0.0, 0, 0]), backend=backend).actions.tolist() == [1]
    assert of.rollout(mdp, policy, Uniforms([1 - 2**-53, 0, 0]), backend=backend).actions.tolist() == [2]


def test_frequencies_of_rollouts_are_the_occupancy():
    rng = np.random.default_rng(6)
    mdp = random_model(rng, [1, 3, 4], 2, "csr", masked=True)
    policy = random_policy(rng, mdp)
    n = 4000
    counts, losses = np.zeros(mdp.layout.shape), 0.0
    for _ in range(n):
        episode = of.rollout(mdp, policy, rng)
        np.add.at(counts, (episode.states[:-1], episode.actions), 1)
        losses += episode.losses.sum()
    q = of.occupancy(mdp, policy)
    assert (counts[q == 0] == 0).all()
    # Five standard deviations of a binomial count.
    assert (np.abs(counts - n * q) <= 5 * np.sqrt(n * q * (1 - q)) + 1e-9).all()
    assert abs(losses / n - of.evaluate(mdp, policy).v[0]) < 5 * math.sqrt(3 / n)


def test_rollout_draws_only_from_its_generator():
    rng = np.random.default_rng(1)
    mdp = random_model(rng, [1, 4, 4], 3)
    policy = mdp.uniform_policy()
    before = np.random.get_state(legacy=False)["state"]["key"].tobytes()  # noqa: NPY002
    one, two = np.random.default_rng(9), np.random.default_rng(9)
    alone = [of.rollout(mdp, policy, one).states.tolist() for _ in range(5)]
    interleaved = []
    for _ in range(5):
        interleaved.append(of.rollout(mdp, policy, two).states.tolist())
        of.rollout(mdp, policy, rng)
    assert alone == interleaved
    assert np.random.get_state(legacy=False)["state"]["key"].tobytes() == before  # noqa: NPY002


def test_losses_are_bernoulli_or_as_asked():
    mdp = of.LayeredMDP(of.Layout([1, 1, 1], 1), [[0.0], [1.0], [0.25]], [[[[1.0]]], [[[1.0]]]])
    rng = np.random.default_rng(0)
    for _ in range(20):
        losses = of.rollout(mdp, np.ones((3, 1)), rng).losses
        assert losses[:2].tolist() == [0, 1]
        assert losses[2] in (0, 1)
    exact = of.rollout(mdp, np.ones((3, 1)), rng, sample_losses=lambda means, uniforms: means)
    assert exact.losses.tolist() == [0, 1, 0.25]


@pytest.mark.parametrize("counts", [(2, 4, 3, 3), (1, 3, 2, 2), (4, 2, 3, 3, 3, 3, 3, 3), (3, 1, 2, 2, 2, 1, 4, 2)])
def test_states_with_unequal_numbers_of_actions_that_are_equal_on_average(counts):
    rng = np.random.default_rng(len(counts))
    layout = of.Layout([1, len(counts), 2], 4)
    mask = np.zeros(layout.shape, bool)
    for s, n in enumerate((4, *counts, 2, 2)):
        mask[s, rng.permutation(4)[:n]] = True
    arrays = [rng.dirichlet(np.ones(b), (a, 4)) for a, b in ((1, len(counts)), (len(counts), 2))]
    mdp = of.LayeredMDP(layout, rng.random(layout.shape), arrays, action_mask=mask)
    policy = np.where(mask, rng.random(layout.shape), 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    found, expected = of.evaluate(mdp, policy), of.evaluate(mdp, policy, backend="numpy")
    np.testing.assert_allclose(found.v, expected.v, rtol=1e-12)
    np.testing.assert_allclose(found.q, expected.q, rtol=1e-12)
    for s in range(layout.n_states):
        wrong = policy.copy()
        wrong[s] *= 0.9
        with pytest.raises(of.OpoError, match=f"state {s} "):
            of.evaluate(mdp, wrong)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("masked", [True, False])
def test_chains_of_a_csr_model_keep_their_bits(monkeypatch, set_threads, threads, masked):
    """Long ones gather from the transposed copy from the first step on, short ones scatter until it is made; likewise for the rows."""
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 2, 1: 2})
    monkeypatch.setattr(slices, "ROWS_GAIN", True)
    monkeypatch.setattr(slices, "ROWS_WORTH", 8)
    monkeypatch.setattr(slices, "MOST_PADDED", 2.0)
    set_threads(threads)
    factors = {"eta": 0.3, "beta_loss": 0.4, "beta_dynamics": 0.1}

    def models():
        one = random_model(np.random.default_rng(3), [1, 90, 75, 7], 3, "csr", masked=masked, density=0.4)
        losses = np.random.default_rng(4).random(one.losses.shape)
        return one, one.with_losses(losses * one.action_mask if masked else losses)

    with monkeypatch.context() as patch:
        patch.setattr(slices, "MOST_BYTES", 0)
        pair = models()
        expected = {n: of.policy_chain(pair * n, **factors).tobytes() for n in (3, 11)}
        assert pair[0].transitions.transposed_slices.arguments is None
    for lengths in ((3, 11), (11, 3)):
        pair = models()
        for n in lengths:
            assert of.policy_chain(pair * n, **factors).tobytes() == expected[n]
        assert pair[0].transitions.transposed_slices.arguments is not None
        assert (pair[0].transitions.row_slices.arguments is None) == masked
    pair = models()
    chain = of.PolicyChain(pair[0].layout, **factors, action_mask=pair[0].action_mask)
    for model in pair * 11:
        chain.append(model)
        policy = chain.policy()
    assert policy.tobytes() == expected[11]
    assert pair[0].transitions.transposed_slices.arguments is not None
    assert (pair[0].transitions.row_slices.arguments is None) == masked


@pytest.mark.parametrize("threads", [1, 2])
def test_repeated_occupancies_of_a_csr_model_keep_their_bits(monkeypatch, set_threads, threads):
    """After some passes a transposed copy is made, and sums are gathered in the same order in which they were scattered before."""
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 2, 1: 2})
    set_threads(threads)
    rng = np.random.default_rng(13)
    mdp = random_model(rng, [1, 30, 75, 7], 3, "csr", masked=True, density=0.4)
    policy = random_policy(rng, mdp)
    first, copy = of.occupancy(mdp, policy), mdp.transitions.transposed_slices
    for _ in range(slices.TRANSPOSED_WORTH - 1):
        assert copy.arguments is None
        assert of.occupancy(mdp, policy).tobytes() == first.tobytes()
    for _ in range(3):
        assert of.occupancy(mdp, policy).tobytes() == first.tobytes()
        assert copy.arguments is not None
    with pytest.raises(of.OpoError, match="policy"):
        of.occupancy(mdp, 1.5 * policy)
    again = pickle.loads(pickle.dumps(mdp))
    assert again.transitions.transposed_slices.arguments is None
    assert of.occupancy(again, policy).tobytes() == first.tobytes()
    changing = of.UpdatableMDP(mdp.layout, mdp.losses, mdp.transitions.arrays(), mdp.action_mask)
    monkeypatch.setattr(slices, "MOST_BYTES", mdp.transitions.nbytes - 1)
    for model in (changing, again):
        for _ in range(slices.TRANSPOSED_WORTH + 1):
            assert of.occupancy(model, policy).tobytes() == first.tobytes()
        assert model.transitions.transposed_slices.arguments is None


@pytest.mark.parametrize("form", ["csr", "stationary csr"])
@pytest.mark.parametrize("threads", [1, 2])
def test_repeated_evaluations_of_a_csr_model_keep_their_bits(monkeypatch, set_threads, form, threads):
    """After some passes a copy of the rows in slices is made, and sums are in the same order as before."""
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 2, 1: 2})
    monkeypatch.setattr(slices, "ROWS_GAIN", True)
    monkeypatch.setattr(slices, "LEAST_ENTRIES", 1)
    set_threads(threads)
    rng = np.random.default_rng(13)
    mdp = random_model(rng, [1, 40, 40, 40], 3, form, density=0.9)
    policy = random_policy(rng, mdp)

    def results(model):
        found = (*of.evaluate(model, policy), of.evaluate(model, policy, returns="v"), *of.solve(model), of.solve(model, returns="start"))
        return [np.asarray(one).tobytes() for one in found]

    first, copy = results(mdp), mdp.transitions.row_slices
    assert copy.arguments is None
    for _ in range(slices.ROWS_WORTH // 4):
        assert results(mdp) == first
    assert copy.arguments is not None
    assert 0 < copy.nbytes < 1.3 * mdp.transitions.nbytes
    again = pickle.loads(pickle.dumps(mdp))
    assert again.transitions.row_slices.arguments is None
    assert results(again) == first


def test_rows_are_copied_only_where_that_is_worth_it(monkeypatch):
    monkeypatch.setattr(slices, "LEAST_ENTRIES", 200)
    rng = np.random.default_rng(0)

    def copied(model):
        for _ in range(slices.ROWS_WORTH + 1):
            of.solve(model)
        return model.transitions.row_slices.arguments is not None

    def even(**options):
        return random_model(np.random.default_rng(1), [1, 24, 24], 4, "csr", density=1.0, **options)

    for gain in (False, True):
        monkeypatch.setattr(slices, "ROWS_GAIN", gain)
        assert copied(even()) == gain
    assert not copied(even(masked=True))
    assert not copied(random_model(rng, [1, 4, 4], 4, "csr", density=1.0))
    assert not copied(of.UpdatableMDP(even().layout, even().losses, even().transitions.arrays()))
    # Of 32 rows, which are sorted together, eight fill a slice; four leave half of it to short ones.
    for long, expected in ((8, True), (4, False)):
        lengths = np.concatenate([rng.permutation(np.where(np.arange(32) < long, 24, 1)) for _ in range(3)])
        indices = np.concatenate([np.arange(24) if n == 24 else [3] for n in lengths])
        P = sp.csr_array((np.repeat(1 / lengths, lengths), indices, np.concatenate([[0], np.cumsum(lengths)])), shape=(96, 24))
        assert copied(of.LayeredMDP(even().layout, even().losses, [even().transitions.arrays()[0], P])) == expected
    monkeypatch.setattr(slices, "MOST_BYTES", even().transitions.nbytes - 1)
    assert not copied(even())


def test_models_whose_copies_do_not_fit_into_the_memory_are_used_without(monkeypatch):
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 2, 1: 2})
    monkeypatch.setattr(slices, "ROWS_GAIN", True)
    monkeypatch.setattr(slices, "LEAST_ENTRIES", 1)
    tried = []

    def full(copy, *arguments):
        tried.append(type(copy))
        raise MemoryError

    for kind in (slices.TransposedSlices, slices.RowSlices):
        monkeypatch.setattr(kind, "make", full)
    mdp = random_model(np.random.default_rng(0), [1, 30, 30], 3, "csr")
    policy = mdp.uniform_policy()
    v, visits = of.evaluate(mdp, policy).v, of.occupancy(mdp, policy)
    for _ in range(2 * slices.ROWS_WORTH):
        assert of.evaluate(mdp, policy).v.tobytes() == v.tobytes()
        assert of.occupancy(mdp, policy).tobytes() == visits.tobytes()
    assert sorted(tried, key=str) == [slices.RowSlices, slices.TransposedSlices]
