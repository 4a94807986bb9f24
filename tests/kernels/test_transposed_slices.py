"""The transposed copy of CSR transitions and the forward recursion that gathers from it."""

from __future__ import annotations

import numpy as np
import pytest
import twins
from kernel_calls import MODELS, close, forward_scratch, model, name_of, policies, together, wide_model
from twins import Rows

from opo_fast.kernels._groups import SORTED
from opo_fast.kernels.forward import STATES, visit_sweep
from opo_fast.kernels.transposed_slices import visit_slices
from opo_fast.model.layout import aligned
from opo_fast.model.slices import TransposedSlices

SPARSE = [case for case in MODELS if "csr" in case[0]]


def copy_of(mdp, parts):
    copy = TransposedSlices()
    copy.make(mdp.transitions, parts)
    return copy


def visit(monkeypatch, mdp, policy, n, parts, tolerance=1e-8):
    copy, t = copy_of(mdp, parts), mdp.transitions
    d, _, private = forward_scratch(mdp, n, parts)
    visits = aligned(t.n_rows)
    visits[:] = np.nan
    after = (parts, t.width, policy, tolerance, d, visits, private)
    return visits, any(together(monkeypatch, visit_slices, copy.arguments, after, n))


def scattered(monkeypatch, mdp, policy, parts):
    t = mdp.transitions
    d, w, private = forward_scratch(mdp, 1, parts)
    visits = aligned(t.n_rows, zero=True)
    together(monkeypatch, visit_sweep, t.arguments, (parts, t.width, policy.reshape(1, -1), 0, 1e-8, d, w, visits, private), 1)
    return visits


@pytest.mark.parametrize("case", SPARSE, ids=name_of)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_occupancy_has_the_bits_of_the_scatter(case, n, monkeypatch):
    mdp = model(case)
    policy = policies(mdp, 1)[0]
    for parts in (1, 3):
        visits, fault = visit(monkeypatch, mdp, policy, n, parts)
        assert not fault
        assert visits.tobytes() == scattered(monkeypatch, mdp, policy, parts).tobytes()
        close(visits, twins.occupancy(Rows(mdp), policy))


@pytest.mark.parametrize("sizes", [[1, STATES + 40, 9], [1, 9, 2 * SORTED + 5, 3]])
def test_layers_of_more_states_than_are_worked_on_or_sorted_at_a_time(sizes, monkeypatch):
    mdp = model(("csr", 3, False, np.float64), sizes=sizes, density=0.1)
    policy = policies(mdp, 1)[0]
    for parts in (1, 2):
        visits, _ = visit(monkeypatch, mdp, policy, 2, parts)
        assert visits.tobytes() == scattered(monkeypatch, mdp, policy, parts).tobytes()


def test_more_rows_than_caches_hold(monkeypatch):
    """Weights are asked for ahead there."""
    mdp, P = wide_model(monkeypatch)
    policy, n_states = policies(mdp, 1)[0], P.shape[1]
    for parts in (1, 2):
        visits, fault = visit(monkeypatch, mdp, policy, 1, parts)
        assert not fault
        assert visits.tobytes() == scattered(monkeypatch, mdp, policy, parts).tobytes()
    one, other = visits[-4 * n_states :].reshape(2, 2 * n_states)
    close(other.reshape(n_states, 2).sum(axis=1), P.T @ one)


def test_a_row_that_is_no_distribution_is_reported(monkeypatch):
    mdp = model(SPARSE[0])
    policy = policies(mdp, 1)[0]
    policy[-1] = 1.5
    assert visit(monkeypatch, mdp, policy, 1, 1)[1]
    assert not visit(monkeypatch, mdp, policy, 1, 1, -1.0)[1]


def test_slices_hold_the_transposed_block():
    """Lane by lane, a slice's entries are the columns of a part of the block; within a window the fullest states come first."""
    mdp = model(("csr", 3, False, np.float64), sizes=[1, 40, SORTED + 21, 2], density=0.2)
    parts, n_rows, n_next = 2, 60, SORTED + 21
    starts, states, positions, weights, first, *_ = copy_of(mdp, parts).arguments
    block = mdp.transitions.arrays()[1].toarray()
    slices = -(-n_next // 8)
    for part in range(parts):
        rows = block[part * n_rows : (part + 1) * n_rows]
        begin = int(first[1]) + part * slices
        order = states[8 * begin : 8 * begin + n_next]
        assert sorted(order) == list(range(n_next))
        counts = (rows != 0).sum(axis=0)[order]
        assert (np.diff(counts[:SORTED]) <= 0).all()
        assert (np.diff(counts[SORTED:]) <= 0).all()
        for lane, state in enumerate(order):
            entries = slice(int(starts[begin + lane // 8]) + lane % 8, int(starts[begin + lane // 8 + 1]), 8)
            column = np.zeros(n_rows)
            np.add.at(column, positions[entries], weights[entries])
            assert column.tolist() == rows[:, state].tolist()
