"""Optimistic policy optimization at one context, written by hand in NumPy; after changing one import it runs on compiled kernels.

    python examples/dropin.py [SECONDS]     # times both at four sizes, about SECONDS each (default 2)

The loop below is a simple relative of Algorithm 1 of the paper, over a growing history of fits: it keeps a sum of occupancies for each
dynamics, that of the current policy included, and subtracts one bonus from Q after the evaluation. (Algorithm 1 subtracts two inside it and
raises Q to 0; `opo_fast.PolicyChain` does that.) Its four operations come from `ops`: the NumPy functions in this file, or `import opo_fast
as ops`.
"""

import itertools
import sys
import time
from types import SimpleNamespace

import numpy as np

import opo_fast

# -- four operations in NumPy --------------------------------------------------------------------------------------------------------------


def occupancy(mdp, policy):
    """The probability of each state-action pair, layer by layer."""
    d, parts = np.ones(1), []
    for states, P in zip(mdp.layers, [*mdp.P, None], strict=True):
        parts.append(d[:, None] * policy[states])
        d = None if P is None else np.einsum("sa,sat->t", parts[-1], P)
    return np.concatenate(parts)


def evaluate(mdp, policy):
    """Q and V, from the last layer to the first."""
    q, v = np.empty(policy.shape), np.empty(len(policy))
    for h in reversed(range(len(mdp.layers))):
        states = mdp.layers[h]
        q[states] = mdp.losses[states] + (mdp.P[h] @ v[mdp.layers[h + 1]] if h < len(mdp.P) else 0.0)
        v[states] = (policy[states] * q[states]).sum(axis=1)
    return q, v


def bonus(visits, beta):
    return np.minimum(1.0, beta / 2 / (1 + visits))


def exponential_weights(policy, q, eta):
    weights = policy * np.exp(-eta * (q - q.min(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True)


numpy_ops = SimpleNamespace(occupancy=occupancy, evaluate=evaluate, bonus=bonus, exponential_weights=exponential_weights)

# -- the loop ------------------------------------------------------------------------------------------------------------------------------


def opo(ops, fits, order, steps, eta=1.0, beta=0.2):
    """The policy after `steps` steps; step k uses the fit `order[k]`, and its bonus the visits under that fit."""
    policy = np.full(fits[0].losses.shape, 1 / fits[0].losses.shape[1])
    visits, done, played = {k: np.zeros(policy.shape) for k in range(len(fits))}, dict.fromkeys(range(len(fits)), 0), [policy]
    for k in order[:steps]:
        for old in played[done[k] :]:
            visits[k] += ops.occupancy(fits[k], old)
        done[k] = len(played)
        q, _ = ops.evaluate(fits[k], policy)
        policy = ops.exponential_weights(policy, q - ops.bonus(visits[k], beta), eta)
        played.append(policy)
    return policy


# -- the models in two forms, and the comparison -------------------------------------------------------------------------------------------


def models(n_states, n_actions, horizon, count=3):
    """The same random fits in two forms: plain arrays, and validated models."""
    rng = np.random.default_rng(0)
    layout = opo_fast.Layout([1, *[n_states] * (horizon - 1)], n_actions)
    sizes, starts = layout.layer_sizes, np.cumsum([0, *layout.layer_sizes])
    plain, compiled = [], []
    for _ in range(count):
        losses = rng.random(layout.shape)
        P = [rng.dirichlet(np.ones(b), (a, n_actions)) for a, b in itertools.pairwise(sizes)]
        layers = [slice(a, b) for a, b in itertools.pairwise(starts)]
        plain.append(SimpleNamespace(losses=losses, P=P, layers=layers))
        compiled.append(opo_fast.LayeredMDP(layout, losses, P))
    return plain, compiled


def main(seconds=2.0):
    print("states  actions  horizon  steps   NumPy  opo_fast  times faster  largest difference")
    for n_states, n_actions, horizon in ((3, 3, 4), (20, 4, 20), (100, 5, 20), (400, 10, 10)):
        plain, compiled = models(n_states, n_actions, horizon)
        order = np.random.default_rng(1).integers(len(plain), size=10_000)
        opo(opo_fast, compiled, order, 3)  # compile
        begin = time.perf_counter()
        opo(numpy_ops, plain, order, 3)
        steps = max(4, min(1000, int(seconds * 3 / (time.perf_counter() - begin) / 2)))
        times, policies = [], []
        for ops, fits in ((numpy_ops, plain), (opo_fast, compiled)):
            begin = time.perf_counter()
            policies.append(opo(ops, fits, order, steps))
            times.append(time.perf_counter() - begin)
        print(
            f"{n_states:6d}  {n_actions:7d}  {horizon:7d}  {steps:5d}  {times[0]:5.2f}s  {times[1]:7.2f}s  {times[0] / times[1]:12.1f}"
            f"  {np.abs(policies[0] - policies[1]).max():.1e}"
        )
        assert np.allclose(*policies, rtol=1e-9, atol=1e-12)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
