"""Rows of `work.py` for batches, building and updating models, compared with one product per layer and a parallel loop over models."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import peers
import scipy.sparse as sp
from problems import csr_array, csr_mdp, dense_mdp, rng

import opo_fast as of

B = 64


@cache
def stationary(name):
    """A model, its block (S A, S), losses (S, A), and 64 policies."""
    generator = rng(5)
    n_states, n_actions, horizon = (200, 10, 50) if name == "dense" else (2000, 4, 50)
    losses = generator.random((n_states, n_actions))
    if name == "dense":
        P = generator.dirichlet(np.ones(n_states), (n_states, n_actions))
    else:
        P = csr_array(n_states * n_actions, n_states, 8, generator)
    mdp = of.LayeredMDP.stationary(P, losses, horizon)
    policies = generator.random((B, *mdp.layout.shape))
    policies /= policies.sum(axis=2, keepdims=True)
    return mdp, P if sp.issparse(P) else P.reshape(-1, n_states), losses, policies


def evaluate_many(name, returns="v"):
    mdp, _, _, policies = stationary(name)
    v = np.empty(policies.shape[:2])
    out = v if returns == "v" else (np.empty(policies.shape), v)
    return (lambda: of.evaluate(mdp, policies, returns=returns, out=out)), 1.0


def occupancy_many(name):
    mdp, _, _, policies = stationary(name)
    out = np.empty(policies.shape)
    return (lambda: of.occupancy(mdp, policies, out=out)), 1.0


def numpy_evaluate_many():
    """One product (64, S) times (S, S A) per layer; only the newest values are kept."""
    mdp, P, losses, policies = stationary("dense")
    layout, (n_states, n_actions), turned = mdp.layout, losses.shape, np.ascontiguousarray(P.T)

    def run():
        v = np.zeros((B, n_states))
        for h in range(layout.horizon - 1, 0, -1):
            q = (v @ turned).reshape(B, n_states, n_actions)
            q += losses
            v = np.einsum("bsa,bsa->bs", policies[:, layout.layer(h)], q)
        return (policies[:, 0] * (v @ turned[:, :n_actions] + losses[0])).sum(axis=1)

    return run, 1.0


def numpy_occupancy_many():
    mdp, P, _, policies = stationary("dense")
    layout, out = mdp.layout, np.empty(policies.shape)

    def run():
        reach = np.ones((B, 1))
        for h in range(layout.horizon):
            w = out[:, layout.layer(h)]
            np.multiply(reach[:, :, None], policies[:, layout.layer(h)], out=w)
            if h < layout.horizon - 1:
                reach = w.reshape(B, -1) @ P[: w[0].size]
        return out

    return run, 1.0


def jax_evaluate_many():
    mdp, P, losses, policies = stationary("dense")
    return peers.evaluate_many(mdp, P.T, losses, policies)


def jax_occupancy_many():
    mdp, P, _, policies = stationary("dense")
    return peers.occupancy_many(mdp, P, policies)


def scipy_evaluate_many():
    """SciPy CSR times (S, 64); the batch is the last axis of the policies, which is the fast layout for SciPy."""
    mdp, P, losses, policies = stationary("csr")
    layout, (n_states, n_actions) = mdp.layout, losses.shape
    turned = np.ascontiguousarray(policies.transpose(1, 2, 0))

    def run():
        v = np.zeros((n_states, B))
        for h in range(layout.horizon - 1, 0, -1):
            q = (P @ v).reshape(n_states, n_actions, B)
            q += losses[:, :, None]
            v = np.einsum("sab,sab->sb", turned[layout.layer(h)], q)
        return (turned[0] * (P[:n_actions] @ v + losses[0][:, None])).sum(axis=0)

    return run, 1.0


def scipy_occupancy_many():
    """The same, with a transpose that is computed in advance."""
    mdp, P, _, policies = stationary("csr")
    layout, turned, out = mdp.layout, np.ascontiguousarray(policies.transpose(1, 2, 0)), np.empty((*mdp.layout.shape, B))
    forward, first = P.T.tocsr(), P[: layout.n_actions].T.tocsr()

    def run():
        reach = np.ones((1, B))
        for h in range(layout.horizon):
            w = out[layout.layer(h)]
            np.multiply(reach[:, None, :], turned[layout.layer(h)], out=w)
            if h < layout.horizon - 1:
                reach = (forward if h else first) @ w.reshape(-1, B)
        return out

    return run, 1.0


@cache
def small_models():
    mdps = [dense_mdp([1] + [20] * 19, 4, seed) for seed in range(B)]
    policy = rng(6).random(mdps[0].layout.shape)
    return mdps, policy / policy.sum(axis=1, keepdims=True)


def stacked(mdps):
    """The blocks of the models (B, S_h A, S_{h+1}), layer by layer."""
    layers = zip(*(mdp.transitions.arrays() for mdp in mdps), strict=True)
    return [np.stack(arrays).reshape(B, -1, arrays[0].shape[-1]) for arrays in layers]


def models_ours():
    mdps, policy = small_models()
    v = np.empty((B, mdps[0].layout.n_states))
    return (lambda: of.evaluate(mdps, policy, returns="v", out=v)), 1.0


def models_numpy():
    mdps, policy = small_models()
    layout, losses, stacks = mdps[0].layout, np.stack([mdp.losses for mdp in mdps]), stacked(mdps)

    def run():
        v = np.zeros((B, layout.layer_sizes[-1]))
        for h in range(layout.horizon - 1, -1, -1):
            q = losses[:, layout.layer(h)]
            if h < layout.horizon - 1:
                q = q + (stacks[h] @ v[:, :, None]).reshape(q.shape)
            v = np.einsum("sa,bsa->bs", policy[layout.layer(h)], q)
        return v

    return run, 1.0


def models_jax():
    mdps, policy = small_models()
    return peers.models_together(stacked(mdps), np.stack([mdp.losses for mdp in mdps]), policy, mdps[0].layout)


@numba.njit(parallel=True, cache=True)
def loop_over_models(blocks, starts, layers, losses, policy, v):
    for b in numba.prange(len(blocks)):
        for h in range(len(layers) - 2, -1, -1):
            n_next = layers[h + 2] - layers[h + 1] if h < len(layers) - 2 else 0
            for s in range(layers[h], layers[h + 1]):
                value = 0.0
                for a in range(policy.shape[1]):
                    x = losses[b, s, a]
                    base = starts[h] + ((s - layers[h]) * policy.shape[1] + a) * n_next
                    for j in range(n_next):
                        x += blocks[b, base + j] * v[b, layers[h + 1] + j]
                    value += policy[s, a] * x
                v[b, s] = value


def models_loop():
    mdps, policy = small_models()
    blocks = np.stack([np.concatenate([array.ravel() for array in mdp.transitions.arrays()]) for mdp in mdps])
    layout, losses = mdps[0].layout, np.stack([mdp.losses for mdp in mdps])
    v, starts = np.empty((B, layout.n_states)), np.array(layout.dense_block)
    return (lambda: loop_over_models(blocks, starts, layout.offsets, losses, policy, v)), 1.0


@cache
def built(name):
    """A model and its arrays."""
    if name == "small dense":
        mdp = dense_mdp([1] + [20] * 19, 4)
    elif name == "dense":
        mdp = dense_mdp([1] + [300] * 9, 4)
    else:
        mdp = csr_mdp([1] + [10_000] * (131 if name == "CSR of 500 MB" else 20), 4, 8)
    return mdp, mdp.transitions.arrays()


def build(name):
    mdp, arrays = built(name)
    return (lambda: of.LayeredMDP(mdp.layout, mdp.losses, arrays)), 1.0


def update(name):
    mdp, arrays = built(name)
    model = of.UpdatableMDP(mdp.layout, mdp.losses, arrays)
    return (lambda: model.update(mdp.losses, arrays)), 1.0


def sweep(name):
    mdp, _ = built(name)
    policy = mdp.uniform_policy()
    out = np.empty(mdp.layout.shape), np.empty(mdp.layout.n_states)
    return (lambda: of.evaluate(mdp, policy, out=out)), 1.0


def rows(Work):
    """Rows of the report."""
    gemm, spmm, jax = "NumPy, one product per layer", "SciPy CSR times (S, 64)", "JAX"
    dense, sparse = "64 policies, dense stationary, S=200, A=10, H=50", "64 policies, CSR stationary, S=2,000, A=4, 8 successors, H=50"
    result = [
        Work(f"evaluate, {dense}", "batches", lambda: evaluate_many("dense"), {gemm: numpy_evaluate_many, jax: jax_evaluate_many}, 1.3),
        Work(f"occupancy, {dense}", "batches", lambda: occupancy_many("dense"), {gemm: numpy_occupancy_many, jax: jax_occupancy_many}, 1.3),
        Work(f"evaluate, {sparse}", "batches", lambda: evaluate_many("csr"), {spmm: scipy_evaluate_many}, 2),
        Work(f"occupancy, {sparse}", "batches", lambda: occupancy_many("csr"), {spmm: scipy_occupancy_many}, 2),
        Work(
            "evaluate, 64 small models, S=20, A=4, H=20, one policy",
            "batches",
            models_ours,
            {"NumPy batched product": models_numpy, "parallel Numba over models": models_loop, jax: models_jax},
            2,
        ),
    ]
    for name, within in (("small dense", 3), ("dense", 3), ("layered CSR", 4)):
        evaluation = {"one evaluation": lambda name=name: sweep(name)}
        result.append(Work(f"build, {name}", "building", lambda name=name: build(name), evaluation, within, within=True))
        result.append(Work(f"update, {name}", "building", lambda name=name: update(name), evaluation, within, within=True))
    return result
