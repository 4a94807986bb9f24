"""Tests that take too long for every change: many fuzzed attempts, killed studies, kernels with bounds checks, growth of memory.

    python tests/nightly.py                     # all four, about an hour on two processors
    python tests/nightly.py memory kills        # some of them
    python tests/nightly.py fuzz --seed 20260101    # other attempts; the default is today's date

The exit code is 1 if one of them finds something.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import numpy as np
import psutil

HERE = pathlib.Path(__file__).resolve().parent
CALLS, RUNS = 20_000, 100
WARM = 2_000
MOST_CALLS, MOST_RUNS = 2 << 20, 4 << 20
"""Bytes by which the process may grow over all calls and over all runs, as the allocator does without a leak."""
SLOW = 0.02
"""Slower calls are left out, since 20,000 of them would take all night; in seconds."""


def fuzz(seed: int) -> int:
    """Many attempts of each group."""
    codes = []
    for kinds, tries in (("CALLS", 20_000), ("FILES", 5_000), ("STATES", 5_000), ("COMMANDS", 2_000)):
        command = [sys.executable, "-m", "tests.fuzz.run", "--kinds", kinds, "--tries", str(tries), "--first", str(seed)]
        codes.append(subprocess.call(command, cwd=HERE.parent))
    return int(any(codes))


def kills(seed: int) -> int:
    """100 kills over studies of both file forms, with 1 and 2 workers."""
    return subprocess.call([sys.executable, str(HERE / "fuzz" / "kill_studies.py"), "--kills", "100", "--seed", str(seed)])


def bounds(seed: int) -> int:
    """The kernels' tests, compiled with checks of every index."""
    return subprocess.call([sys.executable, str(HERE / "kernels" / "check.py"), "bounds"])


def memory(seed: int) -> int:
    """Growth of a process over public calls and over small runs."""
    return subprocess.call([sys.executable, __file__, "--here"])


def growth(act: Callable[[int], object], times: int, looks: int = 40) -> float:
    """Bytes by which this process grows over many calls, from the median slope between measurements of its resident memory."""
    process, seen = psutil.Process(), list[int]()
    for look in range(looks):
        for i in range(look * times // looks, (look + 1) * times // looks):
            act(i)
        gc.collect()
        seen.append(process.memory_info().rss)
    at = np.arange(looks)
    first, second = np.triu_indices(looks, 1)
    # The median of all slopes (Theil-Sen) ignores single jumps of the allocator.
    return float(np.median((np.array(seen)[second] - np.array(seen)[first]) / (at[second] - at[first]))) * looks


def memory_here() -> int:
    """Make both measurements; the exit code is 0 if they are within their bounds."""
    sys.path[:0] = [str(HERE), str(HERE / "fuzz")]
    import attempts

    import opo_fast as of

    warnings.simplefilter("ignore")
    calls = []
    for name, (function, arguments) in attempts.public_calls().items():

        def call(function: Callable[..., object] = function, arguments: dict[str, object] = arguments) -> None:
            with contextlib.suppress(of.OpoError):  # A file that does not exist, for example.
                function(**arguments)

        call()
        began = time.perf_counter()
        call()
        if time.perf_counter() - began < SLOW:
            calls.append(call)
        else:
            print(f"left out, since it is slow: {name}")

    def one(i: int) -> None:
        calls[i % len(calls)]()

    names = ["opo", "tabular-opo", "e-uc3rl", "rm-ucdd", "lolipop", "greedy"]

    def run(i: int) -> None:
        env = of.envs.make("random-finite", horizon=3, n_states=3, n_contexts=3, seed=i)
        of.simulate(env, of.agents.make(names[i % len(names)], env, episodes=40, seed=i), 40, seed=i, progress=False).summary()

    for i in range(WARM):
        one(i)
    for i in range(20):
        run(i)
    found = {
        f"{CALLS} calls of {len(calls)} kinds": (growth(one, CALLS), MOST_CALLS),
        f"{RUNS} runs": (growth(run, RUNS, looks=20), MOST_RUNS),
    }
    for what, (grown, most) in found.items():
        print(f"{what}: {grown / 2**20:+.2f} MiB; at most {most / 2**20:g} MiB", flush=True)
    return int(any(grown > most for grown, most in found.values()))


PARTS = {"memory": memory, "bounds": bounds, "kills": kills, "fuzz": fuzz}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return memory_here()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    failed = [part for part in given.parts or PARTS if PARTS[part](given.seed)]
    print(f"FAILED: {', '.join(failed)}" if failed else "nothing found")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
