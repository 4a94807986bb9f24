"""Rows of `work.py` for one operation on one model: evaluation, planning and occupancy, compared with other libraries and with NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import peers
import scipy.sparse as sp
from plain import numpy_evaluate, numpy_occupancy
from problems import csr_array, csr_mdp, dense_mdp, rng

import opo_fast as of


@cache
def operation_problem(name):
    generator = rng(3)
    if name == "stationary dense":
        P, losses = generator.dirichlet(np.ones(200), (200, 10)), generator.random((200, 10))
        mdp = of.LayeredMDP.stationary(P, losses, 50)
        return mdp, [np.ascontiguousarray(P[:1])] + [P] * 48, (P, losses)
    if name == "stationary CSR":
        P, losses = csr_array(20_000 * 4, 20_000, 8, generator), generator.random((20_000, 4))
        mdp = of.LayeredMDP.stationary(P, losses, 100)
        return mdp, [P[:4]] + [P] * 98, (P, losses)
    if name == "layered CSR":
        mdp = csr_mdp([1] + [200] * 99, 4, 8)
        return mdp, mdp.transitions.arrays(), None
    mdp = dense_mdp([1] + [20] * 19, 4)
    return mdp, mdp.transitions.arrays(), None


def read_block_again(name):
    """A lower bound for any evaluation of all pairs: reading the block that all layers share once for each layer."""
    from stream import read_again

    from opo_fast._support.threads import run_together

    mdp, _, _ = operation_problem(name)
    block = mdp.transitions.data[-(mdp.layout.layer_sizes[-1] ** 2) * mdp.layout.n_actions :].copy()
    return (lambda: run_together(read_again, (), (block, mdp.layout.horizon - 2), of.get_threads())), 1.0


def policy_of(mdp):
    policy = rng(4).random(mdp.layout.shape)
    return policy / policy.sum(axis=1, keepdims=True)


def evaluate_ours(name):
    """Values alone for a stationary CSR model, like the alternatives; elsewhere Q, too."""
    mdp, _, _ = operation_problem(name)
    policy = policy_of(mdp)
    if name == "stationary CSR":
        v = np.empty(mdp.layout.n_states)
        return (lambda: of.evaluate(mdp, policy, returns="v", out=v)), 1.0
    return (lambda: of.evaluate(mdp, policy)), 1.0


def with_rows(name):
    """A stationary model, its transitions with one line per row, and its losses."""
    mdp, _, (P, losses) = operation_problem(name)
    return mdp, P if sp.issparse(P) else P.reshape(losses.size, -1), losses


def evaluate_jax(name):
    mdp, P, losses = with_rows(name)
    return peers.induction(mdp, P, losses, policy_of(mdp))


def solve_jax(name):
    return peers.induction(*with_rows(name))


def occupancy_jax(name):
    mdp, P, _ = with_rows(name)
    return peers.occupancy(mdp, P, policy_of(mdp))


def solve_storm(name):
    mdp, _, (P, losses) = operation_problem(name)
    return peers.storm_induction(P, losses, mdp.layout.horizon - 1)


def evaluate_matrix(name):
    mdp, arrays, _ = operation_problem(name)
    policy, losses = policy_of(mdp), mdp.losses
    return (lambda: numpy_evaluate(mdp.layout, arrays, losses, policy)), 1.0


def occupancy_ours(name):
    mdp, _, _ = operation_problem(name)
    policy, out = policy_of(mdp), np.empty(mdp.layout.shape)
    return (lambda: of.occupancy(mdp, policy, out=out)), 1.0


def occupancy_matrix(name):
    mdp, arrays, _ = operation_problem(name)
    policy = policy_of(mdp)
    return (lambda: numpy_occupancy(mdp.layout, arrays, policy)), 1.0


def occupancy_transposed(name):
    """The same, with transposes that are computed in advance."""
    mdp, arrays, _ = operation_problem(name)
    kept = {id(array): array.T.tocsr() for array in arrays}
    policy, out, layout = policy_of(mdp), np.empty(mdp.layout.shape), mdp.layout

    def run():
        reach = np.ones(1)
        for h in range(layout.horizon):
            w = out[layout.layer(h)]
            np.multiply(reach[:, None], policy[layout.layer(h)], out=w)
            if h < layout.horizon - 1:
                reach = kept[id(arrays[h])] @ w.ravel()
        return out

    return run, 1.0


def solve_ours(name):
    """With Q and the policy, in arrays that are given."""
    mdp, _, _ = operation_problem(name)
    out = np.empty(mdp.layout.shape), np.empty(mdp.layout.n_states), np.empty(mdp.layout.shape)
    return (lambda: of.solve(mdp, out=out)), 1.0


def quantecon_induction(name):
    """Finite-horizon dynamic programming over the same transitions: the same sweeps, with a maximum instead of the mean."""
    from quantecon.markov import DiscreteDP
    from quantecon.markov.ddp import backward_induction

    mdp, _, (P, losses) = operation_problem(name)
    horizon = mdp.layout.horizon
    if sp.issparse(P):
        n_states, n_actions = losses.shape
        states, actions = np.repeat(np.arange(n_states), n_actions), np.tile(np.arange(n_actions), n_states)
        ddp = DiscreteDP(-losses.ravel(), sp.csr_matrix(P), 1.0, states, actions)
    else:
        ddp = DiscreteDP(-losses, P, 1.0)
    return (lambda: backward_induction(ddp, horizon)), 1.0


def mdptoolbox_induction(name):
    """pymdptoolbox's finite-horizon induction on (A, S, S) transitions."""
    from mdptoolbox.mdp import FiniteHorizon

    mdp, _, (P, losses) = operation_problem(name)
    if sp.issparse(P):
        n_states, n_actions = losses.shape
        transitions = [sp.csr_matrix(P[np.arange(n_states) * n_actions + a]) for a in range(n_actions)]
    else:
        transitions = np.ascontiguousarray(P.transpose(1, 0, 2))
    model = FiniteHorizon(transitions, -losses, 1.0, mdp.layout.horizon)
    return model.run, 1.0


def rows(Work):
    """Rows of the report."""
    both = {
        "NumPy matmul": lambda: evaluate_matrix("stationary dense"),
        "quantecon": lambda: quantecon_induction("stationary dense"),
        "JAX": lambda: evaluate_jax("stationary dense"),
    }
    sparse = {
        "SciPy CSR": lambda: evaluate_matrix("stationary CSR"),
        "quantecon": lambda: quantecon_induction("stationary CSR"),
        "JAX": lambda: evaluate_jax("stationary CSR"),
    }
    planning = {
        "JAX": lambda: solve_jax("stationary dense"),
        "quantecon": lambda: quantecon_induction("stationary dense"),
        "pymdptoolbox": lambda: mdptoolbox_induction("stationary dense"),
    }
    return [
        Work("evaluate, dense stationary, S=200, A=10, H=50", "kernels", lambda: evaluate_ours("stationary dense"), both, 4),
        Work(
            "evaluate, dense stationary, beside its floor",
            "kernels",
            lambda: evaluate_ours("stationary dense"),
            {"reading the block for each layer": lambda: read_block_again("stationary dense")},
            1.25,
            within=True,
        ),
        Work(
            "evaluate, CSR stationary, S=20,000, A=4, 8 successors, H=100", "kernels", lambda: evaluate_ours("stationary CSR"), sparse, 2.5
        ),
        Work(
            "solve, CSR stationary, S=20,000, A=4, 8 successors, H=100",
            "kernels",
            lambda: solve_ours("stationary CSR"),
            {
                "quantecon": lambda: quantecon_induction("stationary CSR"),
                "JAX": lambda: solve_jax("stationary CSR"),
                "Storm": lambda: solve_storm("stationary CSR"),
            },
            2.5,
        ),
        Work(
            "occupancy, CSR stationary, S=20,000, A=4, 8 successors, H=100",
            "kernels",
            lambda: occupancy_ours("stationary CSR"),
            {
                "SciPy CSR, transposes kept": lambda: occupancy_transposed("stationary CSR"),
                "JAX, transposes kept": lambda: occupancy_jax("stationary CSR"),
            },
            2.5,
        ),
        Work("solve, dense stationary, S=200, A=10, H=50", "kernels", lambda: solve_ours("stationary dense"), planning, 4),
        Work(
            "evaluate, CSR, 100 layers of 200 states, A=4, 8 successors",
            "kernels",
            lambda: evaluate_ours("layered CSR"),
            {"SciPy CSR per layer": lambda: evaluate_matrix("layered CSR")},
            3,
        ),
        Work(
            "occupancy, CSR, 100 layers of 200 states, A=4, 8 successors",
            "kernels",
            lambda: occupancy_ours("layered CSR"),
            {"SciPy CSR, transposes kept": lambda: occupancy_transposed("layered CSR")},
            3,
        ),
        Work(
            "evaluate, S=20, A=4, H=20, public function",
            "kernels",
            lambda: evaluate_ours("small"),
            {"NumPy matmul loop": lambda: evaluate_matrix("small")},
            8,
        ),
        Work(
            "occupancy, S=20, A=4, H=20, public function",
            "kernels",
            lambda: occupancy_ours("small"),
            {"NumPy matmul loop": lambda: occupancy_matrix("small")},
            8,
        ),
    ]
