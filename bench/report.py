"""Run the benchmarks and print the table of the README: how many times as fast as each named alternative.

python bench/report.py                # all rows, some ten minutes
python bench/report.py --quick        # without the rows whose alternative takes long
python bench/report.py --saved FILE   # from a file that pytest-benchmark wrote
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(quick: bool, path: str, only: str | None) -> None:
    """Run the suite and save its figures at `path`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(HERE / "bench_suite.py"),
        "-q",
        f"--benchmark-json={path}",
        *(["--quick"] if quick else []),
    ]
    subprocess.run(command + (["-k", only] if only else []), check=True)


def rows(saved: dict) -> list[tuple[str, float, dict[str, float], float, bool]]:
    """For each item its name, the package's seconds per unit, each alternative's ratio to that, the target, and whether it is a limit."""
    items: dict[str, dict] = {}
    for entry in saved["benchmarks"]:
        info = entry["extra_info"]
        item = items.setdefault(info["item"], {"target": info["target"], "within": info["within"], "times": {}})
        item["times"][info["contender"]] = entry["stats"]["min"] / info["per"]
    result = []
    for name, item in items.items():
        times = dict(item["times"])
        ours = times.pop("opo_fast", None)
        if ours is not None:
            result.append((name, ours, {other: time / ours for other, time in times.items()}, item["target"], item["within"]))
    return result


def table(saved: dict) -> str:
    """The rows in Markdown."""
    lines = ["| work | ours | alternative | ratio | aim |", "| --- | --- | --- | --- | --- |"]
    for name, ours, others, target, within in rows(saved):
        for other, ratio in others.items():
            if within:
                figure, aim = f"{1 / ratio:.2f} times its time", f"at most {target:g}"
            else:
                figure, aim = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}", f"at least {target:,g}"
                figure += " times as fast"
            lines.append(f"| {name} | {seconds(ours)} | {other} | {figure} | {aim} |")
    return "\n".join(lines)


def seconds(x: float) -> str:
    """A duration with a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x * 1e9:.3g} ns"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the rows whose alternative takes long")
    parser.add_argument("--saved", help="print the table of figures that were saved before")
    parser.add_argument("--save", help="keep the figures in this file")
    parser.add_argument("-k", dest="only", help="rows whose name matches, as with pytest -k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.saved or options.save or f"{folder}/figures.json"
        if not options.saved:
            run(options.quick, path, options.only)
        saved = json.loads(pathlib.Path(path).read_text())
    machine = saved.get("machine_info", {})
    cpu = machine.get("cpu", {})
    name, count = cpu.get("brand_raw", platform.processor()), cpu.get("count", "?")
    print(f"\n{name}, {count} processors, Python {machine.get('python_version')}; best of several rounds\n")
    print(table(saved))


if __name__ == "__main__":
    main()
