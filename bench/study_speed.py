"""The cost of studies: two workers against one, recording and checkpoints, long horizons, and listing 10,000 runs.

python bench/study_speed.py                # all parts; a few minutes
python bench/study_speed.py workers long   # some of: workers, overhead, long, listing
"""

from __future__ import annotations

import os
import pathlib
import resource
import socket
import sys
import tempfile
import time

import numpy as np

from opo_fast import agents, envs
from opo_fast.runs.simulation import Simulation
from opo_fast.study import Store, Study, run_study
from opo_fast.study.checkpoint import write
from opo_fast.study.origin import versions
from opo_fast.study.progress import status
from opo_fast.study.recorder import Recorder
from opo_fast.study.worker import Life, Task

LONG = {"name": "random-finite", "options": {"horizon": 1000, "n_contexts": 2}}


def workers(folder: pathlib.Path) -> None:
    """One worker against two, each with one thread, on three environments, four agents and eight seeds.

    Wall times say little while other programs use the processors. The processor time that two workers need for the same work, including
    their start, tells how much faster they would be on idle processors.
    """
    from joblib.externals.loky import get_reusable_executor

    environments = ["combination-lock", "random-finite", "frozen-lake"]
    study = Study("bench", environments, ["opo", "e-uc3rl", "greedy", "opo-no-bonus"], episodes=3000, seeds=8)
    wall, used = {}, {}
    for n in (1, 2):
        began, before = time.perf_counter(), _processor_time()
        summary = run_study(study, folder / f"workers{n}", workers=n, threads=1, progress=False)
        wall[n] = time.perf_counter() - began
        if n > 1:
            get_reusable_executor().shutdown(wait=True)
        used[n] = _processor_time() - before
        print(f"{n} worker(s): {summary.done} runs in {wall[n]:.1f} s, {used[n]:.1f} s of processor", flush=True)
    print(f"two workers are {wall[1] / wall[2]:.2f} times as fast as one; on idle processors {2 * used[1] / used[2]:.2f} times")


def _processor_time() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def overhead(folder: pathlib.Path) -> None:
    """Processor time of an episode with recording and signs of life relative to one without, in alternating runs; and of a checkpoint."""
    study = Study("overhead", [LONG], ["opo"], episodes=20_000, seeds=1)
    store = Store(folder / "overhead")
    store.prepare(study)
    driver = (socket.gethostname(), os.getpid())
    task = Task(study.runs()[0], str(store.folder), ".", "npz", study.record, study.checkpoint, None, driver, True)
    environment = envs.make(LONG["name"], **LONG["options"])
    plain, other = (Simulation(environment, agents.make("opo", environment, episodes=20_000), 20_000, 0) for _ in range(2))
    recorder, life = Recorder(other, study.record), Life(task, store)
    spent = {"plain": 0.0, "recorded": 0.0}
    for _ in range(60):
        began = time.process_time()
        for _ in range(50):
            plain.step()
        middle = time.process_time()
        for _ in range(50):
            if life.due():
                life.beat(other.episode)
                life.to_stop()
            recorder.step()
        spent["plain"] += middle - began
        spent["recorded"] += time.process_time() - middle
    began = time.process_time()
    size = write(store.checkpoints, "x", other.episode, recorder.state())
    took = time.process_time() - began
    print(f"an episode: {1e3 * spent['plain'] / 3000:.3f} ms, recorded {1e3 * spent['recorded'] / 3000:.3f} ms", end="")
    print(f" ({100 * (spent['recorded'] / spent['plain'] - 1):+.1f} %)")
    print(f"a checkpoint: {size / 1e6:.2f} MB, {1e3 * took:.1f} ms; one a minute is {100 * took / 60:.3f} %")


def long(folder: pathlib.Path) -> None:
    """H = 1,000, T = 20,000, two contexts that return, a checkpoint every 30 s."""
    study = Study("long", [LONG], ["opo"], episodes=20_000, seeds=1, checkpoint={"seconds": 30})
    began, used = time.perf_counter(), time.process_time()
    summary = run_study(study, folder / "long", progress=False)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"H = 1,000, T = 20,000: {summary.done} run in {seconds:.0f} s ({used:.0f} s of processor), {memory:.2f} GB at most")


def listing(folder: pathlib.Path) -> None:
    """The status of a study with 10,000 finished runs."""
    grid = {"bonus_scale": [1e-6 * i for i in range(1, 21)]}
    study = Study("many", ["combination-lock"], [{"name": "opo", "grid": grid}], episodes=2000, seeds=500)
    store = Store(folder / "many")
    store.prepare(study)
    columns = {name: np.arange(20.0) for name in ("episode", "value", "cumulative_regret", "cumulative_uniform_regret")}
    summary = {"regret": 1.0, "uniform_regret": 2.0, "last_regret": 0.1, "gap_closed": 0.5, "saturation": 0.1, "seconds": 1.0}
    fixed = {"format": "opo_fast.study", "version": 1, "episodes": 2000, "record": {"every": 100, "measures": ["regret"]}, "host": "here"}
    fixed |= {"versions": versions(), "started": 0.0, "finished": 1.0, "resumed": 0, "summary": summary}
    fsync, os.fsync = os.fsync, lambda handle: None
    try:
        for run in study.runs():
            meta = {**fixed, "id": run.id, "environment": run.environment.record(), "agent": run.agent.record(), "seed": run.seed}
            store.write_run(meta, columns, "npz")
    finally:
        os.fsync = fsync
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        opened = Store.open(store.folder)
        now = status(opened, opened.study().runs())
        print(f"{now.finished:,} runs listed in {time.perf_counter() - began:.2f} s ({time.process_time() - used:.2f} s of processor)")


PARTS = {"workers": workers, "overhead": overhead, "long": long, "listing": listing}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as work:
            PARTS[name](pathlib.Path(work))
