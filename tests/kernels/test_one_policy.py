"""Backward and forward recursion and the policy chain at one context, against their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import twins
from kernel_calls import (
    INTERPRETED,
    MODELS,
    chain_work,
    chunks_of,
    close,
    forward_scratch,
    model,
    name_of,
    parts_of,
    policies,
    together,
    wide_model,
)
from twins import Rows

import opo_fast as of
from opo_fast.kernels import _groups, evaluation
from opo_fast.kernels._sync import GATE
from opo_fast.kernels.chain import chain_steps
from opo_fast.kernels.evaluation import backward_sweep
from opo_fast.kernels.forward import STATES, visit_sweep
from opo_fast.model.distinct import NO_PLAN
from opo_fast.model.layout import aligned

cases = pytest.mark.parametrize("case", MODELS, ids=name_of)
teams = pytest.mark.parametrize("n", [1, 2, 3])
NO_GATE = np.zeros(GATE, np.int64)


def backward(monkeypatch, mdp, policy, n, chunk, greedy, tolerance=1e-8):
    t = mdp.transitions
    q, v = aligned(t.n_rows), np.full(mdp.layout.n_states, np.nan)
    after = (NO_PLAN, chunk, t.width, 1, greedy, mdp.row_losses, policy, tolerance, q, v)
    return q, v, any(together(monkeypatch, backward_sweep, t.arguments, after, n))


def visit(monkeypatch, mdp, policy, n, parts, tolerance=1e-8):
    t = mdp.transitions
    d, w, private = forward_scratch(mdp, n, parts)
    visits = aligned(t.n_rows, zero=True)
    after = (parts, t.width, policy.reshape(1, -1), 0, tolerance, d, w, visits, private)
    return visits, any(together(monkeypatch, visit_sweep, t.arguments, after, n))


@cases
@teams
def test_evaluation(case, n, monkeypatch):
    mdp = model(case)
    policy = policies(mdp, 1)[0]
    expected = twins.evaluate(Rows(mdp), mdp.row_losses, policy)
    for chunk in chunks_of(mdp):
        q, v, fault = backward(monkeypatch, mdp, policy, n, chunk, 0)
        assert not fault
        close(q, expected[0])
        close(v, expected[1])


@teams
def test_more_values_than_caches_hold(n, monkeypatch):
    """They are asked for ahead there, if neighbouring states lead far apart."""
    mdp, P = wide_model(monkeypatch)
    policy, n_states = policies(mdp, 1)[0], P.shape[1]
    for greedy in (0, 1):
        q, v, fault = backward(monkeypatch, mdp, policy, n, STATES, greedy)
        assert not fault
        tail = slice(-4 * n_states, None)
        q1, q2 = q[tail].reshape(2, -1)
        close(np.concatenate([q1, q2]), mdp.row_losses[tail] + np.concatenate([P @ v[-n_states:], np.zeros(2 * n_states)]))
        pairs = q[tail].reshape(-1, 2)
        close(v[-2 * n_states :], pairs.min(axis=1) if greedy else (policy[tail].reshape(-1, 2) * pairs).sum(axis=1))


@cases
@teams
@pytest.mark.parametrize("greedy", [0, 1])
def test_values_alone(case, n, greedy, monkeypatch):
    mdp = model(case)
    t, policy = mdp.transitions, policies(mdp, 1)[0]
    for chunk in chunks_of(mdp):
        expected = backward(monkeypatch, mdp, policy.copy(), n, chunk, greedy)[1]
        v, given = np.full(mdp.layout.n_states, np.nan), policy.copy()
        q = aligned(n * min(chunk, max(mdp.layout.layer_sizes)) * mdp.layout.n_actions if t.kind else t.most_rows)
        after = (NO_PLAN, chunk, t.width, 0, greedy, mdp.row_losses, given, 1e-8, q, v)
        together(monkeypatch, backward_sweep, t.arguments, after, n)
        assert (v == expected).all()
        assert (given == policy).all()


STATIONARY = [case for case in MODELS if case[0].startswith("stationary")]
STATIONARY += [("stationary", 3, True, np.float64), ("stationary csr", 3, True, np.float64)]


@pytest.mark.parametrize("case", STATIONARY, ids=name_of)
@teams
@pytest.mark.parametrize("greedy", [0, 1])
def test_layers_that_are_copies(case, n, greedy, monkeypatch):
    mdp = model(case, sizes=[1, 13, 13, 13])
    t, d, given = mdp.transitions, mdp.transitions.distinct, policies(mdp, 1)[0]
    expected = twins.solve(Rows(mdp), mdp.row_losses) if greedy else twins.evaluate(Rows(mdp), mdp.row_losses, given)
    for chunk in chunks_of(mdp):
        own = backward(monkeypatch, mdp, given.copy(), n, chunk, greedy)
        q, v, policy = aligned(t.n_rows), np.full(mdp.layout.n_states, np.nan), given.copy()
        plan = d.plan(own_losses=True, own_policy=False, start_alone=False)
        after = (plan, chunk, t.width, 1, greedy, mdp.own_row_losses, policy, 1e-8, q, v)
        together(monkeypatch, backward_sweep, t.own_arguments, after, n)
        close(q, expected[0])
        close(v, expected[1])
        assert (q == own[0]).all()
        assert (v == own[1]).all()
        # Values of two layers at a time, and losses of all layers.
        two = np.full(d.two_layers, np.nan)
        work = aligned(n * min(chunk, 13) * mdp.layout.n_actions if t.kind else t.most_rows)
        plan = d.plan(own_losses=False, own_policy=False, start_alone=True)
        after = (plan, chunk, t.width, 0, greedy, mdp.row_losses, given, -1.0, work, two)
        together(monkeypatch, backward_sweep, t.own_arguments, after, n)
        assert two[d.first_value] == v[0]


@cases
@teams
def test_planning(case, n, monkeypatch):
    mdp = model(case)
    expected = twins.solve(Rows(mdp), mdp.row_losses)
    for chunk in chunks_of(mdp):
        policy = aligned(mdp.transitions.n_rows)
        q, v, _ = backward(monkeypatch, mdp, policy, n, chunk, 1, -1.0)
        close(q, expected[0])
        close(v, expected[1])
        assert policy.tolist() == expected[2].tolist()


@cases
@teams
def test_occupancy(case, n, monkeypatch):
    mdp = model(case)
    policy = policies(mdp, 1)[0]
    expected = twins.occupancy(Rows(mdp), policy)
    for parts in parts_of(mdp):
        visits, fault = visit(monkeypatch, mdp, policy, n, parts)
        assert not fault
        close(visits, expected)


@pytest.mark.filterwarnings("ignore:invalid value")
@cases
def test_a_row_that_is_no_distribution_is_reported(case, monkeypatch):
    mdp = model(case)
    for row in (0, mdp.transitions.n_rows // 2, mdp.transitions.n_rows - 1):
        for entry in (-0.25, 1.5, np.nan, np.inf):
            policy = policies(mdp, 1)[0]
            policy[row] = entry
            assert backward(monkeypatch, mdp, policy, 1, 8, 0)[2]
            assert visit(monkeypatch, mdp, policy, 1, 1)[1]
            assert not backward(monkeypatch, mdp, policy, 1, 8, 0, -1.0)[2]
            assert not visit(monkeypatch, mdp, policy, 1, 1, -1.0)[1]


@pytest.mark.parametrize("n_actions", [2, 3])
def test_tiny_weights_count_as_zero(n_actions):
    """The second action has probability 1e-100 and leads one state up, the others lead to the lowest state; 1e-300 counts as 0."""
    states, actions = np.arange(9).repeat(n_actions), np.tile(np.arange(n_actions), 9)
    block = np.zeros((9, n_actions, 9))
    block[states, actions, np.where(actions == 1, np.minimum(states + 1, 8), 0)] = 1.0
    layout = of.Layout([1, 9, 9], n_actions)
    mdp = of.LayeredMDP(layout, np.zeros(layout.shape), [block[:1], block])
    policy = np.zeros(layout.shape)
    policy[:, 0], policy[:, 1] = 1.0, 1e-100
    for width in {0, n_actions % 3}:
        d, w, private = forward_scratch(mdp, 1, 1)
        visits = aligned(policy.size, zero=True)
        visit_sweep(*mdp.transitions.arguments, 0, 1, NO_GATE, 1, width, policy.reshape(1, -1), 0, -1.0, d, w, visits, private)
        second, third = visits.reshape(layout.shape)[1:10], visits.reshape(layout.shape)[10:]
        assert second[1, :2].tolist() == [1e-100, 1e-100 * 1e-100]
        assert third[2, :2].tolist() == [1e-100 * 1e-100, 0.0]
        assert visits[visits > 0].min() > 1e-280


def test_layers_of_more_states_than_are_worked_on_at_a_time(monkeypatch):
    mdp = model(("csr", 3, False, np.float64), sizes=[1, STATES + 40, 9], density=0.02)
    policy = policies(mdp, 1)[0]
    for parts in (1, 2):
        close(visit(monkeypatch, mdp, policy, 2, parts)[0], twins.occupancy(Rows(mdp), policy))


def test_blocks_that_do_not_fit_a_cache_are_asked_for_ahead(monkeypatch):
    n_next = 256
    n_rows = -(-_groups._FROM_MEMORY // n_next)
    if INTERPRETED:
        n_rows = 64
        monkeypatch.setattr(_groups, "_FROM_MEMORY", n_rows * n_next)
    rng = np.random.default_rng(0)
    rows = rng.random((n_rows, n_next))
    rows /= rows.sum(axis=1, keepdims=True)
    blocks = [sp.csr_array(np.full((2, n_rows // 2), 2 / n_rows)), sp.csr_array(rows)]
    layout = of.Layout([1, n_rows // 2, n_next], 2)
    mdp = of.LayeredMDP(layout, rng.random(layout.shape), blocks)
    policy = policies(mdp, 1)[0]
    m = Rows(mdp)
    close(visit(monkeypatch, mdp, policy, 1, 1)[0], twins.occupancy(m, policy))
    q, v, _ = backward(monkeypatch, mdp, policy, 1, STATES, 0)
    expected = twins.evaluate(m, m.losses, policy)
    close(q, expected[0])
    close(v, expected[1])


@cases
@teams
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("count_actions", [False, True])
def test_chain(case, n, greedy, count_actions, monkeypatch):
    mdp = model(case)
    t, steps, k = mdp.transitions, 4, 2
    rng = np.random.default_rng(1)
    half_dynamics = 0.9 * np.linspace(1.0, 0.5, mdp.layout.horizon)
    start, visits0, sum0 = policies(mdp, 1)[0], rng.random(t.n_rows), rng.random(t.n_rows)
    lines, past, sums, values = twins.chain(
        Rows(mdp), mdp.row_losses, start, visits0, sum0, steps=steps, bonus_numbers=(0.6, half_dynamics, 2.5), eta=0.8,
        greedy=greedy, count_actions=count_actions,
    )  # fmt: skip
    for parts in parts_of(mdp):
        for chunk in chunks_of(mdp):
            store = policies(mdp, k + steps + 1, seed=5)
            store[k] = start
            visits, sum_q, v = visits0.copy(), sum0.copy(), np.full(mdp.layout.n_states, np.nan)
            scratch = np.empty((2 * n, min(chunk, max(mdp.layout.layer_sizes)) * mdp.layout.n_actions))
            after = (
                parts, steps, k, chunk, t.width, int(greedy), int(count_actions), mdp.row_losses, visits, store, sum_q, v,
                *chain_work(mdp, n, parts, chunk == chunks_of(mdp)[0]), (0.6, half_dynamics, 2.5), 0.8, scratch,
            )  # fmt: skip
            together(monkeypatch, chain_steps, t.arguments, after, n)
            close(store[k : k + steps] if greedy else store[k:], lines[1:] if greedy else lines, 1e-11)
            close(visits, past, 1e-11)
            close(v, values, 1e-11)
            close(sum_q, sums, 1e-11)


@cases
@teams
@pytest.mark.parametrize("count_actions", [False, True])
def test_a_chain_goes_on_at_the_first_line_of_its_store(case, n, count_actions, monkeypatch):
    mdp = model(case)
    t, steps, k = mdp.transitions, 8, 1
    rng = np.random.default_rng(1)
    half_dynamics = np.full(mdp.layout.horizon, 0.9)
    store, visits, sum_q = policies(mdp, 4), rng.random(t.n_rows), rng.random(t.n_rows)
    lines, past, sums, _ = twins.chain(
        Rows(mdp), mdp.row_losses, store[k].copy(), visits.copy(), sum_q.copy(), steps=steps, bonus_numbers=(0.6, half_dynamics, 2.5),
        eta=0.8, greedy=False, count_actions=count_actions,
    )  # fmt: skip
    parts, chunk = parts_of(mdp)[0], chunks_of(mdp)[0]
    after = (
        parts, steps, k, chunk, t.width, 0, int(count_actions), mdp.row_losses, visits, store, sum_q, np.empty(mdp.layout.n_states),
        *chain_work(mdp, n, parts, True), (0.6, half_dynamics, 2.5), 0.8,
        np.empty((2 * n, min(chunk, max(mdp.layout.layer_sizes)) * mdp.layout.n_actions)),
    )  # fmt: skip
    together(monkeypatch, chain_steps, t.arguments, after, n)
    # Steps 0 and 1 are done in lines 1 and 2, three more in each round from line 0 on.
    close(store, lines[5:], 1e-11)
    close(visits, past, 1e-11)
    close(sum_q, sums, 1e-11)


def test_small_blocks_of_a_model_beyond_the_cache(monkeypatch):
    """The block of the previous layer is prefetched while a layer is processed."""
    layers = 1 + evaluation._IN_CACHE // (2 * 60 * 60) + 1
    if INTERPRETED:
        layers = 4
        monkeypatch.setattr(evaluation, "_IN_CACHE", 1 << 14)
    mdp = model(("dense", 2, False, np.float64), sizes=[1, *[60] * layers])
    assert mdp.transitions.data.size > evaluation._IN_CACHE
    policy = policies(mdp, 1)[0]
    q, v, _ = backward(monkeypatch, mdp, policy, 1, mdp.layout.n_states, 0)
    expected = twins.evaluate(Rows(mdp), mdp.row_losses, policy)
    close(q, expected[0])
    close(v, expected[1])


@pytest.mark.parametrize("kind", ["above", "below", "negative", "nan"])
def test_what_is_no_policy_is_noticed_in_every_state(kind, monkeypatch):
    """States with equally many actions are checked four at a time, and the remaining ones one by one."""
    mdp = model(("dense", 3, False, np.float64))
    good = policies(mdp, 1)[0]
    assert not backward(monkeypatch, mdp, good, 1, mdp.layout.n_states, 0)[2]
    for state in range(mdp.layout.n_states):
        policy = good.copy()
        r = 3 * state
        policy[r : r + 3] = {"above": [0.5, 0.5, 0.1], "below": [0.5, 0.0, 0.4], "negative": [-0.5, 1.0, 0.5], "nan": [np.nan, 0.5, 0.5]}[
            kind
        ]
        assert backward(monkeypatch, mdp, policy, 1, mdp.layout.n_states, 0)[2]
        assert not backward(monkeypatch, mdp, policy, 1, mdp.layout.n_states, 0, -1.0)[2]
