"""What the README shows works as written."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"example {i}" for i in range(len(BLOCKS))])
def test_examples(block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if "simulate" in block:
        closed = re.search(r"gap closed (\d+)%", done.stdout)
        assert int(closed[1]) >= 90, done.stdout
    for name in re.findall(r'"(\w+\.(?:npz|png))"', block):
        assert (tmp_path / name).stat().st_size > 0
