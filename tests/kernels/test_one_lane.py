"""Chains of one context of a small layout, and first runs of fits: beside the lanes of packs and single steps."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import Listed, random_mask, random_model

from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.forms import OneLaneChain, PackedChain
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import opo_rule
from opo_fast.kernels._jit import COMPILED
from opo_fast.kernels.ahead import packed_first_runs
from opo_fast.kernels.one_lane import one_lane_steps
from opo_fast.kernels.packed import packed_steps, packed_visits
from opo_fast.model.layout import aligned

SETTINGS = {"eta": 0.4, "beta_loss": 0.7, "beta_dynamics": 0.3}
STEPS = 20 if COMPILED else 8


def history_of(pairs):
    history = History()
    for pair in pairs:
        history.append(Fits(*pair))
    return history


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_actions", [1, 2, 3, 8] if COMPILED else [2, 3])
@pytest.mark.parametrize("form", ["dense", "csr", "stationary", "stationary csr"] if COMPILED else ["dense", "csr"])
def test_one_context_has_the_bits_of_a_lane_of_a_pack(form, n_actions, dtype, masked):
    rng = np.random.default_rng(n_actions)
    sizes = [1, 17, 17] if form.startswith("stationary") else [1, 5, 9, 3]
    shape = (17 if form.startswith("stationary") else sum(sizes), n_actions)
    mask = random_mask(rng, shape) if masked else None
    models = [random_model(rng, sizes, n_actions, form, mask=mask, dtype=dtype, density=0.5) for _ in range(3)]
    history = history_of([(k % len(models), (k // 3) % len(models)) for k in range(STEPS)])
    chains = []
    for alone, form in ((True, OneLaneChain), (False, PackedChain)):
        rule = opo_rule(models[0].layout, **SETTINGS)
        engine = ChainEngine(models[0].layout, models[0].action_mask, rule, Listed(models), 1 << 20, alone=alone)
        assert engine.packed
        assert type(engine.chain("c", history, STEPS - 5)[0]) is form
        chains.append(engine.chain("c", history, STEPS)[0])
    one, pack = chains
    pairs = [(one.policy(0), pack.policy(0)), (one.sum_q, pack.sum_q[::8]), (one.v, pack.v[::8]), (one.last, pack.last[::8])]
    for mine, theirs in pairs:
        if not COMPILED:
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
        else:
            assert mine.tobytes() == theirs.tobytes()


def test_steps_that_overwrite_old_policies_are_the_same_steps():
    mdp = random_model(np.random.default_rng(4), [1, 3, 2], 2)
    rule = opo_rule(mdp.layout, **SETTINGS)
    found = []
    for lines, calls in ((3, [7]), (8, [1] * 7)):
        engine = ChainEngine(mdp.layout, None, rule, Listed([mdp]), 1 << 20, alone=True)
        chain = engine.new_chain(["c"])
        counts, store = np.zeros(chain.width), aligned(lines * chain.width).reshape(lines, -1)
        store[0], chain.policies.lines = 0.5, store
        line = 0
        for i, length in enumerate(calls):
            one_lane_steps(*chain._arguments(0, rule.bonus(0), counts, length, int(i > 0), line, mdp.row_losses))
            line += length
        found.append([store[1 if lines == 3 else 7], counts, chain.sum_q, chain.v])
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_first_runs_of_fits_are_the_steps_of_each_run():
    rng = np.random.default_rng(8)
    rows, states, lanes = 12, 6, 8
    layout = np.array([0, 4, 16]), np.array([0, 1, 3, 6]), 2 * np.arange(states + 1)
    parts = [rng.dirichlet(np.ones(m), (3, lanes, 2 * n)).transpose(0, 2, 3, 1).reshape(3, -1) for n, m in ((1, 2), (2, 3))]
    dynamics, losses = np.concatenate(parts, axis=1), rng.random((3, rows * lanes))
    ends, fits, slots = np.array([2, 3, 7]), np.array([[0, 2], [1, 1], [2, 2]]), np.array([0, 1, 0])
    rule = 0.3, np.array([0.2, 0.1, 0.3]), 6.0, 0.7
    found = []
    for alone in (False, True):
        store = aligned(8 * rows * lanes, zero=True).reshape(8, -1)
        store[0] = 0.5
        visits, counted = np.zeros((2, rows * lanes)), np.zeros(2, np.int64)
        work = [aligned(size * lanes, zero=True) for size in (rows, states, states, 6)]
        if not alone:
            packed_first_runs(*layout, ends, fits, slots, losses, dynamics, visits, counted, store, *work, *rule)
            assert counted.tolist() == [6, 2]
        for k in range(7 if alone else 0):
            run = int(np.searchsorted(ends, k, side="right"))
            data = dynamics[fits[run, 1]]
            visits[slots[run]] = 0.0
            packed_visits(*layout, data, store, 0, k, *work[2:], visits[slots[run]])
            packed_steps(*layout, 1, k, 0, 0, data, losses[fits[run, 0]], visits[slots[run]], store, *work, *rule)
        found.append([store, visits, *work[:2]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(np.diff(found[0][0], axis=0)).max(axis=1).min() > 1e-3
