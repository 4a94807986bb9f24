"""The public kernels in the compiled, cached and parallel code of another package."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numba
import pytest

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

THEIRS = """
    import numba
    from opo_fast import kernels

    @numba.njit(parallel=True, cache=True)
    def values(model, policies, q, v, occupancies, work):
        for i in numba.prange(len(policies)):
            kernels.evaluate(model, policies[i], q[i], v[i])
            kernels.occupancy(model, policies[i], occupancies[i], work[i])

    @numba.njit(cache=True)
    def size(model):
        return kernels.work_size(model)

    @numba.njit(cache=True)
    def half_bonus(visits, out, version):
        kernels.bonus(visits, 1.0, out)
        return out[0] / 2
"""

USE = """
    import numpy as np
    import opo_fast as of
    from opo_fast import kernels
    from theirs import fast

    rng = np.random.default_rng(0)
    mdp = of.LayeredMDP.stationary(rng.dirichlet(np.ones(9), (9, 3)), rng.random((9, 3)), 6)
    model = kernels.arrays(mdp)
    policies = rng.dirichlet(np.ones(3), (20, mdp.layout.n_states))
    flat = policies.reshape(20, -1)
    q, occupancies, v = np.empty_like(flat), np.empty_like(flat), np.empty((20, mdp.layout.n_states))
    fast.values(model, flat, q, v, occupancies, np.empty((20, fast.size(model))))
    for i, policy in enumerate(policies):
        expected = of.evaluate(mdp, policy)
        assert (q[i] == expected.q.ravel()).all() and (v[i] == expected.v).all()
        assert (occupancies[i] == of.occupancy(mdp, policy).ravel()).all()
    assert fast.half_bonus(np.zeros(1), np.empty(1), kernels.VERSION) == 0.25
    print(*(sum(f.stats.cache_hits.values()) for f in (fast.values, fast.size, fast.half_bonus)))
"""

UPDATED = """
    import numpy as np
    from opo_fast import kernels
    from opo_fast.kernels import public

    # The digest that another version of the kernels would have.
    kernels.VERSION = public.VERSION = np.zeros(0, [("another", "u1")])
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "__init__.py").touch()
    (folder / "theirs" / "fast.py").write_text(textwrap.dedent(THEIRS))
    return folder


def run(folder, *scripts):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([str(folder), root, os.environ.get("PYTHONPATH", "")])
    script = "\n".join(map(textwrap.dedent, scripts))
    # The other package's cache is in its folder, this package's cache in the usual place.
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_another_package_compiles_caches_and_runs_kernels_in_parallel(package):
    assert run(package, USE) == ["0", "0", "0"]
    assert run(package, USE) == ["1", "1", "1"]


def test_their_cache_does_not_outlive_the_kernels(package):
    size = """
        import numpy as np
        import opo_fast as of
        from theirs import fast
        model = kernels.arrays(of.LayeredMDP.stationary(np.full((2, 1, 2), 0.5), np.zeros((2, 1)), 3))
        fast.size(model), fast.half_bonus(np.zeros(1), np.empty(1), kernels.VERSION)
        print(*(sum(f.stats.cache_hits.values()) for f in (fast.size, fast.half_bonus)))
    """
    before = "from opo_fast import kernels"
    run(package, before, size)
    assert run(package, before, size) == ["1", "1"]
    assert run(package, UPDATED, size) == ["0", "0"]
    assert run(package, before, size) == ["1", "1"]
