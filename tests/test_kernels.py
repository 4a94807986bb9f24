"""Rules of compiled code: one compilation per kernel, no access outside its arrays, and a cache that notices edits."""

from __future__ import annotations

import math
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import textwrap
import warnings

import numba
import numpy as np
import pytest
from strategies import Listed, random_model, random_policy

import opo_fast as of
from opo_fast.algorithm import chain as chain_module
from opo_fast.algorithm import engine as engine_module
from opo_fast.algorithm import forms as forms_module
from opo_fast.algorithm import policies as policies_module
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import opo_rule
from opo_fast.kernels import _jit
from opo_fast.model import arguments, operations, scratch
from opo_fast.model import layered as layers
from opo_fast.model import transitions as transitions_module

ROOT = pathlib.Path(of.__file__).parents[1]
INTERPRETED = bool(numba.config.DISABLE_JIT)
compiled_only = pytest.mark.skipif(INTERPRETED, reason="the words are NumPy's when nothing is compiled")


def python(code, *, root=ROOT, **environment):
    """The output of a new process."""
    code = textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT / "tests")]), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- compilation -------------------------------------------------------------------------------------------------------

ALL_KERNELS = """
import importlib, pkgutil
import opo_fast.kernels
from numba.core.dispatcher import Dispatcher
from numba.core.types import unliteral

def kernels():
    # All functions that are compiled separately; parts that are inlined into their callers have no cache.
    for info in pkgutil.iter_modules(opo_fast.kernels.__path__, "opo_fast.kernels."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, Dispatcher) and value.py_func.__module__ == info.name:
                yield f"{info.name.rsplit('.')[-1]}.{name}", value

def count(kernel):
    # A constant in a calling kernel compiles a part for that constant, which no input does.
    return len({tuple(map(unliteral, arguments)) for arguments in kernel.signatures})
"""


@compiled_only
def test_import_compiles_nothing_and_loads_nothing_heavy():
    code = """
    import sys
    import numba.core.compiler as compiler
    def refuse(*args, **kwargs):
        raise AssertionError("compiled at import")
    compiler.compile_extra = refuse
    import opo_fast
    heavy = "matplotlib pandas sklearn gymnasium gym quantecon mdptoolbox joblib pyarrow lifelines dask distributed ray rich typer " \\
            "icu_sepsis scipy.stats scipy.optimize hypothesis pytest tkinter IPython"
    print([name for name in heavy.split() if name in sys.modules])
    """
    assert python(code) == "[]"
    counts = python(ALL_KERNELS + "import opo_fast\nprint(sorted({len(k.signatures) for _, k in kernels()}), len(list(kernels())))")
    assert counts.startswith("[0] ")
    assert int(counts.split()[1]) >= 15


EXERCISE = """
import pickle, sys
import numpy as np, scipy.sparse as sp
import opo_fast as of
from opo_fast.algorithm import engine
from opo_fast.model import transitions as transitions_module
from strategies import FORMS, random_model, random_policy

def flavours(array):
    # Writable, read-only, strided, Fortran-ordered, float32 and integer arrays, and a list.
    read_only = array.copy()
    read_only.flags.writeable = False
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]))
    wide[..., ::2] = array
    return [array, read_only, wide[..., ::2], np.asfortranarray(array), array.astype(np.float32), array.tolist()]

def exercise(dtype):
    rng = np.random.default_rng(0)
    for large in (False, True):
        transitions_module._WORTH_A_BARRIER = dict.fromkeys((0, 1), 1 if large else 1 << 15)
        for packed_most in (2048, -1):
            engine.PACKED_MOST = packed_most
            for form in FORMS:
                for masked in (False, True):
                    mdp = random_model(rng, [1, 5, 5, 5], 3, form, masked=masked, dtype=dtype)
                    for mdp in (mdp, pickle.loads(pickle.dumps(mdp))):
                        for policy in flavours(random_policy(rng, mdp)):
                            of.occupancy(mdp, policy)
                            of.evaluate(mdp, policy)
                            of.rollout(mdp, policy, rng)
                        of.solve(mdp)
                        other = mdp.with_losses(np.float32(1) * rng.random(mdp.layout.shape, np.float32))
                        more = of.LayeredMDP(mdp.layout, mdp.losses, mdp.transitions.arrays(), mdp.action_mask, dtype=dtype)
                        for eta, beta in ((1, 2), (0.5, np.float32(0.5)), (True, np.int32(3))):
                            of.policy_chain([mdp] * 3 + [other] + [more, mdp] * 2, eta=eta, beta_loss=beta, beta_dynamics=0.25)
    losses = rng.random((4, 3))
    for P in flavours(rng.dirichlet(np.ones(4), size=(4, 3))):
        for start in (0, np.int64(2), np.full(4, 0.25), [0.25] * 4):
            of.solve(of.LayeredMDP.stationary(P, losses, 3, start, dtype=dtype))
    for kind in (sp.csr_array, sp.coo_matrix, sp.csc_array):
        for index in (np.int32, np.int64):
            P = kind(np.full((12, 4), 0.25))
            if kind is sp.csr_array:
                P.indices, P.indptr = P.indices.astype(index), P.indptr.astype(index)
            of.solve(of.LayeredMDP.stationary(P, losses, 3, dtype=dtype))
            P.data.flags.writeable = False
            of.solve(of.LayeredMDP.stationary(P, losses, 3, dtype=dtype))
    t = of.LayeredMDP.stationary(sp.csr_array(np.full((12, 4), 0.25)), losses, 3, dtype=dtype).transitions
    for copy in (np.array, np.asarray):
        of.solve(of.LayeredMDP(t.layout, np.zeros(t.layout.shape), transitions_module.Transitions.from_flat(
            t.layout, copy(t.data), copy(t.indptr), copy(t.indices), t.block)))
    for q in flavours(losses):
        of.exponential_weights(rng.dirichlet(np.ones(3), size=4), q, 1)
        of.exponential_weights(np.eye(3, dtype=int)[[0, 1, 2, 0]], q, np.float32(1))
        of.bonus(q, 1)
        of.bonus(3, True)
"""


@compiled_only
def test_each_kernel_is_compiled_once_whatever_the_input():
    code = (
        ALL_KERNELS
        + EXERCISE
        + textwrap.dedent("""
        exercise(np.float64)
        print({name: count(k) for name, k in kernels() if count(k) > 1})
        exercise(np.float32)
        print({name: count(k) for name, k in kernels() if count(k) > 2})
        print(sum(len(k.signatures) > 0 for _, k in kernels()))
        """)
    )
    once, twice, used = python(code).splitlines()
    assert once == "{}"
    assert twice == "{}"
    # Kernels that several threads enter are compiled as part of their entrances.
    assert int(used) >= 12


@compiled_only
def test_the_cache_key_has_the_sources_of_all_kernels(tmp_path, monkeypatch):
    """Numba by itself only checks a kernel's own file, so it would not notice edits of the functions that it calls."""
    folder = tmp_path / "kernels"
    shutil.copytree(pathlib.Path(_jit.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_jit, "__file__", str(folder / "_jit.py"))
    assert _jit._fingerprint() == _jit.KEY
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        path.write_bytes(source + b"\n")
        assert _jit._fingerprint() != _jit.KEY, path.name
        path.write_bytes(source)
    monkeypatch.setitem(_jit._OPTIONS, "fastmath", True)
    assert _jit._fingerprint() != _jit.KEY
    from opo_fast.kernels.weights import bonus

    assert bonus._cache._index_key("signature", numba.core.registry.cpu_target.target_context.codegen())[-1] == _jit.KEY


@compiled_only
def test_an_edit_of_a_called_file_is_noticed(tmp_path):
    """exp is replaced by 0 below -1; the cached kernel of another file, which calls it, must not be used."""
    shutil.copytree(ROOT / "opo_fast", tmp_path / "opo_fast", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import opo_fast as of\nprint(of.__file__, of.exponential_weights([[0.5, 0.5]], [[0.0, 2.0]], 1.0)[0, 1])"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "root": tmp_path}
    for _ in range(2):
        file, value = python(code, **environment).split()
        assert file.startswith(str(tmp_path))
        assert float(value) == pytest.approx(math.exp(-2) / (1 + math.exp(-2)), abs=1e-15)
    words = tmp_path / "opo_fast" / "kernels" / "_constants.py"
    words.write_text(words.read_text().replace("EXP_MIN = -690.0", "EXP_MIN = -1.0"))
    assert float(python(code, **environment).split()[1]) == 0.0


@compiled_only
def test_kernels_work_without_a_cache_folder_and_warn_once(monkeypatch):
    def refuse(function):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(_jit, "_KernelCache", refuse)
    monkeypatch.setattr(_jit, "_warned", False)
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        double = _jit.kernel(lambda x: 2 * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        triple = _jit.kernel(lambda x: 3 * x)
    assert (double(4), triple(4)) == (8, 12)


@compiled_only
def test_a_run_without_compilation_checks_bounds():
    """The same tests with kernels as plain Python: every index is checked, and every eight-lane load and store."""
    selected = [
        "test_operations.py::test_kernels_equal_the_reference",
        "test_operations.py::test_hand_computed_model",
        "test_operations.py::test_large_form_equals_the_reference_and_one_thread",
        "test_operations.py::test_rollouts_of_both_backends_are_the_same_episode",
        "test_chain.py::test_random_chains_equal_the_reference",
        "test_chain.py::test_three_steps_by_hand",
        "test_chain.py::test_past_policies_are_visited_under_the_newest_dynamics",
        "test_kernels.py::test_kernels_stay_inside_their_arrays",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{name}" for name in selected)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_interpreted_words_check_bounds():
    code = """
    import numpy as np
    from opo_fast.kernels._simd import vload, vstore
    refused = 0
    for i in (-1, 3, 100):
        for word in (lambda: vload(np.zeros(10), i), lambda: vstore(np.zeros(10), i, np.zeros(8))):
            try:
                word()
            except AssertionError:
                refused += 1
    print(refused, vload(np.zeros(10), 2).size)
    """
    assert python(code, NUMBA_DISABLE_JIT="1") == "6 8"


# -- nothing outside the arrays ----------------------------------------------------------------------------------------


class GuardedNumpy:
    """NumPy whose new arrays lie in the middle of larger buffers; `check` finds writes outside the arrays.

    The margins are NaN (or absurd whole numbers), so that a result that used them would show it too.
    """

    MARGIN = 40

    def __init__(self):
        self.buffers = []

    def __getattr__(self, name):
        return getattr(np, name)

    def _guarded(self, shape, dtype, fill):
        dtype = np.dtype(dtype)
        if dtype.kind not in "fiu" or dtype.itemsize < 4:
            return np.full(shape, fill, dtype) if fill is not None else np.empty(shape, dtype)
        shape = shape if isinstance(shape, tuple) else (shape,)
        size = math.prod(int(n) for n in shape)
        sentinel = np.nan if dtype.kind == "f" else np.iinfo(dtype).max // 3
        buffer = np.full(size + 2 * self.MARGIN, sentinel, dtype)
        inside = buffer[self.MARGIN : self.MARGIN + size]
        if fill is not None:
            inside[:] = fill
        self.buffers.append((buffer, size, buffer.copy()))
        return inside.reshape(shape)

    def empty(self, shape, dtype=np.float64):
        return self._guarded(shape, dtype, None)

    def zeros(self, shape, dtype=np.float64):
        return self._guarded(shape, dtype, 0)

    def empty_like(self, array):
        return self._guarded(array.shape, array.dtype, None)

    def aligned(self, count, dtype=np.float64, *, zero=False, worth=0):
        """`layout.aligned` without its own margin."""
        return self._guarded(count, dtype, 0 if zero else None)

    def aligned_parts(self, sizes):
        """`layout.aligned_parts`, each with a margin."""
        return [self._guarded(size, np.float64, 0) for size in sizes]

    def check(self):
        for buffer, size, before in self.buffers:
            for margin in (slice(0, self.MARGIN), slice(self.MARGIN + size, None)):
                assert buffer[margin].tobytes() == before[margin].tobytes()
        return len(self.buffers)


def chain_among_others(models, fits):
    """The policy of a context whose chain may have others beside it."""
    history = History()
    for fit in fits:
        history.append(Fits(fit, fit))
    rule = opo_rule(models[0].layout, 0.5, 0.4, 0.05)
    chain, lane = ChainEngine(models[0].layout, models[0].action_mask, rule, Listed(models), 1 << 20).chain(0, history, len(fits))
    return chain.policy(lane).copy()


def everything(mdp, others, policy):
    """Bytes of every operation on a model, and of a chain that switches, drops policies and catches up in batches."""
    rng = np.random.default_rng(0)
    parts = [of.occupancy(mdp, policy), *of.evaluate(mdp, policy), *of.solve(mdp)]
    parts.append(of.exponential_weights(policy, mdp.losses, 0.5))
    parts.append(of.bonus(mdp.losses, 0.7))
    episodes = [of.rollout(mdp, policy, rng) for _ in range(3)]
    parts += [part for episode in episodes for part in (episode.states, episode.actions, episode.losses)]
    history = [mdp, *others] + [mdp] * 4 + [others[0]] * 11 + [mdp, others[1]] * 3
    parts.append(of.policy_chain(history, eta=0.5, beta_loss=0.4, beta_dynamics=0.05))
    parts.append(chain_among_others([mdp, *others], [0, 1, 2, 0, 0, 0, 0, 1, 1, 1, 0, 2]))
    return b"".join(np.asarray(part).tobytes() for part in parts)


@pytest.mark.parametrize("form", ["packed", "single", "large"])
@pytest.mark.parametrize("storage", ["dense", "csr", "stationary csr"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("sizes", "n_actions"), [([1, 5, 5], 3), ([1, 1, 1], 1), ([1, 8, 8], 2)])
def test_kernels_stay_inside_their_arrays(form, storage, dtype, sizes, n_actions, monkeypatch, set_threads):
    set_threads(2)
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", dict.fromkeys((0, 1), 1 if form == "large" else 1 << 30))
    monkeypatch.setattr(engine_module, "PACKED_MOST", 2048 if form == "packed" else -1)

    def build():
        rng = np.random.default_rng(7)
        mask = np.ones((sizes[-1] if storage.startswith("stationary") else sum(sizes), n_actions), bool)
        mask[0, -1] = n_actions == 1
        made = [random_model(rng, sizes, n_actions, storage, mask=mask, dtype=dtype, density=0.7) for _ in range(3)]
        return made[0], made[1:], random_policy(rng, made[0])

    expected = everything(*build())
    guarded = GuardedNumpy()
    for module in (layers, operations, arguments, scratch, chain_module, engine_module, forms_module):
        monkeypatch.setattr(module, "np", guarded)
    for module in (transitions_module, arguments, scratch, forms_module, policies_module):
        monkeypatch.setattr(module, "aligned", guarded.aligned)
    for module in (chain_module, forms_module):
        monkeypatch.setattr(module, "aligned_parts", guarded.aligned_parts)
    mdp, others, policy = build()
    inside = guarded.empty(policy.shape)
    inside[...] = policy
    assert everything(mdp, others, inside) == expected
    assert guarded.check() > 20


def test_the_guard_sees_a_write_beside_an_array():
    guarded = GuardedNumpy()
    array = guarded.zeros((2, 3))
    guarded.check()
    np.lib.stride_tricks.as_strided(array.reshape(-1), (7,), (8,))[6] = 1.0
    with pytest.raises(AssertionError):
        guarded.check()


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_a_model_that_was_pickled_runs_the_same_kernels(storage):
    mdp = random_model(np.random.default_rng(1), [1, 4, 4], 2, storage)
    other = pickle.loads(pickle.dumps(mdp))
    assert [numba.typeof(a) for a in other.transitions.arguments] == [numba.typeof(a) for a in mdp.transitions.arguments]
    assert numba.typeof(other.row_losses) == numba.typeof(mdp.row_losses)
