"""Kernels for many policies or many models, each with its own result, against their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest
import twins
from kernel_calls import MODELS, close, model, name_of, own, parts_of, policies, together
from twins import Rows

from opo_fast.kernels import many, many_csr, models
from opo_fast.model.layout import aligned
from opo_fast.model.slices import TransposedSlices

teams = pytest.mark.parametrize("n", [1, 2, 3])
dense_cases = pytest.mark.parametrize("case", [case for case in MODELS if "csr" not in case[0]], ids=name_of)
csr_cases = pytest.mark.parametrize("case", [case for case in MODELS if "csr" in case[0]], ids=name_of)
cases = pytest.mark.parametrize("case", MODELS, ids=name_of)

COUNTS = (1, 6, 20)


def back(monkeypatch, mdp, store, n, keep, tolerance=1e-8):
    t, count, most = mdp.transitions, len(store), max(mdp.layout.layer_sizes)
    rows, v = most * mdp.layout.n_actions + 8, np.full((count, mdp.layout.n_states), np.nan)
    q = np.full((count, t.n_rows), np.nan) if keep else aligned(0 if t.kind else n * many.NARROW * rows)
    after = (8, t.width, t.n_rows if keep else 0, mdp.row_losses, store, tolerance, q.reshape(-1))
    if t.kind:
        kernel, room = many_csr.evaluate_csr, 2 * many_csr.WIDE * (most + 8 * mdp.layout.n_actions)
        after = (most, *after, v.reshape(-1), aligned(n * room))
    else:
        kernel, lines = many.evaluate_dense, -(-count // many.NARROW) * many.NARROW
        after = (*after, v, aligned(n * rows * most), aligned(lines * most), aligned(64 * n))
    fault = any(together(monkeypatch, kernel, t.arguments, after, n))
    return q if keep else None, v, fault


@cases
@teams
def test_values_of_many_policies(case, n, monkeypatch):
    mdp = model(case)
    for count in COUNTS:
        store = policies(mdp, count)
        q, v, fault = back(monkeypatch, mdp, store, n, True)
        assert not fault
        for i, policy in enumerate(store):
            expected = twins.evaluate(Rows(mdp), mdp.row_losses, policy)
            close(q[i], expected[0])
            close(v[i], expected[1])
        assert (back(monkeypatch, mdp, store, n, False, -1.0)[1] == v).all()


def visit(monkeypatch, mdp, store, n, parts, tolerance=1e-8, sliced=False):
    t, most = mdp.transitions, max(mdp.layout.layer_sizes)
    visits = np.zeros((len(store), t.n_rows))
    if t.kind:
        d, w, private = aligned(n * 16 * most), aligned(n * 8 * t.most_rows), aligned(n * 8 * most)
        slices = TransposedSlices().arrays(t, 0)
        if sliced:
            copy = TransposedSlices()
            copy.make(t, parts)
            slices = copy.arguments[:5]
        after = (*slices, parts, t.width, t.n_rows, store, tolerance, d, w, private, visits.reshape(-1))
        return visits, any(together(monkeypatch, many_csr.occupancy_csr, t.arguments, after, n))
    width = -(-(t.most_rows + 8) // 8) * 8
    d = np.full((n * many.PANEL, mdp.layout.n_states + 8), np.nan)
    after = (t.width, store, tolerance, d, aligned(n * many.PANEL * width), aligned(n * 64 * many.PANEL), visits)
    return visits, any(together(monkeypatch, many.occupancy_dense, t.arguments, after, n))


@cases
@teams
def test_occupancies_of_many_policies(case, n, monkeypatch):
    mdp = model(case)
    for count in (*COUNTS, 26):
        store = policies(mdp, count)
        for parts in parts_of(mdp):
            visits, fault = visit(monkeypatch, mdp, store, n, parts)
            assert not fault
            for i, policy in enumerate(store):
                close(visits[i], twins.occupancy(Rows(mdp), policy))
            if mdp.transitions.kind:
                # The copy in slices has the same sums.
                assert visit(monkeypatch, mdp, store, n, parts, sliced=True)[0].tobytes() == visits.tobytes()


def test_more_rows_than_a_block(monkeypatch):
    mdp = model(("dense", 4, False, np.float64), sizes=[1, many.BLOCK // 4 + 3, 9])
    store = policies(mdp, 4)
    visits, _ = visit(monkeypatch, mdp, store, 1, 1)
    close(visits[3], twins.occupancy(Rows(mdp), store[3]))


@cases
@pytest.mark.parametrize("change", [0.1, -2.0, np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 17, -1])
def test_rows_that_are_no_distributions_are_noticed(case, change, row, monkeypatch):
    """In the first layer, where rows may fill vectors, and at the end, where they may not; and in the last of the policies."""
    mdp = model(case)
    store = policies(mdp, 9)
    if change == -2.0:
        # The sum is still right.
        state = np.searchsorted(mdp.transitions.rows, row % store.shape[1], side="right")
        other = mdp.transitions.rows[state] - 1
        if other == row % store.shape[1]:
            other = mdp.transitions.rows[state - 1]
        store[8, other] -= change
    store[8, row] += change
    assert back(monkeypatch, mdp, store, 1, True)[2]
    assert not back(monkeypatch, mdp, store, 1, True, -1.0)[2]
    assert visit(monkeypatch, mdp, store, 1, 1)[1]
    assert not visit(monkeypatch, mdp, store, 1, 1, -1.0)[1]


# -- many models -----------------------------------------------------------------------------------------------------------


def several(case):
    """Models with the same layout and mask, their table, and their common arrays."""
    # The same seed gives the same mask.
    mdps = [model(case, seed=0 if case[2] else seed) for seed in range(5)]
    t = mdps[0].transitions
    table = np.array([one.transitions.places + one.loss_place for one in mdps], np.int64)
    assert table.shape[1] == models.TABLE
    before = (table, t.data, t.indptr, t.indices, t.block, mdps[0].row_losses, t.layout.offsets, t.rows)
    return mdps, before


@cases
@teams
@pytest.mark.parametrize("greedy", [0, 1])
def test_values_of_many_models(case, n, greedy, monkeypatch):
    mdps, before = several(case)
    t, n_states = mdps[0].transitions, mdps[0].layout.n_states
    store, which = policies(mdps[0], 7), np.array([3, 0, 4, 1, 6])
    q, v = np.full((7, t.n_rows), np.nan), np.full((7, n_states), np.nan)
    for shared in (False, True):
        given = store[:1] if shared and not greedy else store
        chosen = given.copy()
        together(monkeypatch, models.backward_models, before, (which, t.width, 1, greedy, chosen, 1e-8, q, v), n)
        for mdp, i in zip(mdps, which, strict=True):
            policy = given[i if len(given) > 1 else 0]
            expected = twins.solve(Rows(mdp), mdp.row_losses) if greedy else twins.evaluate(Rows(mdp), mdp.row_losses, policy)
            close(q[i], expected[0])
            close(v[i], expected[1])
            if greedy:
                assert chosen[i].tolist() == expected[2].tolist()
        alone = np.full_like(v, np.nan)
        room = np.empty((n, max(256 * mdps[0].layout.n_actions, t.most_rows)))
        together(monkeypatch, models.backward_models, before, (which, t.width, 0, greedy, given.copy(), 1e-8, room, alone), n)
        np.testing.assert_array_equal(alone, v)


@cases
@teams
def test_occupancies_of_many_models(case, n, monkeypatch):
    mdps, before = several(case)
    t, layout = mdps[0].transitions, mdps[0].layout
    store, which = policies(mdps[0], 5), np.array([4, 3, 2, 1, 0])
    d, w = np.full((n, layout.n_states + 8), np.nan), np.full((n, max(t.most_rows, 256 * layout.n_actions)), np.nan)
    for given in (store, store[:1]):
        visits = np.zeros((5, t.n_rows))
        after = (which, t.width, given, 1e-8, d, w, np.full((n, 8 * max(layout.layer_sizes)), np.nan), visits)
        assert not any(together(monkeypatch, models.visit_models, before, after, n))
        for mdp, i in zip(mdps, which, strict=True):
            close(visits[i], twins.occupancy(Rows(mdp), given[i if len(given) > 1 else 0]))


def test_rows_are_moved_to_their_pairs():
    from opo_fast.kernels.weights import expand_rows

    for pairs in ([0, 1, 2], [1, 4], [0, 5], [3], [2, 3, 4, 5]):
        values = own(np.full(6, np.nan))
        values[: len(pairs)] = np.arange(1, len(pairs) + 1)
        expected = np.zeros(6)
        expected[pairs] = np.arange(1, len(pairs) + 1)
        expand_rows(np.array(pairs), values)
        assert values.tolist() == expected.tolist()
