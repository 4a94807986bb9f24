"""The programs of the folder examples run."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_loop_by_hand_runs_on_kernels():
    """The program itself compares the policies of both loops."""
    done = subprocess.run([sys.executable, ROOT / "examples" / "dropin.py", "0.05"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^ +\d+ ", done.stdout, flags=re.MULTILINE)) == 4


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "tutorial.ipynb", as_version=4)
    # As if ipywidgets were not installed, and with a bar at the end.
    notebook.cells.insert(0, nbformat.v4.new_code_cell("import sys\nsys.modules['ipywidgets'] = None"))
    notebook.cells.append(nbformat.v4.new_code_cell("described = envs.describe(clinic, progress=True)"))
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert "image/png" in kinds  # the regret
    tables = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    for title in ("LayeredMDP: 3 layers, 5 states, 2 actions</p>", "\\w+ on environment: 500 episodes</p>", "Policy: .*V\\(s_1\\) = "):
        assert any(re.match(f"<p>{title}", table) for table in tables), title
    shown = notebook.cells[-1].outputs
    assert [output.output_type for output in shown] == ["display_data"]
    assert re.match(r"models and values of .* 8/8", shown[0]["data"]["text/plain"])
