"""Speed tests: slowdowns are found without false alarms, and saved benchmarks of two versions are compared by the rows' full names."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import opo_fast as of
from opo_fast.benchmarking import _interval, paired_ratio

COMPARE = pathlib.Path(__file__).resolve().parents[1] / "bench" / "compare.py"


def work(n):
    x = np.arange(200.0)

    def run():
        for _ in range(n):
            np.dot(x, x)

    return run


def test_a_function_takes_as_long_as_itself(guard):
    found = guard(work(100), work(100), most=1.5)
    assert found.low <= found.median <= found.high
    assert found.high < 2


def test_twice_the_work_is_caught(guard):
    with pytest.raises(pytest.fail.Exception, match=r"times as long as its alternative"):
        guard(work(400), work(100), most=1.5)


def test_the_interval_encloses_the_median_as_often_as_it_says():
    # 400 samples of 30 log-normal ratios with median 1: it is outside the interval in at most 1 % + 3 standard errors of them.
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(400):
        found = _interval(np.sort(rng.lognormal(0.0, 0.5, 30)), 0.99)
        outside += not found.low <= 1.0 <= found.high
    assert outside <= 400 * 0.01 + 3 * np.sqrt(400 * 0.01 * 0.99)


def test_what_is_no_function_is_refused():
    with pytest.raises(of.OpoError, match="run is a int"):
        paired_ratio(3, work(1))
    with pytest.raises(of.OpoError, match="pairs"):
        paired_ratio(work(1), work(1), pairs=2)


def saved(path, rows, node="here"):
    entries = [{"name": n.split("::")[-1], "fullname": n, "extra_info": {}, "stats": {"min": t}} for n, t in rows.items()]
    path.write_text(json.dumps({"benchmarks": entries, "machine_info": {"node": node, "cpu": {"brand_raw": "any"}}}))
    return str(path)


def compare(*words):
    return subprocess.run([sys.executable, str(COMPARE), *words], capture_output=True, text=True)


def test_saved_runs_are_compared_by_full_names(tmp_path):
    old = saved(tmp_path / "old.json", {"a.py::test_x": 1.0, "b.py::test_x": 1.0})
    same = saved(tmp_path / "same.json", {"a.py::test_x": 1.05, "b.py::test_x": 0.95})
    slow = saved(tmp_path / "slow.json", {"a.py::test_x": 1.0, "b.py::test_x": 1.5})
    assert compare(old, same).returncode == 0
    found = compare(old, slow)
    assert (found.returncode, found.stdout.count("SLOWER")) == (1, 1)
    assert "SLOWER  b.py::test_x" in found.stdout


def test_a_row_that_vanished_fails_the_gate(tmp_path):
    old, new = saved(tmp_path / "old.json", {"a::x": 1.0, "a::y": 1.0}), saved(tmp_path / "new.json", {"a::x": 1.0, "a::renamed": 1.0})
    found = compare(old, new)
    assert found.returncode == 1
    assert "MISSING a::y" in found.stdout


def test_another_machine_is_pointed_out_and_a_damaged_file_has_its_own_exit_code(tmp_path):
    old, new = saved(tmp_path / "old.json", {"a::x": 1.0}), saved(tmp_path / "new.json", {"a::x": 1.0}, node="elsewhere")
    assert "different machines" in compare(old, new).stderr
    (tmp_path / "bad.json").write_text("{")
    assert compare(old, str(tmp_path / "bad.json")).returncode == 3
    assert compare(old, str(tmp_path / "none.json")).returncode == 2


def test_an_unknown_version_is_a_line(tmp_path):
    found = compare("no-such-commit", ".", "-k", "x")
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
