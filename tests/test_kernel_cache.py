"""A kernel cache that is damaged, or cannot be written, costs time and one warning, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent(
    """
    import sys, warnings, numpy as np
    warnings.simplefilter("always")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from opo_fast.kernels import weights
        found = np.empty(1)
        weights.bonus(np.zeros(1), 1.0, found)
        x = weights.check_policy(np.full((1, 2), 0.5), np.empty((0, 0), bool), 1e-8)
    print(found[0], x, sum("kernel cache" in str(w.message) for w in caught), bool(weights.bonus.stats.cache_hits))
    """
)


def run(folder, script=SCRIPT):
    """Value, fault, warnings and whether the kernel came from the cache."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    assert run(folder) == ["0.5", "0", "0", "False"]
    assert run(folder) == ["0.5", "0", "0", "True"]
    return folder


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[: len(content) // 2], lambda content: b"\x80\x05junk" * 9])
def test_a_damaged_file_is_a_miss_said_once_and_then_written_anew(filled, ending, damage):
    files = list(filled.rglob(f"*.{ending}"))
    assert len(files) >= 2
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    assert run(filled) == ["0.5", "0", "1", "False"]
    assert run(filled) == ["0.5", "0", "0", "True"]


def test_a_write_that_fails_is_said_once(tmp_path):
    resource = pytest.importorskip("resource")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, {hard}))\n"
    assert run(tmp_path, limit + SCRIPT) == ["0.5", "0", "1", "False"]
