"""A short run of the fuzzer; `python -m tests.fuzz.run --tries 20000` is the long one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import run


def test_mutated_states_are_refused_or_work():
    _, findings = run.run("STATES", 2000, first=10**6)
    assert not findings
