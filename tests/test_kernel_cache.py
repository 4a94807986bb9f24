"""A damaged or read-only kernel cache only costs time, and gives one warning."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings

import numba
import numpy as np
import pytest

from opo_fast.kernels import _jit, weights

pytestmark = pytest.mark.skipif(not _jit.COMPILED, reason="nothing is compiled, so nothing is cached")


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Make two kernels with the cache in a folder, as in a new process: value, error, warnings, and whether it was a hit."""

    def call():
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(_jit, "_warned", False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bonus, check_policy = (_jit.brief(kernel.py_func) for kernel in (weights.bonus, weights.check_policy))
            found = np.empty(1)
            bonus(np.zeros(1), 1.0, found)
            fault = check_policy(np.full((1, 2), 0.5), np.empty((0, 0), bool), 1e-8)
        said = sum("kernel cache" in str(warning.message) for warning in caught)
        return found[0], fault, said, bool(bonus.stats.cache_hits)

    return call


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[: len(content) // 2], lambda content: b"\x80\x05junk" * 9])
def test_a_damaged_file_is_a_miss_reported_once_and_then_replaced(use, tmp_path, ending, damage):
    assert use() == (0.5, 0, 0, False)
    assert use() == (0.5, 0, 0, True)
    files = list(tmp_path.rglob(f"*.{ending}"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    assert use() == (0.5, 0, 1, False)
    assert use() == (0.5, 0, 0, True)


def test_a_failed_write_is_reported_once(tmp_path):
    resource = pytest.importorskip("resource")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    script = textwrap.dedent(
        f"""
        import resource, warnings, numpy as np
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, {hard}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from opo_fast.kernels import weights
            found = np.empty(1)
            weights.bonus(np.zeros(1), 1.0, found)
            x = weights.check_policy(np.full((1, 2), 0.5), np.empty((0, 0), bool), 1e-8)
        print(found[0], x, sum("kernel cache" in str(w.message) for w in caught))
        """
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.5", "0", "1"]
