"""Compare two versions of the package, or two saved runs, and flag what became slower.

    python bench/compare.py HEAD~1 HEAD               # two commits: interleaved, A B A B ..., in fresh processes
    python bench/compare.py main . -k "evaluate"      # a commit and this folder as it is
    python bench/compare.py old.json new.json         # two files that pytest-benchmark wrote
    python bench/compare.py A B --ratio 1.2           # flag rows that take more than 1.2 times as long

Each version runs its own rows with its own kernel cache. The versions alternate row by row, on one thread unless `--threads` says
otherwise; the ratio is that of the medians over processes of the best times. Exit codes: 0, nothing became slower; 1, a row became
slower, or the second version lacks a row of the first; 2, a version or a file does not exist; 3, a file is damaged.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any, NoReturn

HERE = pathlib.Path(__file__).resolve().parent

CHILD = """
import sys, time, json
sys.path.insert(0, {bench!r})
from work import work_items
items = {{item.name: item for item in work_items()}}
if {name!r} is None:
    print(json.dumps([[item.name, item.slow] for item in items.values()]))
    raise SystemExit
item = items[{name!r}]
run, per = item.ours()
run()
best = float("inf")
for _ in range(item.rounds):
    began = time.perf_counter()
    run()
    best = min(best, time.perf_counter() - began)
print(json.dumps(best / per))
"""


def checkout(version: str, folder: pathlib.Path) -> pathlib.Path:
    """A folder with the package at `version`, which is a commit or a path."""
    if pathlib.Path(version).is_dir():
        return pathlib.Path(version).resolve()
    target = folder / version.replace("/", "_").replace("~", "-").replace("^", "-")
    done = subprocess.run(
        ["git", "-C", str(HERE.parent), "worktree", "add", "--detach", str(target), version], capture_output=True, text=True
    )
    if done.returncode:
        stop(2, f"{version!r} is neither a commit nor a folder: {done.stderr.strip().splitlines()[-1]}")
    return target


def child(source: pathlib.Path, cache: pathlib.Path, name: str | None, threads: int) -> Any:
    """What a new process that imports the package from `source` prints: the seconds of a row, or its list of rows."""
    environment = dict(os.environ, PYTHONPATH=str(source), NUMBA_CACHE_DIR=str(cache), NUMBA_NUM_THREADS=str(threads))
    code = CHILD.format(bench=str(source / "bench"), name=name)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=source)
    if done.returncode:
        raise SystemExit(f"{name or 'the list of rows'} failed in {source}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare_commits(options: argparse.Namespace) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Seconds of A and B for every row that both have, and the rows that only A has."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sources = []
        try:
            for side, version in enumerate((options.a, options.b)):
                sources.append(checkout(version, folder / str(side)))
            rows = [dict(child(source, folder / f"cache{side}", None, 1)) for side, source in enumerate(sources)]
            wanted = [row for row, slow in rows[0].items() if (options.slow or not slow) and (options.only or "") in row]
            for row in (row for row in wanted if row in rows[1]):
                times: list[list[float]] = [[], []]
                for repeat in range(options.repeats):
                    for side in (0, 1) if repeat % 2 == 0 else (1, 0):
                        times[side].append(child(sources[side], folder / f"cache{side}", row, options.threads))
                result[row] = (statistics.median(times[0]), statistics.median(times[1]))
        finally:
            for source in sources:
                if folder in source.parents:
                    subprocess.run(["git", "-C", str(HERE.parent), "worktree", "remove", "--force", str(source)], check=False)
    return result, [row for row in wanted if row not in rows[1]]


def compare_saved(options: argparse.Namespace) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """The package's best seconds for the rows that two saved runs share, by their full names, and the rows that only the first has."""
    sides, machines = [], []
    for path in (options.a, options.b):
        try:
            saved = json.loads(pathlib.Path(path).read_text())
            rows = [e for e in saved["benchmarks"] if e["extra_info"].get("contender", "opo_fast") == "opo_fast"]
            sides.append({e["fullname"]: float(e["stats"]["min"]) for e in rows})
            machines.append((saved["machine_info"].get("node"), saved["machine_info"]["cpu"].get("brand_raw")))
        except OSError as error:
            stop(2, f"{path} cannot be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            stop(3, f"{path} is no file of pytest-benchmark, or is damaged ({type(error).__name__}: {error})")
    if machines[0] != machines[1]:
        print(f"the two runs are from different machines: {machines[0]} and {machines[1]}", file=sys.stderr)
    wanted = [name for name in sides[0] if (options.only or "") in name]
    return {name: (sides[0][name], sides[1][name]) for name in wanted if name in sides[1]}, [n for n in wanted if n not in sides[1]]


def stop(code: int, message: str) -> NoReturn:
    """Exit with this code after a line on standard error."""
    print(message, file=sys.stderr)
    raise SystemExit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="the version before: a commit, a folder or a saved run")
    parser.add_argument("b", help="the version after")
    parser.add_argument("-k", dest="only", help="rows whose name contains this")
    parser.add_argument("--ratio", type=float, default=1.1, help="flag rows that take more than this many times as long (default 1.1)")
    parser.add_argument("--repeats", type=int, default=3, help="processes per version and row (default 3)")
    parser.add_argument("--slow", action="store_true", help="also the rows on large models")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default 1)")
    options = parser.parse_args()
    saved = options.a.endswith(".json") and options.b.endswith(".json")
    result, missing = (compare_saved if saved else compare_commits)(options)
    if not result and not missing:
        stop(2, "no row matches")
    slower = 0
    for name, (before, after) in result.items():
        ratio = after / before
        mark = "SLOWER" if ratio > options.ratio else "faster" if ratio < 1 / options.ratio else ""
        slower += mark == "SLOWER"
        print(f"{ratio:6.2f}  {mark:6}  {name}")
    print(f"{slower} of {len(result)} rows take more than {options.ratio:g} times as long")
    for name in missing:
        print(f"    --  MISSING {name}: the second version has no such row")
    return 1 if slower or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
