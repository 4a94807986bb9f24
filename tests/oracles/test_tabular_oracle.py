"""Tabular oracles against counts by hand, and the past versions of a table."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from oracle_worlds import draw_log, exponent, numbers, random_blocks

import opo_fast as of
from opo_fast._support.fields import Fields
from opo_fast.oracles import Support, TabularDynamicsClass, TabularLossClass, TrajectoryLog
from opo_fast.oracles.versions import Versions

LAYOUT = of.Layout([1, 2, 2], 2)
BY_HAND = TrajectoryLog(
    LAYOUT,
    ["a", "a", "b"],
    states=[[0, 1, 3], [0, 1, 4], [0, 2, 3]],
    actions=[[0, 1, 0], [0, 1, 1], [0, 0, 0]],
    losses=[[1, 0.25, 0], [0, 0.5, 1], [0.5, 1, 1]],
)


def test_means_and_frequencies_by_hand():
    losses = TabularLossClass(unseen=0.75).oracle(LAYOUT)
    losses.observe_many(BY_HAND)
    expected = np.full(LAYOUT.shape, 0.75)
    expected[0, 0], expected[1, 1], expected[2, 0] = 0.5, 0.375, 1.0
    expected[3, 0], expected[4, 1] = 0.5, 1.0
    assert np.array_equal(losses.losses(losses.fit(), "anything"), expected)
    assert np.array_equal(losses.losses(0, "a"), np.full(LAYOUT.shape, 0.75))
    assert losses.error(1, BY_HAND[0]) == 0.5**2 + 0.125**2 + 0.5**2

    dynamics = TabularDynamicsClass().oracle(LAYOUT)
    dynamics.observe_many(BY_HAND)
    first, second = dynamics.transitions(dynamics.fit(), "a")
    np.testing.assert_allclose(first[0, 0], [2 / 3, 1 / 3])
    assert np.array_equal(first[0, 1], [0.5, 0.5])  # never played
    assert np.array_equal(second[0, 1], [0.5, 0.5])
    assert np.array_equal(second[1, 0], [1.0, 0.0])
    assert dynamics.error(1, BY_HAND[0]) == pytest.approx(-np.log(2 / 3) - np.log(1 / 2))
    # Log-likelihood of the uniform start against that of the frequencies.
    assert dynamics.gain(0) == pytest.approx(2 * np.log(2 / 3) + np.log(1 / 3) + 2 * np.log(1 / 2) - 6 * np.log(1 / 2))
    assert dynamics.gain(1) == 0.0


def test_one_table_for_each_context():
    losses = TabularLossClass(per_context=True).oracle(LAYOUT)
    losses.observe_many(BY_HAND)
    fit = losses.fit()
    assert losses.losses(fit, "a")[0, 0] == 0.5
    assert losses.losses(fit, "b")[0, 0] == 0.5
    assert losses.losses(fit, "a")[2, 0] == 0.0
    assert losses.losses(fit, "b")[2, 0] == 1.0
    assert (losses.losses(fit, "never seen") == 0).all()


def test_smoothing_and_support():
    allowed = [np.array([[[True, True], [True, False]]]), np.ones((2, 2, 2), bool)]
    dynamics = TabularDynamicsClass(allowed, smoothing=0.5).oracle(LAYOUT)
    dynamics.observe_many(BY_HAND)
    first, _ = dynamics.transitions(dynamics.fit(), None)
    np.testing.assert_allclose(first[0, 0], [2.5 / 4, 1.5 / 4])
    assert np.array_equal(first[0, 1], [1.0, 0.0])
    outside = of.Trajectory("a", np.array([0, 2, 3, 5]), np.array([1, 0, 0]), np.zeros(3))
    with pytest.raises(of.OpoError, match="layer 0 from state 0 under action 1 to state 2 at context 'a' is outside the support"):
        dynamics.observe(outside)
    assert dynamics.episodes == 3
    assert dynamics.error(1, outside) == np.inf


def test_deterministic_transitions_settle_on_few_fits():
    layout = of.Layout([1, 2, 2], 1)
    blocks = [np.array([[[1.0, 0.0]]]), np.array([[[0.0, 1.0]], [[1.0, 0.0]]])]
    cmdp = of.FiniteContexts([of.LayeredMDP(layout, np.zeros(layout.shape), blocks)])
    oracle = TabularDynamicsClass().oracle(layout)
    fits = set()
    for t in TrajectoryLog.collect(cmdp, 50):
        oracle.observe(t)
        fits.add(oracle.fit())
    assert fits == {1}


def test_a_support_in_any_form_is_the_same_support():
    rng = np.random.default_rng(0)
    layout = of.Layout([1, 3, 4], 2)
    allowed = [rng.random((1, 2, 3)) < 0.6, rng.random((3, 2, 4)) < 0.6]
    for block in allowed:
        block[..., 0] = True
    p = [block / block.sum(axis=2, keepdims=True) for block in allowed]
    mdp = of.LayeredMDP(layout, np.zeros(layout.shape), p)
    csr = [sp.csr_array(block.reshape(-1, block.shape[2])) for block in allowed]
    sparse = of.LayeredMDP(layout, np.zeros(layout.shape), [sp.csr_array(block.reshape(-1, block.shape[2])) for block in p])
    log = TrajectoryLog.collect(of.FiniteContexts([mdp]), 200)
    results = []
    for form in (allowed, mdp, mdp.transitions, csr, sparse):
        support = Support(layout, form)
        assert support.n_cells == sum(int(block.sum()) for block in allowed)
        oracle = TabularDynamicsClass(form).oracle(layout)
        oracle.observe_many(log)
        results.append(numbers(oracle, oracle.fit(), 0))
        of.LayeredMDP(layout, mdp.losses, oracle.transitions(1, 0))
    for result in results[1:]:
        assert np.array_equal(result, results[0])
    with pytest.raises(of.OpoError, match="support: layer 0, state 0, action 1 allows no next state"):
        Support(layout, [np.array([[[True] * 3, [False] * 3]]), allowed[1]])
    with pytest.raises(of.OpoError, match="support is missing: all 9000090000 transitions"):
        Support(of.Layout([1, 30_000, 100_000], 3))
    with pytest.raises(of.OpoError, match="support has 1 arrays: H - 1 = 2"):
        Support(layout, allowed[:1])
    with pytest.raises(of.OpoError, match=r"support\[1\] has shape \(3, 2, 3\)"):
        Support(layout, [allowed[0], allowed[1][..., :3]])


def test_masked_rows_need_no_support():
    mask = np.array([[True, False], [True, True], [True, True], [True, True], [True, True]])
    allowed = [np.array([[[True, True], [False, False]]]), np.ones((2, 2, 2), bool)]
    oracle = TabularDynamicsClass(allowed).oracle(LAYOUT, mask)
    oracle.observe_many(BY_HAND)
    mdp = of.LayeredMDP(LAYOUT, np.zeros(LAYOUT.shape), oracle.transitions(oracle.fit(), None), mask)
    assert mdp.transitions.probability(0, 0, 0, 0) == pytest.approx(2 / 3)


def test_the_errors_of_tables_fall_like_one_over_root_n():
    layout, sizes = of.Layout([1, 3, 3], 2), [100, 1000, 10_000, 100_000]
    errors = {"losses": np.empty((6, 4)), "transitions": np.empty((6, 4))}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth, blocks = rng.random((2, *layout.shape)), random_blocks(rng, layout, 2)
        log = draw_log(rng, layout, [0, 1], truth, blocks, sizes[-1])
        loss_oracle, dynamics_oracle = (
            TabularLossClass(per_context=True).oracle(layout),
            TabularDynamicsClass(per_context=True).oracle(layout),
        )
        for i, (lo, hi) in enumerate(zip([0, *sizes[:-1]], sizes, strict=True)):
            for oracle in (loss_oracle, dynamics_oracle):
                oracle.observe_many(log[lo:hi])
                oracle.fit()
            errors["losses"][seed, i] = np.linalg.norm([loss_oracle.losses(loss_oracle.fit(), c) - truth[c] for c in (0, 1)])
            gaps = [numbers(dynamics_oracle, dynamics_oracle.fit(), c) - np.concatenate([b[c].ravel() for b in blocks]) for c in (0, 1)]
            errors["transitions"][seed, i] = np.linalg.norm(gaps)
    for name, table in errors.items():
        assert exponent(sizes, table) == pytest.approx(-0.5, abs=0.08), name


@given(st.integers(1, 6), st.lists(st.lists(st.tuples(st.integers(0, 5), st.floats(-5, 5)), max_size=4), max_size=30))
def test_versions_read_like_copies_kept_of_everything(n, writes):
    versions, table, copies = Versions(np.zeros(n)), np.zeros(n), {0: np.zeros(n)}
    for number, changes in enumerate(writes, start=1):
        cells = np.array(sorted({cell % n for cell, _ in changes}), np.int64)
        values = np.arange(cells.size) + 0.5 * number
        if cells.size:
            versions.write(number, cells, values)
            table[cells] = values
        copies[number] = table.copy()
    again = Versions.restored(np.zeros(n), Fields(versions.state("x."), "a state"), "x.", len(writes))
    for number, copy in copies.items():
        assert np.array_equal(versions.read(number), copy)
        assert np.array_equal(again.read(number), copy)
