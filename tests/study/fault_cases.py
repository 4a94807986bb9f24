"""What the tests of faults in studies share."""

from __future__ import annotations

import importlib.util

import pytest
from study_cases import bits, left_over

FORMATS = [
    "npz",
    pytest.param("parquet", marks=pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")),
]
GOOD = ("opo", "greedy")


def check_intact(folder, good):
    """All good runs are there with the same bits, and there are no partly written files."""
    assert bits(folder) == good
    assert not [name for name in left_over(folder) if not name.endswith(".ckpt")]
