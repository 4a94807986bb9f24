"""Kernels for weights, input checks, counts, sampling, scores and generated models, against their NumPy twins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
import twins
from kernel_calls import MODELS, close, model, name_of, packed_block, policies
from twins import Rows

import opo_fast as of
from opo_fast.kernels import generate, ingest
from opo_fast.kernels.counts import tabular_step
from opo_fast.kernels.rollout import rollout
from opo_fast.kernels.scores import add_rows, path_probabilities
from opo_fast.kernels.weights import bonus, check_policy, exponential_weights

cases = pytest.mark.parametrize("case", MODELS, ids=name_of)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_bonus():
    visits, out = np.array([0.0, 0.5, 1.0, 3.0, 1e6]), np.empty(5)
    bonus(visits, 4.0, out)
    assert out.tolist() == [1.0, 1.0, 1.0, 0.5, 2.0 / (1.0 + 1e6)]


def test_exponential_weights():
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(5), 7)
    policy[2] = [0, 0.5, 0, 0.5, 0]
    policy[3] = [0, 0, 1, 0, 0]
    q, out = rng.random((7, 5)) * 3, np.empty((7, 5))
    q[4, 1] = 900.0
    exponential_weights(policy, q, 0.9, out)
    weights = policy * np.exp(-0.9 * (q - q.min(axis=1, keepdims=True)))
    close(out, weights / weights.sum(axis=1, keepdims=True))
    assert (out[2:4] == 0).tolist() == (policy[2:4] == 0).tolist()


@pytest.mark.parametrize("masked", [False, True])
def test_faults_of_a_policy(masked):
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 4)
    allowed = np.ones((4, 3) if masked else (0, 0), bool)
    if masked:
        allowed[1, 2] = False
        policy[1] = [0.25, 0.75, 0.0]
    assert check_policy(policy, allowed, 1e-8) == 0
    for place in itertools.product(range(4), range(3)):
        s, a = place
        pair, forbidden = 8 * (s * 3 + a), masked and place == (1, 2)
        for value, code in ((np.nan, 1), (np.inf, 1), (-np.inf, 1), (-0.5, 2)):
            faulty = policy.copy()
            faulty[s, a] = value
            assert check_policy(faulty, allowed, 1e-8) == code + pair
        faulty = policy.copy()
        faulty[s, a] += 1e-7
        assert check_policy(faulty, allowed, 1e-6) == (3 + pair if forbidden else 0)
        assert check_policy(faulty, allowed, 1e-8) == (3 + pair if forbidden else 4 + 8 * s * 3)


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in MODELS if case[0] == "dense" and case[3] is np.float64], ids=name_of)
def test_a_step_on_tables_of_counts(case):
    mdp = model(case)
    m, rng = Rows(mdp), np.random.default_rng(1)
    m.P = [rows * (rng.random((len(rows), 1)) < 0.7) for rows in m.P]
    frequencies = np.concatenate([rows.ravel() for rows in m.P])
    losses, policy, sums = rng.random(m.state.size) - 0.4, policies(mdp, 1)[0], rng.random(m.state.size)
    out, sum_q, v = policy.copy(), sums.copy(), np.empty(m.n_states)
    tabular_step(packed_block(mdp), mdp.layout.offsets, mdp.transitions.rows, frequencies, losses, out, sum_q, v, 0.7)
    q, expected = twins.backward(m, losses, lambda q: m.sums(policy * np.maximum(0.0, q)))
    close(v, expected)
    close(sum_q, sums + np.maximum(0.0, q))
    close(out, twins.softmax(m, -0.7 * sum_q))


# -- checks of what comes in -------------------------------------------------------------------------------------------


def test_rows_in_order():
    indptr = np.array([0, 2, 2, 5])
    assert ingest.unordered_row(indptr, np.array([0, 3, 1, 2, 4], np.uint32), 5) == -1
    for indices, row in (([0, 0, 1, 2, 4], 0), ([3, 0, 1, 2, 4], 0), ([0, 3, 1, 2, 5], 2), ([0, 3, 1, 4, 2], 2), ([9, 9, 1, 2, 4], 0)):
        assert ingest.unordered_row(indptr, np.array(indices, np.uint32), 5) == row
    for pointer, row in (([0, 2, 1, 5], 1), ([0, 2, 2, 6], 2)):
        assert ingest.unordered_row(np.array(pointer), np.array([0, 3, 1, 2, 4], np.uint32), 5) == row


def test_numbers_between_0_and_1():
    place = np.zeros(1, np.int64)
    assert ingest.check_unit(np.array([0.0, 0.5, 1.0]), place) == 0
    for value in (-1e-300, 1.0 + 1e-15, np.nan, np.inf, -np.inf):
        assert ingest.check_unit(np.array([0.0, 1.0, value, -5.0]), place) == 1
        assert place[0] == 2


def test_paths():
    layers = np.array([0, 1, 3, 5])
    good = np.array([0, 2, 4, 5]), np.array([0, 1, 1]), np.array([0.0, 0.5, 1.0])
    assert ingest.check_path(*good, layers, 2)
    states = [(0, 0, 1), (0, 0, -1), (0, 1, 3), (0, 1, 0), (0, 2, 5), (0, 3, 4)]
    for which, place, value in [*states, (1, 0, 2), (1, 2, -1), (2, 1, -0.1), (2, 1, 1.5), (2, 0, np.nan)]:
        path = [part.copy() for part in good]
        path[which][place] = value
        assert not ingest.check_path(*path, layers, 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_blocks_as_they_come_in(dtype):
    # Sums without rounding.
    rows = (np.random.default_rng(0).multinomial(64, np.full(4, 0.25), 6) / 64).astype(dtype)
    sums, place, before = np.empty(6), np.zeros(2, np.int64), np.zeros(3, dtype)
    dense, csr = np.concatenate([before, rows.T.ravel()]), np.concatenate([before, rows.ravel()])
    indptr = np.array([0, *range(3, 28, 4)])

    def check_both(i, j, value):
        one, other = dense.copy(), csr.copy()
        one[3 + j * 6 + i] = other[3 + i * 4 + j] = value
        yield ingest.check_dense(one, 3, 6, 4, 1e-6, sums, place), (i, j)
        yield ingest.check_csr(other, indptr, 1, 6, 1e-6, sums, place), (i, 3 + i * 4 + j)

    for code, _ in check_both(0, 0, rows[0, 0]):
        assert code == 0
        assert sums.tolist() == [1.0] * 6
    for i, j in itertools.product(range(6), range(4)):
        for value in (-0.125, np.nan, np.inf):
            for code, expected in check_both(i, j, value):
                assert (code, *place) == (1, *expected)
        for code, _ in check_both(i, j, rows[i, j] + 0.25):
            assert (code, place[0]) == (2, i)
            assert sums[i] == 1.25


def test_small_dense_models_are_laid_out():
    layers, n_actions = np.array([0, 1, 6, 15]), 2
    rng = np.random.default_rng(0)
    blocks = [rng.dirichlet(np.ones(5), 2), rng.dirichlet(np.ones(9), 10)]
    flat, start = np.concatenate([block.ravel() for block in blocks]), np.array([0, 10, 100])
    data, sums = np.empty(100), np.empty(10)
    assert ingest.ingest_dense(flat, start, layers, n_actions, 1e-8, sums, data)
    assert data.tolist() == [*blocks[0].T.ravel(), *blocks[1].T.ravel()]
    for value in (-0.1, np.nan, 2.0, np.inf):
        for place in (0, 3, 10, 18, 99):
            wrong = flat.copy()
            wrong[place] = value
            assert not ingest.ingest_dense(wrong, start, layers, n_actions, 1e-8, sums, data)


@pytest.mark.parametrize(("n_rows", "n_next"), [(3, 4), (8, 8), (17, 19), (9, 3)])
def test_dense_blocks_are_taken(n_rows, n_next):
    rows = np.random.default_rng(0).dirichlet(np.ones(n_next), n_rows)
    data, sums = np.full(n_rows * n_next + 5, np.nan), np.empty(n_rows)
    assert ingest.take_dense(rows.ravel(), n_rows, n_next, 1e-8, sums, data, 2)
    assert data[2:-3].tolist() == rows.T.ravel().tolist()
    assert np.isnan(data[[0, 1, -3, -2, -1]]).all()
    close(sums, np.ones(n_rows))
    rows[-1, -1] += 1e-7
    assert not ingest.take_dense(rows.ravel(), n_rows, n_next, 1e-8, sums, data, 2)


CSR_FAULTS = {
    "order": lambda pointer, positions, values: positions.__setitem__(slice(0, 2), [3, 1]),
    "twice": lambda pointer, positions, values: positions.__setitem__(slice(0, 2), [1, 1]),
    "range": lambda pointer, positions, values: positions.__setitem__(1, 5),
    "negative position": lambda pointer, positions, values: positions.__setitem__(0, -1),
    "negative": lambda pointer, positions, values: values.__setitem__(slice(0, 2), [-0.5, 1.5]),
    "nan": lambda pointer, positions, values: values.__setitem__(2, np.nan),
    "sum": lambda pointer, positions, values: values.__setitem__(3, 0.75),
    "first pointer": lambda pointer, positions, values: pointer.__setitem__(0, 1),
    "falling pointer": lambda pointer, positions, values: pointer.__setitem__(2, 1),
    "far pointer": lambda pointer, positions, values: pointer.__setitem__(3, 9),
    "short": lambda pointer, positions, values: pointer.__setitem__(3, 5),
}


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("fault", [None, *CSR_FAULTS])
def test_csr_blocks_are_taken(kind, fault):
    pointer, positions = np.array([0, 2, 4, 6]), np.array([0, 3, 1, 4, 2, 3], kind)
    values = np.array([0.25, 0.75, 0.5, 0.5, 0.125, 0.875])
    if fault:
        CSR_FAULTS[fault](pointer, positions, values)
    indptr, indices, data = np.full(6, -7), np.full(9, 77, np.uint32), np.full(9, np.nan)
    wide = int(kind is np.int64)
    taken = ingest.take_csr(pointer, positions.view(np.uint32), wide, values, 5, 1e-8, 1, 2, indptr, indices, data)
    assert taken == (fault is None)
    if taken:
        assert indptr.tolist() == [-7, 2, 4, 6, 8, -7]
        assert indices.tolist() == [77, 77, *positions, 77]
        assert data[2:8].tolist() == values.tolist()


def test_numbers_of_the_unit_interval_are_taken():
    values, out = np.array([0.0, 0.5, 1.0]), np.empty(3)
    assert ingest.take_unit(values, out)
    assert out.tolist() == values.tolist()
    for wrong in (-0.1, 1.1, np.nan):
        values[1] = wrong
        assert not ingest.take_unit(values, out)


# -- along a path ------------------------------------------------------------------------------------------------------


def drawn(probabilities, u):
    """The first outcome whose cumulative probability exceeds `u`, else the last one with positive probability."""
    total, last = 0.0, None
    for i, p in enumerate(probabilities):
        if p > 0:
            total, last = total + p, i
            if u < total:
                return i
    return last


@cases
def test_rollouts(case):
    mdp = model(case, density=0.5)
    m, t, h = Rows(mdp), mdp.transitions, mdp.layout.horizon
    policy = policies(mdp, 1)[0]
    policy[:] = np.where(np.random.default_rng(2).random(policy.size) < 0.3, 0.0, policy)
    policy[m.first[:-1]] += 1.0 - m.sums(policy)
    for seed in range(20):
        uniforms = np.random.default_rng(seed).random((2, h))
        if seed > 16:
            # Rounding may leave a uniform above the last sum.
            uniforms[:] = 1.0
        states, chosen = np.empty(h + 1, np.int64), np.empty(h, np.int64)
        rollout(*t.arguments, policy, uniforms[0], uniforms[1], states, chosen)
        s = 0
        for k in range(h):
            r = m.first[s] + drawn(policy[m.first[s] : m.first[s + 1]], uniforms[0, k])
            assert (states[k], chosen[k]) == (s, r)
            if k < h - 1:
                s = m.states(k + 1).start + drawn(m.P[k][r - m.rows(k).start], uniforms[1, k])
        assert states[h] == m.n_states
        out = np.empty(h - 1)
        path_probabilities(*t.arguments, chosen, states, out)
        assert out.tolist() == [m.P[k][chosen[k] - m.rows(k).start, states[k + 1] - m.states(k + 1).start] for k in range(h - 1)]


def test_a_stored_zero_is_never_drawn():
    """Uniforms of 0 and 1, with stored zeros as the first and last entry of each row."""
    block = sp.csr_array((np.array([0.0, 0.25, 0.75, 0.0] * 2), np.tile(np.arange(4), 2), np.array([0, 4, 8])), shape=(2, 4))
    assert block.nnz == 8
    layout = of.Layout([1, 4], 2)
    mdp = of.LayeredMDP(layout, np.zeros(layout.shape), [block])
    states, chosen = np.empty(3, np.int64), np.empty(2, np.int64)
    for u, expected in ((0.0, 2), (1.0, 3)):
        uniforms = np.full(2, u)
        rollout(*mdp.transitions.arguments, np.full(10, 0.5), uniforms, uniforms, states, chosen)
        assert states.tolist() == [0, expected, 5]


@pytest.mark.parametrize("case", [MODELS[0], MODELS[5]], ids=name_of)
def test_probabilities_of_steps_that_cannot_be(case):
    mdp = model(case, density=0.4)
    m = Rows(mdp)
    steps = range(m.horizon - 1)
    chosen = np.array([m.rows(k).start for k in range(m.horizon)])
    states = np.array([0, *(m.states(k + 1).start + np.argmin(m.P[k][0]) for k in steps), m.n_states])
    out = np.empty(m.horizon - 1)
    path_probabilities(*mdp.transitions.arguments, chosen, states, out)
    assert out.tolist() == [m.P[k][0].min() for k in steps]
    assert 0.0 in out


# -- least squares -----------------------------------------------------------------------------------------------------


def test_rows_of_least_squares_problems():
    """R'R, with R upper triangular, is the sum of the outer products of the rows, also if features and targets are 0."""
    rng = np.random.default_rng(0)
    width, which = 5, rng.integers(0, 3, 40)
    rows = rng.normal(size=(40, width)) * (rng.random((40, width)) < 0.7)
    factors = np.zeros(3 * width * width)
    add_rows(factors, width, which, rows.ravel().copy())
    for i, block in enumerate(factors.reshape(3, width, width)):
        assert not np.tril(block, -1).any()
        close(block.T @ block, rows[which == i].T @ rows[which == i])


# -- generated models --------------------------------------------------------------------------------------------------


def written(counts, fill, n_rows):
    """The rows that a pair of kernels writes: increasing next states and their probabilities."""
    lengths = np.empty(n_rows, np.int64)
    counts(lengths)
    indptr = np.concatenate([[2], 2 + np.cumsum(lengths)])
    data, indices = np.full(indptr[-1] + 1, np.nan), np.zeros(indptr[-1] + 1, np.uint32)
    assert fill(indptr, data, indices) in (None, -1)
    assert np.isnan(data[[0, 1, -1]]).all()
    rows = []
    for lo, hi in itertools.pairwise(indptr):
        states = indices[lo:hi].tolist()
        assert states == sorted(set(states))
        rows.append(dict(zip(states, data[lo:hi].tolist(), strict=True)))
    return rows


def same_rows(rows, expected):
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        assert all(row[j] == pytest.approx(p, abs=1e-14) for j, p in other.items())


def test_inventories():
    levels, most = np.array([4, 3]), 2
    orders = np.array([[0, 0], [1, 0], [2, 2]])
    demand = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    excess = demand[:, ::-1].cumsum(axis=1)[:, ::-1].copy()
    states = np.arange(12)

    def expected(state, order):
        row = {}
        stock = [min(int(x) + int(y), int(n) - 1) for x, y, n in zip(divmod(state, 3), order, levels, strict=True)]
        for wanted in itertools.product(range(most + 1), repeat=2):
            left = [max(0, x - d) for x, d in zip(stock, wanted, strict=True)]
            j = left[0] * 3 + left[1]
            row[j] = row.get(j, 0.0) + math.prod(demand[item, d] for item, d in enumerate(wanted))
        return row

    rows = written(
        lambda counts: generate.inventory_counts(levels, orders, most, states, counts),
        lambda *out: generate.inventory_rows(levels, orders, most, demand, excess, states, *out),
        states.size * len(orders),
    )
    same_rows(rows, [expected(int(s), order) for s in states for order in orders])


def test_an_inventory_whose_rows_do_not_fit_is_reported():
    levels, orders, demand = np.array([3]), np.array([[0]]), np.array([[0.5, 0.5]])
    data, indices = np.empty(20), np.empty(20, np.uint32)
    arguments = levels, orders, 1, demand, np.array([[1.0, 0.5]]), np.array([0, 1, 2])
    assert generate.inventory_rows(*arguments, np.array([0, 1, 3, 5]), data, indices) == -1
    assert generate.inventory_rows(*arguments, np.array([0, 1, 4, 6]), data, indices) == 1


def test_networks_of_queues():
    levels, arrival, service = np.array([3, 2, 3]), np.array([0.3, 0.6, 0.0]), np.array([0.7, 1.0, 0.4])
    states = np.arange(18)

    def expected(state, action):
        row = {}
        jobs0 = [state // 6, state // 3 % 2, state % 3]
        for served, *came in itertools.product(range(2), repeat=4):
            p = service[action] if served else 1.0 - service[action]
            jobs = list(jobs0)
            if served and jobs0[action] > 0:
                jobs[action] -= 1
                if action + 1 < 3:
                    jobs[action + 1] = min(jobs[action + 1] + 1, levels[action + 1] - 1)
            for queue in range(3):
                p *= arrival[queue] if came[queue] else 1.0 - arrival[queue]
                jobs[queue] = min(jobs[queue] + came[queue], levels[queue] - 1)
            if p > 0.0:
                j = int(jobs[0] * 6 + jobs[1] * 3 + jobs[2])
                row[j] = row.get(j, 0.0) + p
        return row

    targets, chances = np.empty(64, np.int64), np.empty(64)
    rows = written(
        lambda counts: generate.queue_counts(levels, arrival, service, states, targets, chances, counts),
        lambda *out: generate.queue_rows(levels, arrival, service, states, targets, chances, *out),
        states.size * 3,
    )
    same_rows(rows, [expected(int(s), a) for s in states for a in range(3)])
