"""A short run of the fuzzer; `python -m tests.fuzz.run` and `tests/nightly.py` are the long ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import run


def test_whatever_is_mutated_is_refused_or_works():
    counts, findings = run.run("ALL", 2000, first=10**6)
    assert not findings
    assert sum(counts.values()) == 2000
    # Some mutations are refused, and some are accepted.
    for group in ("called", "read_file", "read_model_text", "restored_state", "restored_run", "command"):
        assert counts[f"{group}: accepted"] > 0
        assert counts[f"{group}: refused"] > 0
