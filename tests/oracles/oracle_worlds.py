"""Small models with a known truth, and logs drawn from them with plain NumPy, many trajectories at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import opo_fast as of
from opo_fast.oracles import TrajectoryLog


def draw_log(
    rng: np.random.Generator, layout: of.Layout, contexts: Sequence[Any], losses: np.ndarray, transitions: Sequence[np.ndarray], n: int
) -> TrajectoryLog:
    """n trajectories under the uniform policy: losses (K, n_states, A) and transitions (K, S_h, A, S_{h+1}) of K contexts."""
    which = rng.integers(len(contexts), size=n)
    horizon, offsets = layout.horizon, layout.offsets
    states = np.zeros((n, horizon + 1), np.int64)
    actions = rng.integers(layout.n_actions, size=(n, horizon))
    for h in range(horizon - 1):
        p = transitions[h][which, states[:, h] - offsets[h], actions[:, h]]
        following = (rng.random((n, 1)) >= np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
        states[:, h + 1] = offsets[h + 1] + following
    states[:, -1] = layout.n_states
    means = losses[which[:, None], states[:, :-1], actions]
    observed = (rng.random(means.shape) < means).astype(np.float64)
    drawn = np.asarray(contexts)[which] if isinstance(contexts[0], np.ndarray) else [contexts[k] for k in which.tolist()]
    return TrajectoryLog(layout, drawn, states, actions, observed)


def random_blocks(
    rng: np.random.Generator, layout: of.Layout, n_contexts: int | None = None, concentration: float = 1.0
) -> list[np.ndarray]:
    """Random transitions, one array per layer, optionally with a leading axis of contexts."""
    sizes = layout.layer_sizes
    lead = () if n_contexts is None else (n_contexts,)
    return [rng.dirichlet(np.full(n_next, concentration), size=(*lead, n, layout.n_actions)) for n, n_next in pairwise(sizes)]


def numbers(oracle: Any, fit: Any, context: Any) -> np.ndarray:
    """The function of a fit at a context, flat."""
    if hasattr(oracle, "losses"):
        return np.asarray(oracle.losses(fit, context)).ravel()
    return np.concatenate(
        [np.asarray(block.toarray() if hasattr(block, "toarray") else block).ravel() for block in oracle.transitions(fit, context)]
    )


def exponent(sizes: Sequence[int], errors: np.ndarray) -> float:
    """Slope of log root-mean-square error (seeds in the first axis) over log n."""
    rms = np.sqrt(np.square(errors).mean(axis=0))
    return float(np.polyfit(np.log(sizes), np.log(rms), 1)[0])
