"""The public API, against the script next to the repository that lists it."""

from __future__ import annotations

import subprocess
import sys


def test_the_public_surface_is_as_agreed(shared):
    done = subprocess.run([sys.executable, str(shared / "contract.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
