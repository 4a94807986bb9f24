"""Fixtures for the tests of threads."""

from __future__ import annotations

import pytest
from thread_cases import bits, share_always

import opo_fast as of
from opo_fast._support import threads as threads_module
from opo_fast.model import transitions as transitions_module


@pytest.fixture(autouse=True)
def _back_to_default(set_threads):
    """Every test here may set the number of threads."""


@pytest.fixture
def shared_always(monkeypatch):
    """`share_always`, undone after the test."""
    monkeypatch.setattr(threads_module, "_look", threads_module._look)
    monkeypatch.setattr(threads_module._Gains, "rests", threads_module._Gains.rests)
    monkeypatch.setattr(threads_module._Gains, "ask", threads_module._Gains.ask)
    monkeypatch.setattr(threads_module._Gains, "patience", threads_module._Gains.patience)
    monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", transitions_module._WORTH_A_BARRIER)
    share_always()


@pytest.fixture
def here(shared_always):
    of.set_threads(1)
    return bits()
