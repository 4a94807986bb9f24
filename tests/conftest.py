"""What all tests share: the profile of hypothesis, and fixtures that restore settings of the process."""

from __future__ import annotations

import os
import pathlib
import signal

import hypothesis
import pytest

import opo_fast as of
from opo_fast.benchmarking import guard  # noqa: F401

hypothesis.settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("bounds", parent=hypothesis.settings.get_profile("suite"), max_examples=6)
# Without compilation (the run that checks bounds) an example takes a hundred times longer.
hypothesis.settings.load_profile("bounds" if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" else "suite")

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"


# A shell starts background jobs with SIGINT ignored, but some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Check that each test restores the handler of Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert after is before, "the test leaves another handler of Ctrl-C"


@pytest.fixture
def set_threads():
    """`opo_fast.set_threads`, undone after the test."""
    yield of.set_threads
    of.set_threads(None)


@pytest.fixture
def call(tmp_path, monkeypatch, set_threads):
    """A function that runs `opo-fast` with the given words in an empty folder, and checks the exit code."""
    from typer.testing import CliRunner

    from opo_fast.cli.commands import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str, code: int = 0):
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture(scope="session")
def shared():
    """The folder of published cases next to the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"the published cases are not beside the repository ({SHARED})")
    return SHARED
