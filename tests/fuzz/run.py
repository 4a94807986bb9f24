"""Many attempts in separate processes, so that crashes and hangs are findings; kind and seed determine an attempt.

python -m tests.fuzz.run --kinds CALLS --tries 20000     # CALLS, FILES, COMMANDS, STATES, the name of one kind, or ALL
python -m tests.fuzz.run --kinds called --first 417 --tries 1     # repeat one attempt, with kind and seed from its finding

An attempt that takes more than 10 seconds or 8 GiB, or ends its process, is a finding too. ALL takes attempts from all groups in the
proportions of `SHARES`. The processes work in a temporary folder.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

HERE = Path(__file__).parent
PATIENCE = 10.0
"""Processor seconds that an attempt may take without compiling kernels."""
START = 300.0
"""Seconds that an attempt may take if it compiles kernels, or if the machine is busy."""
MEMORY = 8 << 30
"""Bytes of memory that a process may use, without mapped files."""
SHARES = {"CALLS": 12, "FILES": 4, "STATES": 3, "COMMANDS": 1}
"""Number of attempts of each group among twenty."""

WORKER = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}))
said = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.path.insert(0, {here!r})
import attempts
kinds = {{kind.__name__: kind for kind in attempts.ALL}}
for line in sys.stdin:
    name, seed = line.split()
    try:
        outcome = "ok " + attempts.attempt(kinds[name], int(seed))
    except attempts.Finding as finding:
        outcome = "FINDING " + repr(str(finding))
    print(outcome.replace("\\n", " ")[:500], file=said, flush=True)
"""


class Worker:
    """A process that makes attempts one after the other."""

    def __init__(self, folder: str) -> None:
        paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", WORKER.format(here=str(HERE), memory=MEMORY)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
        self.seen: set[str] = set()

    def ask(self, name: str, seed: int, patience: float) -> str:
        """The outcome of one attempt, or how its process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        late, done = threading.Event(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(patience, late, done))
        watch.start()
        try:
            self.process.stdin.write(f"{name} {seed}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            done.set()
            watch.join()
        if line:
            return line.strip()
        return "FINDING it hangs" if late.is_set() else f"FINDING the process ended with {self.process.wait()}"

    def _watch(self, patience: float, late: threading.Event, done: threading.Event) -> None:
        """End the process if an attempt takes too much processor time, or too much wall time while it only waits."""
        clock, used = time.monotonic(), self._used()
        while not done.wait(0.5):
            if self._used() - used > patience or time.monotonic() - clock > START:
                late.set()
                self.process.kill()
                return

    def _used(self) -> float:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self.process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def plan(kinds: str, tries: int, first: int) -> Iterator[tuple[str, int]]:
    """Kind and seed of each attempt."""
    sys.path.insert(0, str(HERE))
    import attempts

    if kinds == "ALL":
        groups = [group for group, share in SHARES.items() for _ in range(share)]
        names = [[kind.__name__ for kind in getattr(attempts, group)] for group in groups]
        counts: collections.Counter[str] = collections.Counter()
        for i in range(tries):
            choice = names[i % len(names)]
            name = choice[(i // len(names)) % len(choice)]
            yield name, first + counts[name]
            counts[name] += 1
        return
    choice = [kind.__name__ for kind in getattr(attempts, kinds)] if kinds in SHARES else [kinds]
    for i in range(tries):
        yield choice[i % len(choice)], first + i // len(choice)


def run(kinds: str, tries: int, first: int = 0, say: bool = False) -> tuple[collections.Counter[str], list[str]]:
    """Counts of outcomes, and the findings with kind and seed."""
    counts: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        worker = Worker(folder)
        for i, (name, seed) in enumerate(plan(kinds, tries, first)):
            # The first attempts may compile kernels.
            outcome = worker.ask(name, seed, START if i < 50 or name not in worker.seen else PATIENCE)
            if outcome == "FINDING it hangs":
                # It may have compiled a kernel, so the attempt is repeated.
                worker.close()
                worker = Worker(folder)
                if worker.ask(name, seed, START).startswith("ok"):
                    outcome = worker.ask(name, seed, PATIENCE)
            worker.seen.add(name)
            good = outcome.startswith("ok")
            counts[f"{name}: {' '.join(outcome.split()[1:3]) if good else 'FINDING'}"] += 1
            if not good:
                findings.append(f"{name} {seed}: {outcome}")
                if say:
                    print(findings[-1], flush=True)
            if worker.process.poll() is not None or outcome == "FINDING it hangs" or "process ended" in outcome:
                worker.close()
                worker = Worker(folder)
        worker.close()
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", default="ALL")
    given = parser.parse_args()
    began = time.monotonic()
    counts, findings = run(given.kinds, given.tries, given.first, say=True)
    for outcome, count in sorted(counts.items()):
        print(f"{count:7d}  {outcome}")
    print(f"{given.tries} attempts of {given.kinds} from seed {given.first} in {time.monotonic() - began:.0f} s: {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main())
