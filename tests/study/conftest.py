"""Fixtures for the tests of studies."""

from __future__ import annotations

import pytest
from fault_cases import GOOD
from study_cases import bits, small

from opo_fast.study import run_study


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """Bits of the runs of two agents without faults."""
    folder = tmp_path_factory.mktemp("good") / "s"
    run_study(small(agents=GOOD), folder)
    return bits(folder)
