"""The programs of the folder examples run."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_loop_by_hand_runs_on_kernels():
    """It compares the policies of both itself."""
    done = subprocess.run([sys.executable, ROOT / "examples" / "dropin.py", "0.05"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^ +\d+ ", done.stdout, flags=re.MULTILINE)) == 4
