"""Many attempts in processes of their own, so that a crash or a hang is a finding; each is fixed by its kind and seed.

python -m tests.fuzz.run --tries 20000 [--first 0] [--kinds STATES]
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 10.0
"""Seconds that an attempt may take, once kernels are compiled."""
START = 600.0
"""Seconds that the first one may take, which compiles them."""

WORKER = """
import sys
sys.path.insert(0, {here!r})
import attempts
kinds = {{kind.__name__: kind for kind in getattr(attempts, {group!r})}}
for line in sys.stdin:
    name, seed = line.split()
    try:
        outcome = "ok " + attempts.attempt(kinds[name], int(seed))
    except attempts.Finding as finding:
        outcome = "FINDING " + repr(str(finding))
    print(outcome.replace("\\n", " ")[:500], flush=True)
"""


def worker(group: str) -> subprocess.Popen[str]:
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", WORKER.format(here=str(HERE), group=group)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip


def ask(process: subprocess.Popen[str], name: str, seed: int, patience: float) -> str:
    """The outcome of one attempt, or how its process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()
    timer = threading.Timer(patience, lambda: (late.set(), process.kill()))
    timer.start()
    try:
        process.stdin.write(f"{name} {seed}\n")
        process.stdin.flush()
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if line:
        return line.strip()
    return "FINDING it hangs" if late.is_set() else f"FINDING the process ended with {process.wait()}"


def run(group: str, tries: int, first: int = 0) -> tuple[collections.Counter[str], list[str]]:
    """Counts of outcomes, and the findings with kind and seed."""
    sys.path.insert(0, str(HERE))
    import attempts

    names = [kind.__name__ for kind in getattr(attempts, group)]
    counts: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    process, patience = worker(group), START
    for i in range(tries):
        name, seed = names[i % len(names)], first + i // len(names)
        # Each kind compiles its own kernels at first.
        outcome = ask(process, name, seed, START if i < 50 else patience)
        patience = PATIENCE
        counts[f"{name}: {outcome.split()[0]} {' '.join(outcome.split()[1:3])}" if outcome.startswith("ok") else f"{name}: FINDING"] += 1
        if not outcome.startswith("ok"):
            findings.append(f"{name} {seed}: {outcome}")
        if process.poll() is not None or "hangs" in outcome or "ended" in outcome:
            process.kill()
            process, patience = worker(group), START
    process.kill()
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", default="STATES")
    given = parser.parse_args()
    counts, findings = run(given.kinds, given.tries, given.first)
    for outcome, count in sorted(counts.items()):
        print(f"{count:7d}  {outcome}")
    print("\n".join(findings) or "no finding")
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main())
