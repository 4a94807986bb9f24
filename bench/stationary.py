"""A large stationary model compared with SciPy: memory relative to the input, times relative to `losses + P @ v` and its minimum.

python bench/stationary.py                                # a million states, 4 actions, 8 random successors, 100 layers
python bench/stationary.py --states 100000 --horizon 20

NUMBA_NUM_THREADS sets the number of threads. The input is P in CSR with 32-bit indices and the losses. SciPy's loop keeps the values of
all layers, as `solve(returns="v")` does, and takes the minimum over the actions column by column, which is several times faster than
``min(axis=1)``.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import time

import numpy as np
import scipy.sparse as sp

import opo_fast as of


def memory(which):
    """Bytes of this process: VmRSS now, or VmHWM, the peak since `forget_peak`."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which + ":"))


def forget_peak():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def made(states, actions, successors, seed=0):
    """P and losses. The states are divided into as many parts as there are successors; each pair has one successor in each part."""
    rng, rows = np.random.default_rng(seed), states * actions
    indices = np.empty((rows, successors), np.int32)
    bounds = np.arange(successors + 1) * states // successors
    for j in range(successors):
        indices[:, j] = rng.integers(bounds[j], bounds[j + 1], rows, dtype=np.int32)
    data = rng.random((rows, successors))
    data /= data.sum(axis=1, keepdims=True)
    pointer = np.arange(rows + 1, dtype=np.int32) * np.int32(successors)
    return sp.csr_array((data.reshape(-1), indices.reshape(-1), pointer), shape=(rows, states)), rng.random((states, actions))


def plain_solve(P, losses, horizon):
    """Values (H, S), layer by layer."""
    v = np.empty((horizon, losses.shape[0]))
    q = losses
    for h in range(horizon - 1, -1, -1):
        if h < horizon - 1:
            q = (P @ v[h + 1]).reshape(losses.shape)
            q += losses
        np.minimum(q[:, 0], q[:, 1], out=v[h]) if q.shape[1] > 1 else np.copyto(v[h], q[:, 0])
        for a in range(2, q.shape[1]):
            np.minimum(v[h], q[:, a], out=v[h])
    return v


def timed(function):
    """Seconds of a call, and by how much its peak of memory exceeds the memory before it; the result is included."""
    gc.collect()
    before = memory("VmRSS")
    forget_peak()
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, memory("VmHWM") - before, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("states", 1_000_000), ("actions", 4), ("successors", 8), ("horizon", 100), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    small = of.LayeredMDP.stationary(*made(1000, args.actions, 8), 3)
    for returns in ("v", "start"):
        of.solve(small, returns=returns)
    of.solve_layer(small, 1, np.zeros(1000))
    P, losses = made(args.states, args.actions, args.successors)
    size = P.data.nbytes + P.indices.nbytes + P.indptr.nbytes + losses.nbytes
    builds, plain, ours, start, layer = [], [], [], [], []
    peaks = {}
    for _ in range(args.rounds):
        mdp = None
        took, peaks["build"], mdp = timed(lambda: of.LayeredMDP.stationary(P, losses, args.horizon))
        builds.append(took)
        took, peaks["SciPy"], expected = timed(lambda: plain_solve(P, losses, args.horizon))
        plain.append(took)
        first, expected = expected[0, 0], expected[1].copy()
        took, peaks["v"], v = timed(lambda mdp=mdp: of.solve(mdp, returns="v"))
        ours.append(took)
        np.testing.assert_allclose(v[mdp.layout.layer(1)], expected, rtol=1e-12)
        took, peaks["layer"], _ = timed(lambda mdp=mdp, v=v: of.solve_layer(mdp, 1, v))
        layer.append(took)
        v = None
        took, peaks["start"], value = timed(lambda mdp=mdp: of.solve(mdp, returns="start"))
        start.append(took)
        np.testing.assert_allclose(value, first, rtol=1e-12)
    one = min(ours) / (args.horizon - 1)
    print(f"{of.get_threads()} threads, {args.states} x {args.actions} x {args.successors}, H = {args.horizon}, input {size / 1e6:.0f} MB")
    print(f"build: {min(builds):.2f} s, {min(builds) / one:.2f} sweeps of a layer, {min(builds) / min(ours):.3f} of all layers")
    print(f"values of all layers: {min(ours):.2f} s, SciPy {min(plain):.2f} s, {min(plain) / min(ours):.2f} times as fast")
    print(f"value of the start:   {min(start):.2f} s, {min(plain) / min(start):.2f} times as fast")
    print(f"policy of a layer:    {min(layer):.3f} s, {min(layer) / one:.2f} sweeps of a layer")
    print("peak of memory beyond the input, in inputs: " + ", ".join(f"{name} {peak / size:.2f}" for name, peak in peaks.items()))
    print(f"values of all layers are {args.horizon * args.states * 8 / size:.2f} inputs")


if __name__ == "__main__":
    main()
