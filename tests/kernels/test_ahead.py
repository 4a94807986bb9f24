"""Steps of a pack that are looked at on the way, or that stand under many fits, beside single steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import opo_fast as of
from opo_fast.kernels.ahead import packed_ahead, packed_fit_runs, packed_self_tuning_ahead
from opo_fast.kernels.ingest import pack_candidates
from opo_fast.kernels.packed import packed_steps, packed_visits
from opo_fast.kernels.packed_self_tuning import packed_self_tuning_steps
from opo_fast.model.layout import aligned

LANES, ACTIONS, SIZES, K = 8, 2, (1, 2, 3), 1
LAYOUT = of.Layout(SIZES, ACTIONS)
ROWS, STATES = LAYOUT.n_states * ACTIONS, LAYOUT.n_states
HALF_LOSS, HALF_DYNAMICS, WEIGHT, ETA = 0.3, np.array([0.2, 0.1, 0.3]), 6.0, 0.7


def vector(values):
    own = aligned(np.size(values))
    own[:] = np.ravel(values)
    return own


def transitions(rng):
    """Of eight contexts, (row, next state, lane)."""
    parts = [rng.dirichlet(np.ones(m), (LANES, n * ACTIONS)).transpose(1, 2, 0) for n, m in itertools.pairwise(SIZES)]
    return vector(np.concatenate([part.ravel() for part in parts]))


class Pack:
    """A pack after one policy, which the visits have not counted yet."""

    def __init__(self, lines, hedged, *, with_bonus=True, keep=True):
        rng = np.random.default_rng(1)
        self.k = K if keep else 0
        self.layout = LAYOUT.dense_block, LAYOUT.offsets, LAYOUT.rows
        self.data, self.losses, self.lower = transitions(rng), vector(rng.random(ROWS * LANES)), vector(0.5 * rng.random(ROWS * LANES))
        self.visits = vector(rng.random(ROWS * LANES)) if with_bonus else np.empty(0)
        self.store = aligned(lines * ROWS * LANES, zero=True).reshape(lines, -1)
        for line in self.store[: self.k + 1]:
            line[:] = rng.dirichlet(np.ones(ACTIONS), (STATES, LANES)).transpose(0, 2, 1).ravel()
        self.sum_q, self.v = vector(rng.random(ROWS * LANES)), aligned(STATES * LANES, zero=True)
        self.gap, self.total, self.moved = (aligned((STATES + 1) * LANES, zero=True) for _ in range(3))
        self.gap[: STATES * LANES], self.total[: STATES * LANES] = 0.4, ACTIONS
        self.log_actions = np.full(STATES + LANES, np.log(ACTIONS))
        self.d, self.w = aligned(STATES * LANES), aligned(max(SIZES) * ACTIONS * LANES)
        self.table = np.array([[self.data.ctypes.data, self.data.size]])
        self.hedged, self.keep, self.with_bonus = hedged, keep, with_bonus

    def steps(self, n, k, data=None, losses=None, lower=None, table=None):
        """Arguments of `n` steps from line `k` on."""
        chosen = self.data if data is None else data, self.losses if losses is None else losses
        if not self.hedged:
            after = self.store, self.sum_q, self.v, self.d, self.w, HALF_LOSS, HALF_DYNAMICS, WEIGHT, ETA
            return (*self.layout, n, k, 0, 0, *chosen, self.visits, *after)
        sets = self.lower if lower is None else lower, self.table if table is None else table, np.empty(0), np.empty(0, np.int64)
        hedge = self.sum_q, self.v, self.gap, self.total, self.log_actions, self.moved
        bonus = self.visits, HALF_LOSS, HALF_DYNAMICS, WEIGHT
        how = int(self.keep), int(self.with_bonus)
        return (*self.layout, n, k, *how, *chosen, *bonus, *sets, self.store, *hedge, np.empty(0), self.d, self.w)

    def step(self, i):
        """Step i alone."""
        k = self.k + i if self.keep else 0
        if self.with_bonus:
            packed_visits(*self.layout, self.data, self.store, k - 1, 1, self.d, self.w, self.visits)
        (packed_self_tuning_steps if self.hedged else packed_steps)(*self.steps(1, k))

    def changing(self):
        return [self.sum_q, self.v, self.gap, self.total, self.visits]


def share(visits, lane):
    """Rows at whose visits both terms of the bonus are at their cap."""
    n = visits.reshape(ROWS, LANES)[:, lane]
    layer = np.repeat(np.arange(len(SIZES)), np.array(SIZES) * ACTIONS)
    return ((HALF_LOSS / (1 + n) >= 1) & (HALF_DYNAMICS[layer] / (1 + n) >= 1)).sum()


@pytest.mark.parametrize(
    ("hedged", "keep", "with_bonus"), [(False, True, True), (True, True, True), (True, True, False), (True, False, False)]
)
def test_each_lane_is_looked_at_after_its_own_number_of_steps(hedged, keep, with_bonus):
    at, lanes = np.array([0, 0, 2, 3, 3, 6]), np.array([3, 0, 7, 1, 2, 3])
    ahead, alone = (Pack(9, hedged, keep=keep, with_bonus=with_bonus) for _ in range(2))
    policies, gaps, saturated = np.empty((6, ROWS)), np.empty((6, STATES)), np.full(6, -1.0)
    if hedged:
        packed_self_tuning_ahead(ahead.steps(0, ahead.k), at, lanes, policies, gaps, saturated)
    else:
        packed_ahead(ahead.steps(0, ahead.k), at, lanes, policies, saturated)
    done = 0
    for j, (steps, lane) in enumerate(zip(at, lanes, strict=True)):
        for i in range(done, steps):
            alone.step(i)
        done = steps
        line = alone.store[alone.k + done if keep else 0]
        np.testing.assert_array_equal(policies[j], line[lane::LANES])
        if hedged:
            np.testing.assert_array_equal(gaps[j], alone.gap[lane : STATES * LANES : LANES])
        assert saturated[j] == (share(alone.visits, lane) if with_bonus else -1)
    for one, other in zip(ahead.changing(), alone.changing(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [1, 5, 9])
def test_each_run_of_fits_has_its_own_losses_dynamics_and_sets(n):
    rng = np.random.default_rng(2)
    losses = np.array([rng.random(ROWS * LANES) for _ in range(3)])
    dynamics = np.array([transitions(rng) for _ in range(3)])
    ends, fits = np.array([2, 5, 2**62]), np.array([[0, 0], [2, 1], [1, 2]])
    members = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0]], bool)
    listed = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1]], bool)
    many, alone = (Pack(2, True, keep=False, with_bonus=False) for _ in range(2))
    hedge = many.sum_q, many.v, many.gap, many.total, many.log_actions, many.moved
    packed_fit_runs(
        *many.layout, n, ends, fits, members, listed, losses, dynamics, dynamics.ctypes.data, HALF_LOSS, HALF_DYNAMICS, WEIGHT,
        aligned(ROWS * LANES), np.empty((3, 2), np.int64), np.empty(0, np.int64), many.store, *hedge, np.empty(0), many.d, many.w,
    )  # fmt: skip
    begin = 0
    for end, (f, p), some, plausible in zip(ends, fits, members, listed, strict=True):
        table = np.array([[dynamics[i].ctypes.data, dynamics[i].size] for i in np.flatnonzero(plausible)])
        steps = max(0, min(n, end) - begin)
        begin += steps
        packed_self_tuning_steps(*alone.steps(steps, 0, dynamics[p], losses[f], vector(losses[some].min(axis=0)), table))
    np.testing.assert_array_equal(many.store[0], alone.store[0])
    for one, other in zip(many.changing(), alone.changing(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [2, 7, 8])
def test_candidates_side_by_side_and_which_are_dynamics(count):
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.dirichlet(np.ones(m), (count, 6, 3)).reshape(count, 6, -1) for m in (2, 3)], axis=2)
    starts = np.array([0, 2, 4, 6, 9, 12])
    values[1, 1, 4] += 1e-3
    values[0, 2, [6, 7]] = -0.1, values[0, 2, 6] + values[0, 2, 7] + 0.1
    values[1, 3, 0] = np.nan
    values[count - 1, 4, 14] = np.inf
    packed, valid = np.zeros(6 * 15 * LANES), np.empty(6, bool)
    pack_candidates(values.reshape(-1), count, starts, 15, 1e-8, packed, valid)
    assert valid.tolist() == [True, False, False, False, False, True]
    packed = packed.reshape(6, 15, LANES)
    np.testing.assert_array_equal(packed[:, :, :count], values.transpose(1, 2, 0))
    assert not packed[:, :, count:].any()
