"""Studies that are killed again and again at random moments, and compared bit by bit with an undisturbed one.

python tests/fuzz/kill_studies.py                    # 100 kills over npz and parquet, 1 and 2 workers
python tests/fuzz/kill_studies.py --kills 8 --seed 3

The driving process or one of its workers gets SIGKILL, SIGTERM or SIGINT: SIGKILL may come at any machine instruction. After
each kill the folder is read: no run file may be damaged, and no finished run may have been written a second time. Ends with
exit code 1 where a column differs, a run is lost, or something is left over.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import tempfile
import time

import numpy as np
import psutil

from opo_fast.study import Results, Study, run_study

MEASURED = ("seconds", "memory")
WAIT = 1800.0
"""Seconds after which a process that should end counts as stuck."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
AGENTS = [{"name": "opo", "grid": {"bonus_scale": [2e-6, 1e-5]}}, "greedy"]
ENVIRONMENTS = [
    {"name": "combination-lock", "label": "lock", "options": {"horizon": 3}},
    {"name": "random-linear", "label": "endless", "options": {"n_contexts": None, "horizon": 2}},
]


def study_of(format: str) -> Study:
    options = {"checkpoint": {"episodes": 20}, "record": {"every": 5}, "format": format}
    return Study("killed", ENVIRONMENTS, AGENTS, episodes=100, seeds=16, **options)


def bits(folder: pathlib.Path) -> dict[str, dict[str, bytes]]:
    """All columns of all finished runs, except measurements."""
    results = Results(folder)
    if results.messages:
        raise SystemExit(f"damaged: {results.messages}")
    return {
        run.id: {name: np.ascontiguousarray(column).tobytes() for name, column in results.read(run).columns.items() if name not in MEASURED}
        for run in results.runs
        if run.id in results.done
    }


def files(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each finished run's file, which change if a run is done twice."""
    found = (folder / "runs").glob("[!.]*")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def drive(folder: str, format: str, workers: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # A shell starts background jobs with SIGINT ignored, and a study does not change that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_study(study_of(format), folder, workers=workers, progress=False)


def kill_once(rng: random.Random, folder: pathlib.Path, format: str, workers: int) -> str:
    """Start the study, kill one of its processes at a random moment, and wait until all are gone; returns what was killed."""
    before = len(files(folder)) if folder.exists() else 0
    # A fork of this process, which has imported everything, so that no kill hits an import and a hundred kills take minutes.
    process = multiprocessing.get_context("fork").Process(target=drive, args=(str(folder), format, workers))
    process.start()
    # One kill in four is at the start, before anything is computed.
    if rng.random() < 0.75:
        while process.exitcode is None and len(files(folder)) == before:
            time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 1.0))
    number, victims = rng.choice(SIGNALS), [process.pid]
    try:
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        children = []
    who = "driver"
    if children and number == signal.SIGKILL and rng.random() < 0.5:
        victims, who = [rng.choice(children)], "worker"
    for pid in victims:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            who = "nobody"
    if who == "worker":
        # The driver notices the dead worker and goes on, so it is killed too, and the study stays unfinished.
        time.sleep(rng.uniform(0.0, 1.5))
        process.kill()
    process.join(WAIT)
    if process.exitcode is None:
        raise SystemExit("the driver is stuck")
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)], timeout=WAIT)
    for child in alive:
        raise SystemExit(f"process {child.pid} outlives its driver")
    return f"{signal.Signals(number).name} to the {who}"


def campaign(rng: random.Random, place: pathlib.Path, format: str, workers: int, kills: int) -> collections.Counter[str]:
    """Kill and resume one study until it has been killed often enough; a finished study begins again."""
    whole, folder = place / f"whole-{format}", place / f"{format}-{workers}"
    if not whole.exists():
        run_study(study_of(format), whole, progress=False)
    reference = bits(whole)
    counts: collections.Counter[str] = collections.Counter()
    known: dict[str, tuple[int, int]] = {}
    while sum(counts.values()) < kills:
        counts[kill_once(rng, folder, format, workers)] += 1
        print(f"{format}, {workers} worker(s), kill {sum(counts.values())}", flush=True)
        now = files(folder) if folder.exists() else {}
        again = [name for name, mark in known.items() if now.get(name) != mark]
        if again:
            raise SystemExit(f"lost, or done twice: {again}")
        known = now
        if folder.exists() and (folder / "study.json").exists():
            found = bits(folder)
            wrong = [id for id, columns in found.items() if columns != reference[id]]
            if wrong:
                raise SystemExit(f"other bits after a kill: {wrong}")
            if len(found) == len(reference) or sum(counts.values()) == kills:
                finish(folder, format, reference, known)
                shutil.rmtree(folder)
                known = {}
    return counts


def finish(folder: pathlib.Path, format: str, reference: dict[str, dict[str, bytes]], known: dict[str, tuple[int, int]]) -> None:
    """Finish the study without kills, and check that all columns are those of the undisturbed one and that no files are left over."""
    summary = run_study(study_of(format), folder, progress=False)
    if (summary.done, summary.failed) != (len(reference), 0) or bits(folder) != reference:
        raise SystemExit(f"not the study that nobody disturbed: {summary}")
    now = files(folder)
    if any(now[name] != mark for name, mark in known.items()):
        raise SystemExit("a finished run was done again")
    left = [path for part in ("checkpoints", "running", "failures") for path in (folder / part).iterdir()]
    left += list(folder.rglob(".*")) + list(folder.rglob("*.damaged"))
    if left:
        raise SystemExit(f"left over: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="in all; default: 100")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        cases = [(format, workers) for format in ("npz", "parquet") for workers in (1, 2)]
        for i, (format, workers) in enumerate(cases):
            share = options.kills * (i + 1) // len(cases) - options.kills * i // len(cases)
            found = campaign(random.Random(options.seed * 100 + i), pathlib.Path(place), format, workers, share)
            print(f"{format}, {workers} worker(s): {share} kills, columns identical ({dict(found)})", flush=True)
            counts += found
    print(f"{sum(counts.values())} kills in {time.monotonic() - began:.0f} s with seed {options.seed}: {dict(counts)}")


if __name__ == "__main__":
    main()
