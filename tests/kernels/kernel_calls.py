"""Models for the tests of kernels, and threads that run a kernel together, compiled or not."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import scipy.sparse as sp
from strategies import random_model, random_policy

import opo_fast as of
from opo_fast.kernels import _groups, batch, chain, evaluation, forward, self_tuning, transposed_slices
from opo_fast.kernels._sync import GATE
from opo_fast.model.layout import aligned
from opo_fast.model.slices import TransposedSlices

INTERPRETED = bool(numba.config.DISABLE_JIT)

SIZES = [1, 5, 13, 3]
"""Layers of fewer than four states, of four and more, and of eight and more: each has a separate loop."""

MODELS = [
    ("dense", 3, True, np.float64),
    ("dense", 4, False, np.float64),
    ("dense", 3, False, np.float32),
    ("stationary", 2, False, np.float64),
    ("stationary", 8, False, np.float32),
    ("csr", 3, True, np.float64),
    ("csr", 4, False, np.float64),
    ("csr", 3, False, np.float32),
    ("stationary csr", 2, False, np.float64),
    ("stationary csr", 8, False, np.float32),
]
"""Form, actions, masked, dtype."""


def name_of(case):
    form, n_actions, masked, dtype = case
    return f"{form}-{n_actions}{'-masked' if masked else ''}-{np.dtype(dtype).name}"


def model(case, seed=0, sizes=None, density=0.9):
    form, n_actions, masked, dtype = case
    sizes = sizes or ([1, 13, 13] if form.startswith("stationary") else SIZES)
    return random_model(np.random.default_rng(seed), sizes, n_actions, form, masked=masked, dtype=dtype, density=density)


def policies(mdp, count, seed=0):
    """Random policies, one per line, one number per row."""
    rng = np.random.default_rng(seed)
    lines = aligned(count * mdp.transitions.n_rows).reshape(count, -1)
    for line in lines:
        line[:] = mdp.transitions.gather(random_policy(rng, mdp))
    return lines


def own(array):
    """A writable aligned copy."""
    copy = aligned(array.size)
    copy[:] = np.ravel(array)
    return copy


def wide_model(monkeypatch, successors=13):
    """A CSR model of 1 to `successors` random next states a row, of which there are more than the caches hold; and its transitions."""
    n_states = _groups.MANY
    if INTERPRETED:
        n_states = 64
        for module in (_groups, transposed_slices):
            monkeypatch.setattr(module, "MANY", 1)
            monkeypatch.setattr(module, "SCATTERED", 1)
    rng = np.random.default_rng(0)
    counts = rng.integers(1, successors + 1, 2 * n_states)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(2 * n_states), counts)
    # Each next state is in a part of its own: sorted, and no two are the same.
    place = np.arange(starts[-1]) - starts[rows]
    indices = place * n_states // counts[rows] + rng.integers(0, n_states // successors, starts[-1])
    data = rng.random(starts[-1])
    P = sp.csr_array((data / np.add.reduceat(data, starts[:-1])[rows], indices, starts), shape=(2 * n_states, n_states))
    return of.LayeredMDP.stationary(P, rng.random((n_states, 2)), 3, start=np.full(n_states, 1 / n_states)), P


def together(monkeypatch, kernel, before, after, n):
    """`kernel(*before, me, n, gate, *after)` in `n` threads; returns the result of each."""
    if n > 1 and INTERPRETED:
        # Without compilation there are no atomic operations, so Python's barrier is used.
        barrier = threading.Barrier(n)
        for module in (batch, chain, evaluation, forward, self_tuning, transposed_slices):
            monkeypatch.setattr(module, "barrier", lambda gate, me, n: barrier.wait(60) if n > 1 else None)
    gate = np.zeros(GATE, np.int64)
    with ThreadPoolExecutor(n) as pool:
        futures = [pool.submit(kernel, *before, me, n, gate, *after) for me in range(n)]
        return [future.result(timeout=900) for future in futures]


def forward_scratch(mdp, n, parts):
    """d, w and private of the forward pass of one policy in `n` threads."""
    t = mdp.transitions
    d = np.full(mdp.layout.n_states + 8, np.nan)
    w = np.full(n * forward.STATES * mdp.layout.n_actions if t.kind else t.most_rows, np.nan)
    return d, w, np.full(parts * max(mdp.layout.layer_sizes), np.nan)


def chain_work(mdp, n, parts, sliced):
    """`slices`, `d`, `w` and `private` of a chain, with a transposed copy of a CSR model or without."""
    t, copy = mdp.transitions, TransposedSlices()
    d, w, private = forward_scratch(mdp, n, parts)
    if not (sliced and t.kind):
        return copy.arrays(t, 0), d, w, private
    copy.make(t, parts)
    return copy.arguments[:5], d, aligned(t.most_rows), private


def parts_of(mdp):
    """Numbers of parts of a forward pass; dense dynamics only have one."""
    return (1, 3) if mdp.transitions.kind else (1,)


def chunks_of(mdp):
    """Chunk sizes: whole layers, and eight states."""
    return (mdp.layout.n_states, 8)


def packed_block(mdp):
    """Where the blocks of a pack of this layout and mask start."""
    sizes = [rows * states for rows, states in zip(mdp.transitions.layer_rows[:-1], mdp.layout.layer_sizes[1:], strict=True)]
    return np.array([0, *itertools.accumulate(sizes)], np.int64)


def close(actual, expected, rtol=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-13)
