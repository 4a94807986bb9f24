"""Compare two versions of the package, or two saved runs, and flag what became slower.

    python bench/compare.py HEAD~1 HEAD               # two commits: interleaved, A B A B ..., in fresh processes
    python bench/compare.py main . -k "evaluate"      # a commit and this folder as it is
    python bench/compare.py old.json new.json         # two files that pytest-benchmark wrote
    python bench/compare.py A B --ratio 1.2           # exit 1 where B takes more than 1.2 times as long as A

Two commits are checked out beside each other, each with a kernel cache of its own; every row is run alternately, and the
ratio is that of the best times, so that a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

CHILD = """
import sys, time, json
sys.path.insert(0, {bench!r})
from work import work_items
item = next(item for item in work_items() if item.name == {name!r})
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
    """A folder with the package of `version`: a commit, or a path."""
    if pathlib.Path(version).is_dir():
        return pathlib.Path(version).resolve()
    target = folder / version.replace("/", "_").replace("~", "-").replace("^", "-")
    subprocess.run(["git", "-C", str(HERE.parent), "worktree", "add", "--detach", str(target), version], check=True, capture_output=True)
    return target


def once(source: pathlib.Path, cache: pathlib.Path, name: str) -> float:
    """Best seconds per unit of one row in a fresh process that imports the package from `source`."""
    environment = dict(os.environ, PYTHONPATH=str(source), NUMBA_CACHE_DIR=str(cache))
    code = CHILD.format(bench=str(HERE), name=name)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=source)
    if done.returncode:
        raise SystemExit(f"{name} failed in {source}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def compare_commits(a: str, b: str, only: str | None, slow: bool, repeats: int) -> dict[str, tuple[float, float]]:
    """Best seconds of A and B for every row, in turn."""
    sys.path.insert(0, str(HERE))
    from work import work_items

    names = [item.name for item in work_items() if (slow or not item.slow) and (only is None or only in item.name)]
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sources = [checkout(version, folder) for version in (a, b)]
        try:
            for row in names:
                times: list[list[float]] = [[], []]
                for _ in range(repeats):
                    for side, source in enumerate(sources):
                        times[side].append(once(source, folder / f"cache{side}", row))
                result[row] = (min(times[0]), min(times[1]))
        finally:
            for source in sources:
                if source.parent == folder:
                    subprocess.run(["git", "-C", str(HERE.parent), "worktree", "remove", "--force", str(source)], check=False)
    return result


def compare_saved(a: str, b: str, only: str | None) -> dict[str, tuple[float, float]]:
    """Our best seconds of the rows that two saved runs share."""
    sides = []
    for path in (a, b):
        saved = json.loads(pathlib.Path(path).read_text())
        sides.append(
            {e["name"]: e["stats"]["min"] for e in saved["benchmarks"] if e["extra_info"].get("contender", "opo_fast") == "opo_fast"}
        )
    return {name: (sides[0][name], sides[1][name]) for name in sides[0] if name in sides[1] and (only is None or only in name)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="the version before: a commit, a folder or a saved run")
    parser.add_argument("b", help="the version after")
    parser.add_argument("-k", dest="only", help="rows whose name contains this")
    parser.add_argument("--ratio", type=float, default=1.1, help="flag rows that take more than this many times as long (default 1.1)")
    parser.add_argument("--repeats", type=int, default=3, help="processes per version and row (default 3)")
    parser.add_argument("--slow", action="store_true", help="also the rows on large models")
    options = parser.parse_args()
    if options.a.endswith(".json") and options.b.endswith(".json"):
        result = compare_saved(options.a, options.b, options.only)
    else:
        result = compare_commits(options.a, options.b, options.only, options.slow, options.repeats)
    if not result:
        print("no row matches")
        return 2
    slower = 0
    for name, (before, after) in result.items():
        ratio = after / before
        mark = "SLOWER" if ratio > options.ratio else "faster" if ratio < 1 / options.ratio else ""
        slower += mark == "SLOWER"
        print(f"{ratio:6.2f}  {mark:6}  {name}")
    print(f"{slower} of {len(result)} rows take more than {options.ratio:g} times as long")
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
