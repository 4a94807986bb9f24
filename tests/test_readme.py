"""What the README shows works as written."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {
    f"{page.stem} {i}": block
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    if "visits.parquet" not in block  # a fragment: the file is the reader's
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_examples(block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if "gap closed" in block:
        closed = re.search(r"gap closed (\d+)%", done.stdout)
        assert int(closed[1]) >= 90, done.stdout
    for name in re.findall(r'"(\w+\.(?:npz|png))"', block):
        assert (tmp_path / name).stat().st_size > 0
