"""The examples of the README and the documentation run as written."""

from __future__ import annotations

import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {
    f"{page.stem} {i}": block
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    if "visits.parquet" not in block  # it needs the reader's own file
}


def write_visits(path):
    """A file as docs/offline.md describes it: 400 patients who stay until they are home, four steps at most."""
    rng = np.random.default_rng(0)
    lines = ["episode,step,state,action,loss,context"]
    for patient in range(400):
        context, state = ("mild", "severe")[patient % 2], "ward"
        for step in range(4):
            action = ("treat", "wait")[rng.integers(2)]
            lines.append(f"{patient},{step},{state},{action},{0.75 if state == 'icu' else 0.25},{context}")
            state = rng.choice(["home", "ward", "icu"], p=[0.6, 0.3, 0.1] if action == "treat" else [0.2, 0.4, 0.4])
            if state == "home":
                break
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_examples(block, tmp_path, monkeypatch, capsys, set_threads):
    monkeypatch.chdir(tmp_path)
    if '"visits.csv"' in block:
        write_visits(tmp_path / "visits.csv")
    # From a file, since Numba only caches functions from files, and in this process, since importing the package takes long.
    script = tmp_path / "example.py"
    script.write_text(block)
    if "parallel=True" in block:  # Numba's own threads would remain, and other tests fork.
        subprocess.run([sys.executable, script], check=True)
    else:
        runpy.run_path(str(script), run_name="__main__")
    if "gap closed" in block:
        closed = re.search(r"gap closed (\d+)%", capsys.readouterr().out)
        assert int(closed[1]) >= 90
    for name in re.findall(r'"(\w+\.(?:npz|png))"', block):
        assert (tmp_path / name).stat().st_size > 0


def test_files_that_pages_name_exist():
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    named = [(page.name, name) for page in pages for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text(encoding="utf-8"))]
    assert len(named) > 40
    files = {
        path.relative_to(ROOT).as_posix() for folder in ("opo_fast", "tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py")
    }
    examples = {"conftest.py"}  # the reader's own
    assert [pair for pair in named if pair[1] not in examples and not any(f"/{file}".endswith(f"/{pair[1]}") for file in files)] == []
