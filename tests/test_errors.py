"""Error messages: the command that installs an extra, and values of NUMBA_NUM_THREADS that Numba cannot read."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from opo_fast import errors


def test_an_extra_is_added_from_the_sources_or_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    assert errors.install("plot") == "pip install 'opo-fast[plot]'"
    (tmp_path / "pyproject.toml").touch()
    assert errors.install("plot") == f"pip install -e '{tmp_path}[plot]'"


@pytest.mark.parametrize("value", ["0", "-2", "abc", "1.5", ""])
def test_a_thread_variable_that_is_no_number_of_threads_is_refused_at_import(value):
    environment = {**os.environ, "NUMBA_NUM_THREADS": value}
    done = subprocess.run([sys.executable, "-c", "import opo_fast"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"opo_fast.errors.OpoError: the environment variable NUMBA_NUM_THREADS is {value!r}: ")


def test_the_command_says_it_in_a_line():
    script = pathlib.Path(sys.executable).with_name("opo-fast")
    if not script.exists():
        pytest.skip("the package is not installed with its scripts")
    done = subprocess.run([script, "envs"], capture_output=True, text=True, env={**os.environ, "NUMBA_NUM_THREADS": "0"})
    assert done.returncode == 2
    assert done.stderr == (
        "opo-fast: the environment variable NUMBA_NUM_THREADS is '0': set it to a whole number of at least 1, or unset it\n"
    )
