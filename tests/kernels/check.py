"""Run the kernel tests in two ways that find more faults: as plain Python with branch coverage and checks of every index, and compiled
with bounds checks.

    python tests/kernels/check.py              # both
    python tests/kernels/check.py branches     # not compiled: fails unless all branches of `opo_fast/kernels` are covered, and at an
                                               # index outside of its array
    python tests/kernels/check.py bounds       # compiled with bounds checks: fails unless every kernel was run

Both runs make the same calls, so every branch that the first covers is checked by the second.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

TESTS = ["-m", "pytest", "-p", "no:cacheprovider", str(HERE)]
INDICES = ["-p", "tests.kernels.checked_indices"]

SETTINGS = f"""
[run]
branch = true
source = {ROOT / "opo_fast" / "kernels"}
omit =
    # Machine instructions, and threads that use them, only exist in compiled kernels: their tests compare them with
    # the plain words, and with one thread. How kernels are compiled and cached is not what they compute.
    */_llvm.py
    */_tiles.py
    */_sync.py
    */_jit.py
[report]
show_missing = true
skip_covered = true
precision = 2
fail_under = 100
exclude_also =
    if COMPILED:
"""


def branches(folder: pathlib.Path) -> int:
    """The run without compilation, under coverage.py, with checks of every index."""
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS)
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "COVERAGE_FILE": str(folder / "coverage")}

    def run(command: str, *arguments: str) -> int:
        return subprocess.call([sys.executable, "-m", "coverage", command, f"--rcfile={settings}", *arguments], cwd=ROOT, env=environment)

    return run("run", *TESTS, *INDICES) or run("report")


def bounds(folder: pathlib.Path) -> int:
    """The run with bounds checks. It has its own cache, since Numba's cache does not distinguish code with and without checks."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder), "ALL_KERNELS": "1"}
    return subprocess.call([sys.executable, *TESTS], cwd=ROOT, env=environment)


RUNS = {"branches": branches, "bounds": bounds}


def main(which: list[str]) -> int:
    """Make the runs; returns 0 if all passed."""
    if any(name not in RUNS for name in which):
        print(__doc__)
        return 2
    if len(which) == 1:
        with tempfile.TemporaryDirectory() as folder:
            return RUNS[which[0]](pathlib.Path(folder))
    started = {name: subprocess.Popen([sys.executable, __file__, name]) for name in which or RUNS}
    codes = {name: process.wait() for name, process in started.items()}
    for name, code in codes.items():
        print(f"{name}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
