"""Backward recursion from slices of eight rows: the bits of that from CSR rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import twins
from kernel_calls import INTERPRETED, MODELS, chain_work, chunks_of, close, model, name_of, policies, together
from twins import Rows

import opo_fast as of
from opo_fast.kernels import row_slices
from opo_fast.kernels.chain import chain_steps
from opo_fast.kernels.evaluation import backward_sweep
from opo_fast.model.distinct import NO_PLAN
from opo_fast.model.layout import aligned
from opo_fast.model.slices import RowSlices

SPARSE = [case for case in MODELS if "csr" in case[0] and not case[2]] + [("csr", 1, False, np.float64), ("csr", 10, False, np.float64)]
cases = pytest.mark.parametrize("case", SPARSE, ids=name_of)


def copy_of(mdp, monkeypatch):
    """The copy, however much it is padded."""
    monkeypatch.setattr("opo_fast.model.slices.MOST_PADDED", 1e9)
    copy = RowSlices()
    copy.make(mdp.transitions)
    return copy


def sweep(monkeypatch, mdp, arguments, policy, n, chunk, greedy):
    t = mdp.transitions
    q, v, policy = aligned(t.n_rows), np.full(mdp.layout.n_states, np.nan), policy.copy()
    after = (NO_PLAN, chunk, t.width, 1, greedy, mdp.row_losses, policy, -1.0, q, v)
    together(monkeypatch, backward_sweep, arguments, after, n)
    return q, v, policy


def same_sweeps(monkeypatch, mdp, teams=(1, 2, 3)):
    t, copy, policy = mdp.transitions, copy_of(mdp, monkeypatch), policies(mdp, 1)[0]
    for greedy in (0, 1):
        expected = sweep(monkeypatch, mdp, t.arguments, policy, 1, 8, greedy)
        for n in teams:
            for chunk in chunks_of(mdp):
                found = sweep(monkeypatch, mdp, copy.arguments, policy, n, chunk, greedy)
                assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]
    q, v, _ = sweep(monkeypatch, mdp, copy.arguments, policy, 1, 8, 0)
    expected_q, expected_v = twins.evaluate(Rows(mdp), mdp.row_losses, policy)
    close(q, expected_q)
    close(v, expected_v)
    return copy


@cases
@pytest.mark.parametrize("density", [0.3, 0.9])
def test_sweeps_have_the_bits_of_csr(case, density, monkeypatch):
    same_sweeps(monkeypatch, model(case, density=density))


def ragged(lengths, n_next, seed=0):
    """Rows of these lengths, whose next states are spread over all."""
    rng = np.random.default_rng(seed)
    indices = [np.sort(rng.choice(n_next, n, replace=False)) for n in lengths]
    data = [rng.dirichlet(np.ones(n)) for n in lengths]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((np.concatenate(data), np.concatenate(indices), starts), shape=(len(lengths), n_next))


def in_two_layers(middle, n_actions, last):
    """A model whose second layer has the rows `middle`."""
    n_states = middle.shape[0] // n_actions
    layout = of.Layout([1, n_states, last], n_actions)
    first = ragged([n_states] * n_actions, n_states)
    return of.LayeredMDP(layout, np.random.default_rng(1).random(layout.shape), [first, middle])


def is_in_order(copy):
    slices = copy.arguments[2]
    return slices[2:-1:3] == 0


def test_rows_are_sorted_only_where_that_saves_entries(monkeypatch):
    rng = np.random.default_rng(3)
    even = same_sweeps(monkeypatch, in_two_layers(ragged([5] * 64, 20), 4, 20))
    assert is_in_order(even)[1:].all()
    assert even.arguments[1].size == 8 * 16 + 5 * 64
    mixed = same_sweeps(monkeypatch, in_two_layers(ragged(rng.permutation([1] * 32 + [15] * 32), 20), 8, 20))
    assert not is_in_order(mixed)[1:].any()
    # A slice of rows with 15 transitions has 15 columns, one with a transition each has one.
    assert mixed.arguments[1].size == 8 * 8 + 8 * (4 * 15 + 4)
    odd = same_sweeps(monkeypatch, in_two_layers(ragged(rng.integers(1, 16, 13 * 3), 20), 3, 20))
    assert odd.arguments[1].size > 0


def test_slices_whose_next_states_are_too_far_apart_for_16_bits(monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(row_slices, "_SPAN", 12)
    n_next = 40 if INTERPRETED else 70_000
    lengths = [3, 9, 8, 20, 1, 7, 2, 2, 6, 5, 4, 12, 13, 8, 4, 4]
    wide = ragged(lengths, n_next)
    close_by = ragged([min(n, 10) for n in lengths], 10, seed=1)
    close_by = sp.csr_array((close_by.data, close_by.indices + n_next - 10, close_by.indptr), shape=(16, n_next))
    mdp = in_two_layers(sp.csr_array(sp.vstack([wide, close_by, wide[:12]])), 2, n_next)
    copy = same_sweeps(monkeypatch, mdp, teams=(1,))
    least = copy.arguments[2][1::3]
    assert (least == row_slices._WIDE).any()
    assert (least >= n_next - 10).any()


@pytest.mark.parametrize("case", SPARSE[:2], ids=name_of)
@pytest.mark.parametrize("n", [1, 3])
def test_chains_have_the_bits_of_csr(case, n, monkeypatch):
    mdp = model(case)
    t, copy, results = mdp.transitions, copy_of(mdp, monkeypatch), []
    for arguments in (t.arguments, copy.arguments):
        store = aligned(5 * t.n_rows).reshape(5, -1)
        store[0] = t.gather(mdp.uniform_policy())
        visits, sum_q, v = np.zeros(t.n_rows), np.zeros(t.n_rows), np.zeros(mdp.layout.n_states)
        scratch = aligned(2 * n * t.n_rows).reshape(2 * n, -1)
        after = (
            3, 4, 0, 8, t.width, 0, 0, mdp.row_losses, visits, store, sum_q, v, *chain_work(mdp, n, 3, sliced=True),
            (0.4, np.full(mdp.layout.horizon, 0.1), 2.0), 0.3, scratch,
        )  # fmt: skip
        together(monkeypatch, chain_steps, arguments, after, n)
        results.append([array.tobytes() for array in (store, visits, sum_q, v)])
    assert results[0] == results[1]
