"""Kernels of the self-tuning chain, against the plain NumPy code in `opo_fast.algorithm.self_tuning`."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import MODELS, chain_work, chunks_of, close, model, name_of, own, packed_block, parts_of, together
from twins import Rows, occupancy

from opo_fast.algorithm.rules import Bonus
from opo_fast.algorithm.self_tuning import AdaHedge, Plausible, optimistic_values
from opo_fast.kernels.ingest import pack_lane
from opo_fast.kernels.packed_self_tuning import packed_self_tuning_steps
from opo_fast.kernels.self_tuning import self_tuning_steps
from opo_fast.model.layout import aligned

LANES, STEPS, K = 8, 4, 1
HALVES = 0.3, 0.05
"""Halves of the betas."""

cases = pytest.mark.parametrize("case", MODELS, ids=name_of)
plausible_sets = pytest.mark.parametrize("sets", ["none", "one by one", "radius"])
variants = pytest.mark.parametrize(("keep", "with_bonus"), [(True, True), (True, False), (False, False)])


def start_of(mdp):
    """AdaHedge before the first step, with a gap so large that the learning rate does not amplify rounding errors."""
    hedge = AdaHedge(mdp.uniform_policy())
    hedge.gap[:] = 0.5
    return hedge


def plausible_of(case, seed, sets):
    """A model and its plausible set: none, three dynamics (if the masks are equal), or radii."""
    best, rng = model(case, seed), np.random.default_rng(seed)
    radii, lower = rng.choice([0.0, 0.05, 0.4, 1.0], best.layout.shape), 0.3 * rng.random(best.layout.shape)
    if sets == "none":
        return Plausible(best)
    others = [] if case[2] else [model(case, seed + 10 * i) for i in (1, 2)]
    return Plausible(best, lower, radii if sets == "radius" else [mdp.transitions for mdp in (best, *others)])


def place(array):
    return array.__array_interface__["data"][0], array.size


def line_of(t):
    return [t.kind, *place(t.data), *place(t.indptr), *place(t.indices), place(t.block)[0]]


def expected_steps(plausible, with_bonus):
    """The twin: AdaHedge, the policies before each step, the sums of visits and the last Q and V."""
    mdp = plausible.model
    m = Rows(mdp)
    hedge = start_of(mdp)
    lines, visits = [], np.zeros(m.state.size)
    # With a bonus above every value, Q is the lower bound.
    beta_loss, beta_dynamics = (2 * HALVES[0], 2 * HALVES[1]) if with_bonus else (1e9, 1e9)
    betas = Bonus(beta_loss, np.full(m.horizon, beta_dynamics), 1, with_bonus)
    for step in range(STEPS):
        if with_bonus and step > 0:
            visits += occupancy(m, lines[-1])
        lines.append(mdp.transitions.gather(hedge.policy).copy())
        q, v = optimistic_values(plausible, hedge.policy, mdp.transitions.scatter(visits), betas)
        hedge.update(q)
    return hedge, lines, visits, q, v


class State:
    """The state of the chain before the first step, once or for each lane."""

    def __init__(self, mdp, lanes):
        hedge, n_rows = start_of(mdp), mdp.transitions.n_rows
        counts = np.diff(mdp.transitions.rows)
        n = len(counts)
        self.store = aligned((K + STEPS + 1) * n_rows * lanes).reshape(K + STEPS + 1, -1)
        self.store[K] = np.repeat(mdp.transitions.gather(hedge.policy), lanes)
        self.regret, self.visits = aligned(n_rows * lanes, zero=True), aligned(n_rows * lanes, zero=True)
        self.last_q = aligned(n_rows * lanes)
        # Kernels read vectors of states as a whole, so the arrays have room for them.
        self.v, self.excess, self.gap, self.total = (aligned(n * lanes + 8, zero=True) for _ in range(4))
        self.log_actions = aligned(n + 8, zero=True)
        self.gap[: n * lanes], self.total[: n * lanes] = np.repeat(hedge.gap, lanes), np.repeat(counts, lanes)
        self.log_actions[:n] = hedge.log_actions

    def check(self, plausible, keep, with_bonus, lane=0, lanes=1):
        hedge, lines, visits, q, v = expected_steps(plausible, with_bonus)
        mdp = plausible.model
        gather, n, one = mdp.transitions.gather, mdp.layout.n_states, slice(lane, None, lanes)
        if keep:
            close(self.store[K : K + STEPS, one], lines, 1e-11)
        close(self.store[K + STEPS if keep else K, one], gather(hedge.policy), 1e-11)
        close(self.regret[one], gather(hedge.loss), 1e-11)
        close(self.gap[one][:n], hedge.gap, 1e-11)
        close(self.v[one][:n], v, 1e-11)
        close(np.maximum(0.0, self.last_q[one]), gather(q), 1e-11)
        if with_bonus:
            close(self.visits[one], visits, 1e-11)


@cases
@plausible_sets
@variants
@pytest.mark.parametrize("n", [1, 2])
def test_steps_at_one_context(case, sets, keep, with_bonus, n, monkeypatch):
    plausible = plausible_of(case, 0, sets)
    mdp = plausible.model
    t, most, parts = mdp.transitions, max(mdp.layout.layer_sizes), parts_of(mdp)[-1]
    listed = [t] if sets == "radius" else list(plausible.dynamics)
    table = np.array([line_of(x) for x in listed], np.int64).reshape(-1, 8)
    radius = own(t.gather(plausible.dynamics)) if sets == "radius" else np.empty(0)
    lower = np.empty(0) if plausible.lower is None else own(t.gather(plausible.lower))
    bonus = HALVES[0], np.full(mdp.layout.horizon, HALVES[1]), 2.0 * mdp.layout.horizon
    for chunk in chunks_of(mdp):
        state = State(mdp, 1)
        scratch = np.empty((3 * n, min(chunk, most) * mdp.layout.n_actions))
        after = (
            parts, STEPS, K, int(keep), chunk, t.width, int(with_bonus), mdp.row_losses, state.visits, bonus,
            (lower, table, radius, np.empty((n, most), np.int64)), state.store,
            (state.regret, state.v, state.gap, state.total, state.log_actions, state.excess), state.last_q,
            *chain_work(mdp, n, parts, chunk == chunks_of(mdp)[0]), scratch,
        )  # fmt: skip
        together(monkeypatch, self_tuning_steps, t.arguments, after, n)
        state.check(plausible, keep, with_bonus)


packable = pytest.mark.parametrize("case", [case for case in MODELS if case[1] < 8 and case[3] is np.float64], ids=name_of)


@packable
@plausible_sets
@variants
def test_steps_of_a_pack(case, sets, keep, with_bonus):
    # The same seed gives the same mask.
    members = [plausible_of(case, 0 if case[2] else lane % 3, sets) for lane in range(LANES)]
    mdp = members[0].model
    t, block = mdp.transitions, packed_block(mdp)

    def packed(transitions):
        data = aligned(int(block[-1]) * LANES, zero=True)
        for lane, one in enumerate(transitions):
            pack_lane(*one.arguments, block, data, lane)
        return data

    def interleaved(arrays):
        return own(np.stack([t.gather(array) for array in arrays], axis=1))

    data = packed([member.model.transitions for member in members])
    others = [data] if sets == "radius" else [packed(each) for each in zip(*(member.dynamics for member in members), strict=True)]
    table = np.array([place(one) for one in others], np.int64).reshape(-1, 2)
    radius = interleaved([member.dynamics for member in members]) if sets == "radius" else np.empty(0)
    lower = np.empty(0) if sets == "none" else interleaved([member.lower for member in members])
    losses = own(np.stack([member.model.row_losses for member in members], axis=1))
    state = State(mdp, LANES)
    packed_self_tuning_steps(
        block, mdp.layout.offsets, t.rows, STEPS, K, int(keep), int(with_bonus), data, losses, state.visits, HALVES[0],
        np.full(mdp.layout.horizon, HALVES[1]), 2.0 * mdp.layout.horizon, lower, table, radius,
        np.empty(max(mdp.layout.layer_sizes) * LANES, np.int64), state.store, state.regret, state.v, state.gap, state.total,
        state.log_actions, state.excess, state.last_q, aligned(mdp.layout.n_states * LANES), aligned(t.most_rows * LANES),
    )  # fmt: skip
    for lane, member in enumerate(members[:3]):
        state.check(member, keep, with_bonus, lane, LANES)
