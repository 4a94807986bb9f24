"""The forward recursion of a CSR model as a gather: a transposed copy in slices of eight next states (SELL-C-sigma, C = 8).

M. Kreutzer, G. Hager, G. Wellein, H. Fehske, A. R. Bishop: A unified sparse matrix data format for efficient general sparse
matrix-vector multiplication on modern processors with wide SIMD units. SIAM J. Sci. Comput. 36(5), 2014.

Each part of a layer (see `forward.visit_sweep`) has a separate copy, so that the sums and their bits are those of the scatter: a lane sums
over the rows (allowed state-action pairs) of the part that lead to its state, in their order. Lanes with fewer rows are padded with
probabilities of 0. In each window of `SORTED` states, states are sorted by their numbers of rows.
"""

from __future__ import annotations

import numpy as np

from ._arguments import Pass, Slices, Team
from ._groups import AHEAD, MANY, NEAR, SCATTERED, SORTED, is_policy, sort_by_count
from ._jit import called, inlined, kernel
from ._simd import prefetch, qask, vfma, vgather, vget, vload, vset
from ._sync import barrier
from .forward import STATES, merge, visit_sweep, weigh

__all__ = ["add_occupancy", "add_slices", "slice_fill", "slice_shape", "visit_slices"]


@kernel
def slice_shape(indptr, indices, blocks, count, starts, states):
    """Fill the states and the first entry of each slice; returns the number of entries.

    Each line of `blocks` is one part of one block: its first and last position in `indptr`, number of next states, and first slice.
    `count` is a work array with one number per next state.
    """
    end = 0
    for b in range(blocks.shape[0]):
        first, last, n_next, slice0 = blocks[b, 0], blocks[b, 1], blocks[b, 2], blocks[b, 3]
        for j in range(n_next):
            count[j] = 0
        for p in range(indptr[first], indptr[last]):
            count[indices[p]] += 1
        for lo in range(0, n_next, SORTED):
            sort_by_count(count, lo, min(lo + SORTED, n_next), states, 8 * slice0 + lo)
        for j in range(0, n_next, 8):
            starts[slice0 + j // 8] = end
            end += 8 * count[states[8 * slice0 + j]]
    return end


@kernel
def slice_fill(data, indptr, indices, blocks, at, starts, states, positions, weights):
    """Write the transitions of `blocks` to their slices; `positions` and `weights` must be 0 before."""
    for b in range(blocks.shape[0]):
        first, last, n_next, slice0 = blocks[b, 0], blocks[b, 1], blocks[b, 2], blocks[b, 3]
        for j in range(n_next):
            at[states[8 * slice0 + j]] = starts[slice0 + j // 8] + j % 8
        for r in range(first, last):
            for p in range(indptr[r], indptr[r + 1]):
                j = indices[p]
                positions[at[j]] = r - first
                weights[at[j]] = data[p]
                at[j] += 8


@inlined
def _slice_sums(slices, begin, end, w, w0, near):
    """The sums of the eight next states of the slice with entries begin..end-1; prefetches weights of rows `near` entries ahead."""
    x = vset(0.0)
    for p in range(begin, end, 8):
        prefetch(slices.weights, p + AHEAD)
        prefetch(slices.positions, p + AHEAD)
        if near > 0:
            qask(w, w0, slices.positions, p + near)
            qask(w, w0, slices.positions, p + near + 4)
        x = vfma(vload(slices.weights, p), vgather(w, w0, slices.positions, p), x)
    return x


@called
def _gather(slices, slice0, n_rows, n_next, w, w0, private, to):
    """private[to + j] = the sum over the `n_rows` rows of a part, whose weights begin at w[w0], for its next states j."""
    before = np.int64(0)
    for j in range(0, n_next, 8):
        i = slice0 + j // 8
        begin = slices.starts[i]
        end = slices.starts[i + 1]
        near = 0
        if n_rows >= MANY and begin < end:
            # The first lane is not padded, so it is representative; in a banded matrix, neighbouring slices read close rows.
            here = np.int64(slices.positions[(begin + end) // 16 * 8])
            near = min(NEAR, slices.positions.size - end) if abs(here - before) >= SCATTERED else 0
            before = here
        x = _slice_sums(slices, begin, end, w, w0, near) if near > 0 else _slice_sums(slices, begin, end, w, w0, 0)
        for lane in range(min(8, n_next - j)):
            private[to + np.int64(slices.states[8 * i + lane])] = vget(x, lane)


@inlined
def _visit_layer(slices, team, h, work, policy, tolerance, visits, add):
    """Weights of the rows of this thread's parts of layer h, and the parts' sums for the next states; whether the policy is valid."""
    layers, rows = slices.layers, slices.rows
    s0 = layers[h]
    size = layers[h + 1] - s0
    n_next = layers[h + 2] - layers[h + 1] if h < slices.first.size - 1 else 0
    shift = -rows[s0] if add else 0
    valid = True
    for p in range(work.parts * team.me // team.n, work.parts * (team.me + 1) // team.n):
        lo = s0 + size * p // work.parts
        hi = s0 + size * (p + 1) // work.parts
        for c0 in range(lo, hi, STATES):
            c1 = min(c0 + STATES, hi)
            if tolerance >= 0.0 and not is_policy(policy, rows, c0, c1, work.width, tolerance):
                valid = False
            weigh(rows, c0, c1, work.width, policy, work.d, visits, work.w, shift, add)
        slice0 = slices.first[h] + p * ((n_next + 7) // 8)
        _gather(slices, slice0, rows[hi] - rows[lo], n_next, work.w, rows[lo] + shift, work.private, p * n_next)
    return valid


@inlined
def _visit(slices, team, work, policy, tolerance, visits, add):
    """The occupancy of a policy, which is added to `visits` or fills them; returns 1 if the policy is invalid, else 0."""
    layers = slices.layers
    valid = True
    if team.me == 0:
        work.d[0] = 1.0
    barrier(team.gate, team.me, team.n)
    for h in range(slices.first.size):
        if not _visit_layer(slices, team, h, work, policy, tolerance, visits, add):
            valid = False
        if h < slices.first.size - 1:
            barrier(team.gate, team.me, team.n)
            n_next = layers[h + 2] - layers[h + 1]
            merge(work.private, work.parts, n_next, n_next * team.me // team.n, n_next * (team.me + 1) // team.n, work.d, layers[h + 1])
            barrier(team.gate, team.me, team.n)
    return 0 if valid else 1


@kernel
def visit_slices(
    starts, states, positions, weights, first, layers, rows, me, n, gate, n_parts, width, policy, tolerance, d, visits, private
):  # fmt: skip
    """The occupancy of `policy` under a CSR model from its slices, with the sums of `forward.visit_sweep`. It fills `visits`."""
    slices = Slices(starts, states, positions, weights, first, layers, rows)
    # The weights are the occupancies themselves.
    return _visit(slices, Team(me, n, gate), Pass(n_parts, width, d, visits, private), policy, tolerance, visits, 0)


@kernel
def add_slices(
    starts, states, positions, weights, first, layers, rows, me, n, gate, n_parts, width, policies, at, d, w, visits, private
):  # fmt: skip
    """Add the occupancy of `policies[at]`, which is valid, to `visits`; `w` has a number for each row of a layer."""
    slices = Slices(starts, states, positions, weights, first, layers, rows)
    return _visit(slices, Team(me, n, gate), Pass(n_parts, width, d, w, private), policies[at], -1.0, visits, 1)


@inlined
def add_occupancy(model, slices, team, work, policies, at, visits):
    """The same from the five arrays of the copy, `slices`, or by `visit_sweep` if they are empty."""
    starts, states, positions, weights, first = slices
    if starts.size > 0:
        add_slices(
            starts, states, positions, weights, first, model.layers, model.rows, team.me, team.n, team.gate, work.parts, work.width,
            policies, at, work.d, work.w, visits, work.private,
        )  # fmt: skip
    else:
        visit_sweep(
            model.kind, model.data, model.indptr, model.indices, model.block, model.layers, model.rows, team.me, team.n, team.gate,
            work.parts, work.width, policies, at, -1.0, work.d, work.w, visits, work.private,
        )  # fmt: skip
