"""Rows that are near what the machine can do: our time, that of the alternatives, and that of a bare loop with the same reads.

python bench/floors.py              # all rows
python bench/floors.py -k CSR -r 9  # rows whose name has this in it, and how many rounds

NUMBA_NUM_THREADS says how many threads there are, of BLAS as well (OPENBLAS_NUM_THREADS); JAX uses the processors that `taskset` leaves
it. All contenders of a row take turns in one process, two calls each, of which the second counts; figures are medians and, in brackets,
minima. A ratio is an alternative's time by ours, and by the floor's: what no code that reads the same numbers could exceed.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import many
import numba
import numpy as np
import single
import work
from plain import numpy_evaluate
from problems import csr_mdp
from stationary import made
from stream import read_sum

import opo_fast as of
from opo_fast._support.threads import run_together
from opo_fast.kernels._groups import AHEAD
from opo_fast.kernels._jit import kernel
from opo_fast.kernels._simd import prefetch, vfma, vgather, vload, vset, vsum
from opo_fast.kernels._sync import barrier
from opo_fast.model.slices import ROWS_WORTH, TRANSPOSED_WORTH

# -- floors ----------------------------------------------------------------------------------------------------------------


@kernel
def gather_again(me, n, gate, data, indices, v, times):
    """sum of data[p] v[indices[p]], `times` over: every transition is read, its value gathered, and nothing is written."""
    lo = data.size // 16 * me // n * 16
    hi = data.size // 16 * (me + 1) // n * 16
    a0 = a1 = vset(0.0)
    for _ in range(times):
        for p in range(lo, hi, 16):
            prefetch(data, p + AHEAD)
            prefetch(data, p + AHEAD + 8)
            prefetch(indices, p + AHEAD)
            a0 = vfma(vload(data, p), vgather(v, 0, indices, p), a0)
            a1 = vfma(vload(data, p + 8), vgather(v, 0, indices, p + 8), a1)
        barrier(gate, me, n)
    return vsum(a0) + vsum(a1) > 1e300


def gathers(name, times):
    t = single.operation_problem(name)[0].transitions
    begin, n = int(t.block[1]), int(t.indptr[t.block[1] + 80_000] - t.indptr[t.block[1]])
    first = int(t.indptr[begin])
    data, indices = t.data[first : first + n].copy(), t.indices[first : first + n].copy()
    v = np.ones(20_000)
    return lambda: run_together(gather_again, (), (data, indices, v, times), of.get_threads())


def gathers_of_slices(name, times):
    mdp = single.operation_problem(name)[0]
    for _ in range(TRANSPOSED_WORTH + 1):
        of.occupancy(mdp, mdp.uniform_policy())
    starts, _, positions, weights, first, *_ = mdp.transitions.transposed_slices.arguments
    part = slice(int(starts[first[1]]), None)
    data, indices = weights[part].copy(), positions[part].copy()
    w = np.ones(int(indices.max()) + 1)
    return lambda: run_together(gather_again, (), (data, indices, w, times), of.get_threads())


def reading(*arrays):
    """Pass over arrays once, with all threads."""
    threads = of.get_threads()
    arrays = [array.reshape(-1).view(np.uint8)[: array.nbytes // 8 * 8].view(np.float64) for array in arrays]
    parts = [(a, i * (a.size // threads), (i + 1) * (a.size // threads)) for i in range(threads) for a in arrays]
    if threads == 1:
        return lambda: [read_sum(*part) for part in parts]
    pool = ThreadPoolExecutor(threads)

    def run():
        list(pool.map(lambda i: [read_sum(*part) for part in parts[i * len(arrays) : (i + 1) * len(arrays)]], range(threads)))

    return run


def moving(writes):
    """What 64 policies under a CSR model must move: the policies come in, and with `writes` as many occupancies go out."""
    policies = many.stationary("csr")[3]
    if not writes:
        return reading(policies)
    out = np.empty(policies.shape)
    return lambda: np.copyto(out, policies)


def products():
    """The products of 64 policies alone, by the library's BLAS."""
    mdp, P, *_ = many.stationary("dense")
    v, turned = np.ones((many.B, 200)), np.ascontiguousarray(P.T)
    out = np.empty((many.B, turned.shape[1]))

    def run():
        for _ in range(mdp.layout.horizon - 1):
            np.matmul(v, turned, out=out)

    return run


def products_forward():
    mdp, P, *_ = many.stationary("dense")
    w, out = np.ones((many.B, P.shape[0])), np.empty((many.B, 200))

    def run():
        for _ in range(mdp.layout.horizon - 1):
            np.matmul(w, P, out=out)

    return run


# -- alternatives -----------------------------------------------------------------------------------------------------------


@numba.njit(parallel=True, cache=True, fastmath=True)
def parallel_sweep(data, indices, indptr, losses, policy, greedy, v, out):
    for s in numba.prange(losses.shape[0]):
        total, least = 0.0, np.inf
        for a in range(losses.shape[1]):
            r = s * losses.shape[1] + a
            x = losses[s, a]
            for p in range(indptr[r], indptr[r + 1]):
                x += data[p] * v[indices[p]]
            total += policy[s, a] * x
            least = min(least, x)
        out[s] = least if greedy else total


def parallel_loop(greedy):
    """A good loop of one's own, on all of Numba's threads."""
    mdp, _, (P, losses) = single.operation_problem("stationary CSR")
    policy, v = single.policy_of(mdp), np.zeros((mdp.layout.horizon, 20_000))

    def run():
        for h in range(mdp.layout.horizon - 2, -1, -1):
            parallel_sweep(P.data, P.indices, P.indptr, losses, policy[-20_000:], greedy, v[h + 1], v[h])

    return run


@cache
def layered(n_states, horizon):
    return csr_mdp([1] + [n_states] * horizon, 4, 8)


def layered_ours(*sizes):
    """After the first calls, by when the model has its copy in slices; values alone, like the alternative."""
    mdp = layered(*sizes)
    policy, out = single.policy_of(mdp), np.empty(mdp.layout.n_states)
    for _ in range(ROWS_WORTH + 1):
        of.evaluate(mdp, policy, returns="v", out=out)
    return lambda: of.evaluate(mdp, policy, returns="v", out=out)


def layered_scipy(*sizes):
    mdp = layered(*sizes)
    arrays, policy = mdp.transitions.arrays(), single.policy_of(mdp)
    return lambda: numpy_evaluate(mdp.layout, arrays, mdp.losses, policy)


def layered_bytes(*sizes):
    mdp = layered(*sizes)
    t = mdp.transitions
    return reading(t.data, t.indices, t.indptr, mdp.losses, single.policy_of(mdp))


def small_blocks():
    mdps, _ = many.small_models()
    return reading(*(mdp.transitions.data for mdp in mdps))


@cache
def million():
    P, losses = made(1_000_000, 4, 8)
    return of.LayeredMDP.stationary(P, losses, 8, start=np.full(1_000_000, 1e-6))


def million_occupancy(threads):
    mdp = million()
    policy, out = mdp.uniform_policy(), np.empty(mdp.layout.shape)

    def run():
        of.set_threads(threads)
        of.occupancy(mdp, policy, out=out)
        of.set_threads(None)

    return run


def of_work(maker, *args):
    return lambda: maker(*args)[0]


CSR = "stationary CSR"
ROWS = {
    "CSR stationary, evaluate": (
        of_work(single.evaluate_ours, CSR),
        {
            "SciPy": of_work(single.evaluate_matrix, CSR),
            "parallel Numba": lambda: parallel_loop(False),
            "JAX": of_work(single.evaluate_jax, CSR),
        },
        lambda: gathers(CSR, 99),
    ),
    "CSR stationary, solve": (
        of_work(single.solve_ours, CSR),
        {
            "quantecon": of_work(single.quantecon_induction, CSR),
            "parallel Numba": lambda: parallel_loop(True),
            "JAX": of_work(single.solve_jax, CSR),
            "Storm": of_work(single.solve_storm, CSR),
        },
        lambda: gathers(CSR, 99),
    ),
    "CSR stationary, occupancy": (
        of_work(single.occupancy_ours, CSR),
        {"SciPy, kept transpose": of_work(single.occupancy_transposed, CSR), "JAX": of_work(single.occupancy_jax, CSR)},
        lambda: gathers_of_slices(CSR, 98),
    ),
    "64 policies, CSR, evaluate": (of_work(many.evaluate_many, "csr"), {"SciPy": of_work(many.scipy_evaluate_many)}, lambda: moving(False)),
    "64 policies, CSR, occupancy": (
        of_work(many.occupancy_many, "csr"),
        {"SciPy": of_work(many.scipy_occupancy_many)},
        lambda: moving(True),
    ),
    "64 policies, dense, evaluate": (
        of_work(many.evaluate_many, "dense"),
        {"NumPy": of_work(many.numpy_evaluate_many), "JAX": of_work(many.jax_evaluate_many)},
        products,
    ),
    "64 policies, dense, occupancy": (
        of_work(many.occupancy_many, "dense"),
        {"NumPy": of_work(many.numpy_occupancy_many), "JAX": of_work(many.jax_occupancy_many)},
        products_forward,
    ),
    "64 small models": (
        of_work(many.models_ours),
        {"NumPy": of_work(many.models_numpy), "parallel Numba": of_work(many.models_loop), "JAX": of_work(many.models_jax)},
        small_blocks,
    ),
    "dense 200 x 10 x 50, evaluate": (
        of_work(single.evaluate_ours, "stationary dense"),
        {"NumPy": of_work(single.evaluate_matrix, "stationary dense")},
        of_work(single.read_block_again, "stationary dense"),
    ),
    "dense 200 x 10 x 50, solve": (
        of_work(single.solve_ours, "stationary dense"),
        {"quantecon": of_work(single.quantecon_induction, "stationary dense")},
        of_work(single.read_block_again, "stationary dense"),
    ),
    "dense 200 x 10 x 50, occupancy": (
        of_work(single.occupancy_ours, "stationary dense"),
        {"NumPy": of_work(single.occupancy_matrix, "stationary dense")},
        of_work(single.read_block_again, "stationary dense"),
    ),
    "layered CSR 10,000 x 100": (
        lambda: layered_ours(10_000, 100),
        {"SciPy": lambda: layered_scipy(10_000, 100)},
        lambda: layered_bytes(10_000, 100),
    ),
    "layered CSR 1,000 x 1,000": (
        lambda: layered_ours(1_000, 1_000),
        {"SciPy": lambda: layered_scipy(1_000, 1_000)},
        lambda: layered_bytes(1_000, 1_000),
    ),
    "million states, random, occupancy": (lambda: million_occupancy(None), {"one thread": lambda: million_occupancy(1)}, None),
    "million states, band, a chain step": (of_work(work.large_step, "band"), {}, of_work(work.read_twice, "band")),
    "build, layered CSR of 500 MB": (
        of_work(many.build, "CSR of 500 MB"),
        {"one evaluation": of_work(many.sweep, "CSR of 500 MB")},
        None,
    ),
    "build, dense": (of_work(many.build, "dense"), {"one evaluation": of_work(many.sweep, "dense")}, None),
}


def measure(contenders, rounds):
    """Medians and minima of the contenders' times, which take turns."""
    times = {name: [] for name in contenders}
    for run in contenders.values():
        run()
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            # Threads of other libraries turn for a while when they have nothing to do.
            time.sleep(0.02)
            run()
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: (float(np.median(each)), min(each)) for name, each in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="part of the names of the rows wanted")
    parser.add_argument("-r", type=int, default=11, help="rounds")
    options = parser.parse_args()
    print(f"{of.get_threads()} threads")
    for name, (ours, others, floor) in ROWS.items():
        if options.k not in name:
            continue
        contenders = {"ours": ours()}
        for other, maker in others.items():
            try:
                contenders[other] = maker()
            except ModuleNotFoundError as error:
                print(f"{other} is left out, {error}: the extra `bench` installs it")
        if floor is not None:
            contenders["floor"] = floor()
        found = measure(contenders, options.r)
        ms = ", ".join(f"{key} {m * 1e3:.2f} ({least * 1e3:.2f})" for key, (m, least) in found.items())
        print(f"{name}: {ms} ms")
        bounds = [key for key in ("ours", "floor") if key in found]
        for other in (name for name in others if name in found):
            print("   " + ", ".join(f"{other} by {key} {found[other][0] / found[key][0]:.2f}" for key in bounds))
        if floor is not None:
            print(f"   ours by floor {found['ours'][0] / found['floor'][0]:.2f} ({found['ours'][1] / found['floor'][1]:.2f})")


if __name__ == "__main__":
    main()
