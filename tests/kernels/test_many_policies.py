"""Kernels for many policies under one dynamics and for packs of contexts, against their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest
import twins
from kernel_calls import MODELS, close, model, name_of, own, packed_block, policies, together
from twins import Rows

from opo_fast.kernels.batch import BATCH, BLOCK, SUMS, visit_batch_csr, visit_batch_dense
from opo_fast.kernels.ingest import pack_lane
from opo_fast.kernels.packed import packed_steps, packed_visits
from opo_fast.kernels.weights import count_saturated
from opo_fast.model.layout import aligned

LANES = 8

teams = pytest.mark.parametrize("n", [1, 2, 3])
dense_cases = pytest.mark.parametrize("case", [case for case in MODELS if "csr" not in case[0]], ids=name_of)
csr_cases = pytest.mark.parametrize("case", [case for case in MODELS if "csr" in case[0]], ids=name_of)


def sum_of_occupancies(mdp, lines):
    m = Rows(mdp)
    return sum(twins.occupancy(m, line) for line in lines)


def visit_dense(monkeypatch, mdp, store, k, count, n, lanes, shared):
    most = max(mdp.layout.layer_sizes)
    d, w = aligned(n * lanes * 2 * most), aligned(n * lanes * mdp.transitions.most_rows)
    visits = aligned(mdp.transitions.n_rows, zero=True)
    after = (int(shared), lanes, store, k, count, d, w, visits, aligned(SUMS * lanes * n))
    together(monkeypatch, visit_batch_dense, mdp.transitions.arguments, after, n)
    return visits


def visit_csr(monkeypatch, mdp, store, k, count, n, parts):
    t, most = mdp.transitions, max(mdp.layout.layer_sizes)
    d, w, private = aligned(LANES * 2 * most), aligned(LANES * t.most_rows), aligned(LANES * most * parts)
    visits = aligned(t.n_rows, zero=True)
    together(monkeypatch, visit_batch_csr, t.arguments, (parts, store, k, count, d, w, visits, private), n)
    return visits


@dense_cases
@teams
@pytest.mark.parametrize("lanes", [LANES, BATCH])
def test_batches_of_a_dense_dynamics(case, n, lanes, monkeypatch):
    mdp = model(case)
    store = policies(mdp, 45)
    for count in (1, 7, 9, 40):
        expected = sum_of_occupancies(mdp, store[2 : 2 + count])
        close(visit_dense(monkeypatch, mdp, store, 2, count, n, lanes, False), expected)
        if count <= lanes:
            close(visit_dense(monkeypatch, mdp, store, 2, count, n, lanes, True), expected)


def test_a_batch_of_more_rows_than_are_kept_in_the_cache(monkeypatch):
    mdp = model(("dense", 4, False, np.float64), sizes=[1, BLOCK // 4 + 3, 5])
    store = policies(mdp, 3)
    close(visit_dense(monkeypatch, mdp, store, 0, 3, 1, BATCH, False), sum_of_occupancies(mdp, store))


@csr_cases
@teams
def test_batches_of_a_csr_dynamics(case, n, monkeypatch):
    mdp = model(case)
    store = policies(mdp, 10)
    for count in (1, 7, 8):
        for parts in (1, 3):
            close(visit_csr(monkeypatch, mdp, store, 2, count, n, parts), sum_of_occupancies(mdp, store[2 : 2 + count]))


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("n_actions", [2, 3])
def test_tiny_weights_count_as_zero(storage, n_actions, monkeypatch):
    """Probabilities of 1e-200 and 1e-100: their product counts as 0, in every lane and also in rows that do not fill a vector."""
    mdp = model((storage, n_actions, False, np.float64), sizes=[1, 5, 7])
    store = policies(mdp, 2)
    store[1, :n_actions] *= 1e-100
    store[1, n_actions:] *= 1e-200
    if storage == "dense":
        visits = visit_dense(monkeypatch, mdp, store, 1, 1, 1, LANES, False)
    else:
        visits = visit_csr(monkeypatch, mdp, store, 1, 1, 1, 1)
    assert (visits[:n_actions] > 0).all()
    assert (visits[n_actions:] == 0).all()


# -- packs -------------------------------------------------------------------------------------------------------------


class Pack:
    """Eight contexts with the same layout and mask, some of them with equal models."""

    def __init__(self, case):
        # The same seed gives the same mask.
        self.mdps = [model(case, seed=0 if case[2] else lane % 5) for lane in range(LANES)]
        self.t = self.mdps[0].transitions
        self.layers, self.rows, self.block = self.mdps[0].layout.offsets, self.t.rows, packed_block(self.mdps[0])
        self.data = aligned(int(self.block[-1]) * LANES, zero=True)
        for lane, mdp in enumerate(self.mdps):
            pack_lane(*mdp.transitions.arguments, self.block, self.data, lane)
        self.losses = own(np.stack([mdp.row_losses for mdp in self.mdps], axis=1))
        self.n_states, self.n_rows = self.mdps[0].layout.n_states, self.t.n_rows

    def random(self, seed):
        return own(np.random.default_rng(seed).random((self.n_rows, LANES)))

    def lines(self, count):
        """Random policies of all lanes, one pack per line."""
        stack = [policies(mdp, count, seed=lane) for lane, mdp in enumerate(self.mdps)]
        return own(np.stack(stack, axis=2)).reshape(count, -1)

    def scratch(self):
        return aligned(self.n_states * LANES), aligned(self.t.most_rows * LANES)


packable = pytest.mark.parametrize("case", [case for case in MODELS if case[1] < 8], ids=name_of)


@packable
def test_a_lane_of_a_pack_holds_the_transitions(case):
    pack = Pack(case)
    for lane, mdp in enumerate(pack.mdps):
        for h, rows in enumerate(Rows(mdp).P):
            part = pack.data[LANES * pack.block[h] : LANES * pack.block[h + 1]]
            assert part[lane::LANES].tolist() == rows.ravel().tolist()


@packable
def test_visits_of_a_pack(case):
    pack = Pack(case)
    store, visits = pack.lines(4), aligned(pack.n_rows * LANES, zero=True)
    packed_visits(pack.block, pack.layers, pack.rows, pack.data, store, 1, 3, *pack.scratch(), visits)
    for lane, mdp in enumerate(pack.mdps):
        close(visits[lane::LANES], sum_of_occupancies(mdp, store[1:, lane::LANES]))


@packable
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("count_actions", [False, True])
def test_chains_of_a_pack(case, greedy, count_actions):
    pack, steps, k = Pack(case), 4, 1
    store, visits0, sum0 = pack.lines(k + steps + 1), pack.random(3), pack.random(4)
    start, visits, sum_q = store[k].copy(), visits0.copy(), sum0.copy()
    v = aligned(pack.n_states * LANES)
    half_dynamics = 0.9 * np.linspace(1.0, 0.5, len(pack.block))
    packed_steps(
        pack.block, pack.layers, pack.rows, steps, k, int(greedy), int(count_actions), pack.data, pack.losses, visits, store, sum_q, v,
        *pack.scratch(), 0.6, half_dynamics, 2.5, 0.8,
    )  # fmt: skip
    for lane, mdp in enumerate(pack.mdps):
        one = slice(lane, None, LANES)
        lines, past, sums, values = twins.chain(
            Rows(mdp), pack.losses[one], start[one], visits0[one], sum0[one], steps=steps, bonus_numbers=(0.6, half_dynamics, 2.5),
            eta=0.8, greedy=greedy, count_actions=count_actions,
        )  # fmt: skip
        close(store[k : k + steps, one] if greedy else store[k:, one], lines[1:] if greedy else lines, 1e-11)
        close(visits[one], past, 1e-11)
        close(v[one], values, 1e-11)
        close(sum_q[one], sums, 1e-11)


@packable
@pytest.mark.parametrize("count_actions", [False, True])
def test_a_pack_goes_on_at_the_first_line_of_its_store(case, count_actions):
    pack, steps, k = Pack(case), 8, 1
    store, visits, sum_q = pack.lines(4), pack.random(3), pack.random(4)
    start, visits0, sum0 = store[k].copy(), visits.copy(), sum_q.copy()
    half_dynamics = np.full(len(pack.block), 0.9)
    packed_steps(
        pack.block, pack.layers, pack.rows, steps, k, 0, int(count_actions), pack.data, pack.losses, visits, store, sum_q,
        aligned(pack.n_states * LANES), *pack.scratch(), 0.6, half_dynamics, 2.5, 0.8,
    )  # fmt: skip
    for lane, mdp in enumerate(pack.mdps):
        one = slice(lane, None, LANES)
        lines, past, sums, _ = twins.chain(
            Rows(mdp), pack.losses[one], start[one], visits0[one], sum0[one], steps=steps, bonus_numbers=(0.6, half_dynamics, 2.5),
            eta=0.8, greedy=False, count_actions=count_actions,
        )  # fmt: skip
        # Steps 0 and 1 are done in lines 1 and 2, three more in each round from line 0 on.
        close(store[:, one], lines[5:], 1e-11)
        close(visits[one], past, 1e-11)
        close(sum_q[one], sums, 1e-11)


@packable
def test_a_greedy_step_takes_the_first_of_equal_rows(case):
    pack = Pack(case)
    store, zero = pack.lines(1), aligned(pack.n_rows * LANES, zero=True)
    v = aligned(pack.n_states * LANES)
    packed_steps(
        pack.block, pack.layers, pack.rows, 1, 0, 1, 0, pack.data, zero, zero.copy(), store, zero.copy(), v, *pack.scratch(), 0.0,
        np.zeros(len(pack.block)), 0.0, 0.0,
    )  # fmt: skip
    expected = np.zeros(pack.n_rows)
    expected[pack.rows[:-1]] = 1.0
    for lane in range(LANES):
        assert store[0, lane::LANES].tolist() == expected.tolist()


@pytest.mark.parametrize(("half_loss", "half_dynamics"), [(0.0, 1.2), (1.2, 0.0), (1.3, 1.4), (0.0, 0.0)])
def test_saturated_rows(half_loss, half_dynamics):
    mdp = model(MODELS[0])
    m = Rows(mdp)
    visits = own(np.random.default_rng(0).random((m.state.size, LANES)))
    halves = half_dynamics * np.linspace(1.0, 0.9, m.horizon)
    half = np.concatenate([np.full(m.rows(h).stop - m.rows(h).start, halves[h]) for h in range(m.horizon)])
    for lane in (0, 5):
        counts = visits[lane::LANES]
        terms = [twins.bonus(counts, x) == 1.0 for x in (np.full(half.shape, half_loss), half) if x.any()]
        expected = np.logical_and.reduce(terms).sum() if terms else 0
        assert count_saturated(visits, lane, LANES, mdp.layout.offsets, mdp.transitions.rows, half_loss, halves) == expected
