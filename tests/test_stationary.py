"""Stationary models store what their layers share once, and give the same bits as models with separate layers."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from strategies import random_mask, random_rows

import opo_fast as of

FORMS = list(itertools.product(["dense", "csr"], [False, True], [np.float64, np.float32]))
forms = pytest.mark.parametrize(("form", "masked", "dtype"), FORMS)
SIZE = 13


def stationary(form, masked=False, dtype=np.float64, *, horizon=5, start=2, terminal=True, n_actions=3, seed=0, size=SIZE):
    rng = np.random.default_rng(seed)
    P = random_rows(rng, size * n_actions, size, 0.7)
    P = sp.csr_array(P) if form == "csr" else P.reshape(size, n_actions, size)
    mask = random_mask(rng, (size, n_actions)) if masked else None
    last = rng.random(size) if terminal else None
    first = rng.dirichlet(np.ones(size)) if start is None else start
    return of.LayeredMDP.stationary(P, rng.random((size, n_actions)), horizon, first, mask, terminal=last, dtype=dtype)


def unrolled(mdp):
    """The same model with separate losses and rows for each layer."""
    return of.LayeredMDP(mdp.layout, mdp.losses, mdp.transitions.arrays(), mdp.action_mask, dtype=mdp.transitions.dtype)


def policy_of(mdp, size=SIZE):
    """A random policy (S, A), and the same policy for all layers."""
    mask = np.ones(mdp.layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    policy = np.where(mask[-size:], np.random.default_rng(5).random((size, mdp.layout.n_actions)), 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    return policy, mdp.unroll(policy)


def same(found, expected):
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def same_all(found, expected, returns):
    for one, other in zip(found, expected, strict=True) if returns == "all" else [(found, expected)]:
        same(one, other)


@forms
@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("start", [None, 2])
@pytest.mark.parametrize("terminal", [False, True])
def test_bits_of_the_unrolled_model(form, masked, dtype, horizon, start, terminal):
    mdp = stationary(form, masked, dtype, horizon=horizon, start=start, terminal=terminal)
    other = unrolled(mdp)
    assert other.transitions.distinct is None
    assert mdp.keeps_losses_once
    relossed = mdp.with_losses(mdp.losses)
    for returns in ("all", "v", "start"):
        expected = of.solve(other, returns=returns)
        for one in (mdp, relossed):
            same_all(of.solve(one, returns=returns), expected, returns)
        if mdp.layout.horizon > 1:
            policy, full = policy_of(mdp)
            expected = of.evaluate(other, full, returns=returns)
            for one, given in itertools.product((mdp, relossed), (policy, full)):
                same_all(of.evaluate(one, given, returns=returns), expected, returns)


@pytest.mark.parametrize("n_actions", [1, 2, 4, 8])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_bits_where_actions_fill_vectors(form, n_actions):
    mdp = stationary(form, n_actions=n_actions)
    other = unrolled(mdp)
    same_all(of.solve(mdp), of.solve(other), "all")
    policy, full = policy_of(mdp)
    same(of.evaluate(mdp, policy, returns="v"), of.evaluate(other, full).v)
    same(of.occupancy(mdp, policy), of.occupancy(other, full))


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_bits_on_two_threads(form):
    mdp = stationary(form, size=200, n_actions=4, horizon=6)
    expected = of.solve(unrolled(mdp)).v
    assert mdp.transitions.threads > 1
    before = of.get_threads()
    try:
        for n in (1, 2):
            of.set_threads(n)
            same(of.solve(mdp, returns="v"), expected)
            same(of.solve(mdp, returns="start"), expected[0])
    finally:
        of.set_threads(before)


@forms
def test_one_layer_is_that_of_all(form, masked, dtype):
    mdp = stationary(form, masked, dtype)
    whole, layout = of.solve(mdp), mdp.layout
    for one, h in itertools.product((mdp, unrolled(mdp), mdp.with_losses(mdp.losses)), range(layout.horizon)):
        following = whole.v if h % 2 else whole.v[layout.layer(h + 1)] if h < layout.horizon - 1 else None
        found = of.solve_layer(one, h, following)
        plain = of.solve_layer(one, h, following, backend="numpy")
        for part, expected, reference in zip(found, whole, plain, strict=True):
            same(part, expected[layout.layer(h)])
            np.testing.assert_allclose(part, reference, rtol=1e-12, atol=1e-15)


def test_one_layer_of_a_layered_model():
    layout = of.Layout([1, 9, 4, 6], 3)
    rng = np.random.default_rng(1)
    blocks = [rng.dirichlet(np.ones(m), (n, 3)) for n, m in ((1, 9), (9, 4), (4, 6))]
    for mdp in (of.LayeredMDP(layout, rng.random(layout.shape), blocks), of.UpdatableMDP(layout, rng.random(layout.shape), blocks)):
        whole = of.solve(mdp)
        for h in range(4):
            for part, expected in zip(of.solve_layer(mdp, h, whole.v), whole, strict=True):
                same(part, expected[layout.layer(h)])


def test_values_known_by_hand():
    # One state that costs 0.25 or 0.5, and 0.75 at the end.
    mdp = of.LayeredMDP.stationary(np.ones((1, 2, 1)), [[0.5, 0.25]], 4, terminal=[0.75])
    assert of.solve(mdp, returns="start") == 4 * 0.25 + 0.75
    assert of.evaluate(mdp, [[1.0, 0.0]], returns="start") == 4 * 0.5 + 0.75
    assert of.solve(mdp, returns="v").tolist() == [1.75, 1.5, 1.25, 1.0, 0.75]
    assert of.solve_layer(mdp, 0, [1.5]).policy.tolist() == [[0.0, 1.0]]


def first_allowed(mdp):
    """A deterministic policy (S, A)."""
    mask, size = mdp.transitions.distinct.mask, mdp.layout.layer_sizes[-1]
    allowed = np.ones((size, mdp.layout.n_actions), bool) if mask is None else mask[-size:]
    return np.eye(mdp.layout.n_actions)[allowed.argmax(axis=1)]


def peak_of_use(form, masked, horizon):
    """Peak memory in bytes of building, planning and evaluating."""
    tracemalloc.start()
    mdp = stationary(form, masked, horizon=horizon, size=100, n_actions=4)
    of.solve(mdp, returns="start")
    of.solve_layer(mdp, 1, np.zeros(100))
    of.evaluate(mdp, first_allowed(mdp), returns="start")
    repr(mdp)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("masked", [False, True])
def test_memory_does_not_grow_with_the_horizon(form, masked):
    peak_of_use(form, masked, 3)
    # Each further layer takes a few hundred bytes of plans and lists; its losses alone would take 3,200.
    assert peak_of_use(form, masked, 2000) - peak_of_use(form, masked, 3) < 2000 * 800


@pytest.mark.parametrize("masked", [False, True])
def test_files_and_copies_stay_small(masked, tmp_path):
    mdp = stationary("csr", masked, np.float32, horizon=300)
    policy, full = policy_of(mdp)
    expected = of.solve(mdp), of.evaluate(mdp, full)
    mdp.save(tmp_path / "model.npz")
    for other in (of.LayeredMDP.load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(mdp))):
        assert other.keeps_losses_once
        assert "losses" not in vars(other)
        same_all(of.solve(other), expected[0], "all")
        same_all(of.evaluate(other, policy), expected[1], "all")
        same(other.losses, mdp.losses)
    assert len(pickle.dumps(mdp)) < mdp.losses.nbytes
    mdp.with_losses(mdp.losses).save(tmp_path / "other.npz")
    same_all(of.solve(of.LayeredMDP.load(tmp_path / "other.npz")), expected[0], "all")


@pytest.mark.parametrize("start", [None, 2])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_files_of_every_kind(start, terminal, horizon, tmp_path):
    mdp = stationary("dense", horizon=horizon, start=start, terminal=terminal)
    mdp.save(tmp_path / "model.npz")
    same_all(of.solve(of.LayeredMDP.load(tmp_path / "model.npz")), of.solve(mdp), "all")


def test_unrolled_values_begin_with_those_of_the_start():
    """Worked out by hand: three layers, of which the first is a copy of state 1."""
    mdp = of.LayeredMDP.stationary(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), 3, start=1)
    policy = np.array([[0.25, 0.75], [1.0, 0.0]])
    assert mdp.unroll(policy).tolist() == [[1.0, 0.0], *(2 * policy.tolist())]
    assert mdp.unroll([3.0, 7.0]).tolist() == [7.0, 3.0, 7.0, 3.0, 7.0]
    assert mdp.unroll([3.0, 7.0], first=1.0).tolist() == [1.0, 3.0, 7.0, 3.0, 7.0]
    assert pickle.loads(pickle.dumps(mdp)).unroll([3.0, 7.0])[0] == 7.0
    assert mdp.with_losses(mdp.losses).unroll([3.0, 7.0])[0] == 7.0


def test_unrolled_values_of_an_extra_first_layer():
    mdp = of.LayeredMDP.stationary(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), 2, start=[0.5, 0.5])
    policy = np.array([[0.25, 0.75], [1.0, 0.0]])
    assert mdp.unroll(policy).tolist() == [[0.5, 0.5], *(2 * policy.tolist())]
    for values in (3 * policy, [3.0, 7.0], np.full((2, 2), np.nan)):
        with pytest.raises(of.OpoError, match="first is None: values for the first state"):
            mdp.unroll(values)


@forms
@pytest.mark.parametrize("horizon", [1, 2, 3, 5])
@pytest.mark.parametrize("start", [None, 2])
@pytest.mark.parametrize("terminal", [False, True])
def test_other_stationary_losses(form, masked, dtype, horizon, start, terminal):
    """`with_losses` equals the model that is built with these losses, which are stored once."""
    mdp, other = (stationary(form, masked, dtype, horizon=horizon, start=start, terminal=terminal) for _ in range(2))
    losses = np.random.default_rng(8).random((SIZE, 3))
    if mdp.layout.horizon <= 2 and start is not None:
        with pytest.raises(of.OpoError, match=r"losses has shape \(13, 3\)"):
            mdp.with_losses(losses)
        return
    expected = other.losses.copy()
    for h in range(start is None, mdp.layout.horizon - terminal):
        expected[mdp.layout.layer(h)] = losses if h else losses[start]
    for one in (mdp, mdp.with_losses(mdp.losses)):
        found = one.with_losses(losses)
        assert found.keeps_losses_once
        assert found.transitions is mdp.transitions
        same(found.losses, expected)
        same_all(of.solve(found), of.solve(mdp.with_losses(expected)), "all")


def test_messages_name_both_shapes():
    mdp = stationary("dense")
    for call in (
        lambda: of.evaluate(mdp, np.ones((3, 3)) / 3),
        lambda: of.evaluate(mdp, np.ones((3, 3)) / 3, returns="start"),
        lambda: of.occupancy(mdp, np.ones((3, 3)) / 3, backend="numpy"),
        lambda: mdp.with_losses(np.ones((3, 3))),
    ):
        with pytest.raises(of.OpoError, match=r"has shape \(3, 3\): \(n_states, n_actions\) = \(66, 3\), or \(S, A\) = \(13, 3\)"):
            call()


@forms
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_one_layer_in_place(form, masked, dtype, backend):
    mdp = stationary(form, masked, dtype)
    v = of.solve(mdp, returns="v")
    for h in range(mdp.layout.horizon):
        size = mdp.layout.layer_sizes[h]
        out = np.full((size, 3), np.nan), np.full(size, np.nan), np.full((size, 3), np.nan)
        found = of.solve_layer(mdp, h, v, out=out, backend=backend)
        assert all(one is other for one, other in zip(found, out, strict=True))
        same_all(found, of.solve_layer(mdp, h, v, backend=backend), "all")


def test_one_layer_in_a_wrong_place():
    mdp, q, policy = stationary("dense"), np.empty((SIZE, 3)), np.empty((SIZE, 3))
    v = of.solve(mdp, returns="v")[mdp.layout.layer(2)]
    for out, says in (
        (q, "a tuple of 3 arrays"),
        ((q, np.empty(3), policy), r"out\[1\] has dtype float64 and shape \(3,\)"),
        ((q, v, policy), r"out\[1\] shares memory with an argument that is read"),
        ((q, np.empty(SIZE), q), r"out\[2\] shares memory with out\[0\]"),
    ):
        with pytest.raises(of.OpoError, match=says):
            of.solve_layer(mdp, 1, v, out=out)


def test_refusals():
    mdp = stationary("dense", True)
    policy, _ = policy_of(mdp)
    bad = policy.copy()
    bad[3] *= 1.5
    with pytest.raises(of.OpoError, match=r"policy: state 3: the probabilities sum to 1.5"):
        of.evaluate(mdp, bad, returns="start")
    with pytest.raises(of.OpoError, match=r"policy has shape \(12, 3\)"):
        of.evaluate(mdp, policy[:-1])
    with pytest.raises(of.OpoError, match="stage is 6"):
        of.solve_layer(mdp, 6)
    with pytest.raises(of.OpoError, match="v is None: give the values of the 13 states of layer 2"):
        of.solve_layer(mdp, 1)
    with pytest.raises(of.OpoError, match=r"v has shape \(12,\)"):
        of.solve_layer(mdp, 1, np.zeros(12))
    with pytest.raises(of.OpoError, match="v of layer 2, position 4, is nan"):
        of.solve_layer(mdp, 1, np.where(np.arange(13) == 4, np.nan, 0.0))
