"""Random layered models for property tests, in every storage, with and without masks, down to one layer, state and action."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

import opo_fast as of

FORMS = ("dense", "csr", "stationary", "stationary csr")


def random_rows(rng: np.random.Generator, n_rows: int, n_next: int, density: float = 1.0) -> np.ndarray:
    """Distributions (n_rows, n_next); below a density of 1 most entries are exactly 0, at least one per row is not."""
    rows = rng.dirichlet(np.ones(n_next), size=n_rows)
    if density < 1.0:
        keep = rng.random(rows.shape) < density
        keep[np.arange(n_rows), rng.integers(n_next, size=n_rows)] = True
        rows = np.where(keep, rows, 0.0)
        rows /= rows.sum(axis=1, keepdims=True)
    return rows


def random_mask(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A mask that allows at least one action in every state."""
    mask = rng.random(shape) < 0.6
    mask[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] = True
    return mask


def random_transitions(
    rng: np.random.Generator, sizes: Sequence[int], n_actions: int, *, sparse: bool = False, density: float = 1.0
) -> list[Any]:
    """Transitions as `LayeredMDP` takes them."""
    blocks = []
    for n, n_next in itertools.pairwise(sizes):
        rows = random_rows(rng, n * n_actions, n_next, density)
        blocks.append(sp.csr_array(rows) if sparse else rows.reshape(n, n_actions, n_next))
    return blocks


def random_model(
    rng: np.random.Generator,
    sizes: Sequence[int],
    n_actions: int,
    form: str = "dense",
    *,
    masked: bool = False,
    density: float = 1.0,
    dtype: Any = np.float64,
    mask: np.ndarray | None = None,
) -> of.LayeredMDP:
    """A random model; for the stationary forms `sizes` is [1, S, ..., S] and the start a distribution."""
    sparse = form.endswith("csr")
    if form.startswith("stationary"):
        n_states = sizes[-1]
        base = (n_states, n_actions)
        if masked:
            mask = random_mask(rng, base)
        P: Any = random_rows(rng, n_states * n_actions, n_states, density)
        P = sp.csr_array(P) if sparse else P.reshape(n_states, n_actions, n_states)
        start = rng.dirichlet(np.ones(n_states))
        return of.LayeredMDP.stationary(P, rng.random(base), max(1, len(sizes) - 1), start, mask, dtype=dtype)
    layout = of.Layout(sizes, n_actions)
    if masked:
        mask = random_mask(rng, layout.shape)
    blocks = random_transitions(rng, sizes, n_actions, sparse=sparse, density=density)
    return of.LayeredMDP(layout, rng.random(layout.shape), blocks, mask, dtype=dtype)


def random_policy(rng: np.random.Generator, mdp: of.LayeredMDP, *, deterministic: bool = False) -> np.ndarray:
    """A policy of `mdp`, random in every state, or one allowed action in every state."""
    allowed = np.ones(mdp.layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    weights = np.where(allowed, rng.exponential(size=mdp.layout.shape), 0.0)
    if deterministic:
        return (weights == weights.max(axis=1, keepdims=True)).astype(np.float64)
    return weights / weights.sum(axis=1, keepdims=True)


@st.composite
def layer_sizes(draw: st.DrawFn, *, stationary: bool = False, max_horizon: int = 5, max_size: int = 9) -> list[int]:
    """Sizes of layers, the first of 1; H = 1 and one-state layers included."""
    later = draw(st.integers(0 if not stationary else 1, max_horizon - 1))
    if stationary:
        return [1] + [draw(st.integers(1, max_size))] * later
    return [1, *(draw(st.integers(1, max_size)) for _ in range(later))]


@st.composite
def models(draw: st.DrawFn, *, forms: Sequence[str] = FORMS, max_horizon: int = 5, max_actions: int = 5) -> of.LayeredMDP:
    """A random model in one of the forms, masked or not, full or sparse."""
    form = draw(st.sampled_from(forms))
    sizes = draw(layer_sizes(stationary=form.startswith("stationary"), max_horizon=max_horizon))
    n_actions = draw(st.integers(1, max_actions))
    masked, density = draw(st.booleans()), draw(st.sampled_from([1.0, 0.3]))
    return random_model(seeded(draw), sizes, n_actions, form, masked=masked, density=density)


@st.composite
def models_with_policy(draw: st.DrawFn, *, forms: Sequence[str] = FORMS) -> tuple[of.LayeredMDP, np.ndarray]:
    """A random model and a random policy of it."""
    mdp = draw(models(forms=forms))
    return mdp, random_policy(seeded(draw), mdp, deterministic=draw(st.booleans()))


def seeded(draw: st.DrawFn) -> np.random.Generator:
    """A generator whose seed hypothesis chooses."""
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def answers(mdp, policy=None):
    """Bytes of the results of all operations on a model."""
    policy = mdp.uniform_policy() if policy is None else policy
    parts = [of.occupancy(mdp, policy), *of.evaluate(mdp, policy), *of.solve(mdp)]
    parts.append(of.policy_chain([mdp] * 3, eta=0.5, beta_loss=0.3, beta_dynamics=0.1))
    return b"".join(part.tobytes() for part in parts)


class Listed:
    """Fit i is model i, at every context."""

    def __init__(self, models):
        self.models = models

    def losses(self, fit, context):
        return self.models[fit].row_losses

    def transitions(self, fit, context):
        return self.models[fit].transitions
