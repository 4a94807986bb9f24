"""Small studies, and environments and agents with faults, which studies name by import path."""

from __future__ import annotations

import os
import pathlib
import signal

import numpy as np

import opo_fast as of
from opo_fast import envs
from opo_fast.study import Results, Study

ROOT = pathlib.Path(__file__).parent
MEASURED = ("seconds", "memory")


def lock(**options):
    return envs.make("combination-lock", **{"horizon": 3, **options})


def opo(env, episodes, cls=of.OPO, **options):
    settings = {"bonus_scale": 2e-6, "eta_scale": 50.0, **options}
    return cls(env.layout, env.loss_class, env.dynamics_class, episodes=episodes, **settings)


class Broken(of.OPO):
    at = 0

    def observe(self, trajectory):
        if self.episode + 1 == self.at:
            raise RuntimeError(f"the oracle gave up in episode {self.at}")
        super().observe(trajectory)


def broken(env, episodes, at):
    """An agent whose oracle raises in episode `at`."""
    agent = opo(env, episodes, Broken)
    agent.at = at
    return agent


class Killer(of.OPO):
    def observe(self, trajectory):
        if self.episode == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        super().observe(trajectory)


def killer(env, episodes):
    """An agent that kills its process."""
    return opo(env, episodes, Killer)


def killer_of_seed(env, episodes, seed, victim):
    """An agent that kills its process under one seed."""
    return opo(env, episodes, Killer if seed == victim else of.OPO)


class Stateless:
    """Plays uniformly, and has no state() and restore()."""

    def __init__(self, env):
        self.env = env

    def policy(self, context):
        return self.env.mdp(context).uniform_policy()

    def observe(self, trajectory):
        pass


def stateless(env):
    return Stateless(env)


def crashing(message="no data here"):
    raise OSError(message)


class _Dying:
    def __init__(self):
        self.inner, self.count = lock(), 0
        self.layout, self.loss_class, self.dynamics_class = self.inner.layout, self.inner.loss_class, self.inner.dynamics_class

    def sample_context(self, rng):
        return self.inner.sample_context(rng)

    def mdp(self, context):
        self.count += 1
        if self.count > 20:
            raise ZeroDivisionError("division by zero in the simulator")
        return self.inner.mdp(context)


def dying():
    """An environment that raises an error after some episodes."""
    return _Dying()


class Endless:
    """An environment whose contexts are objects of a user's class, with a new one in every episode."""

    def __init__(self):
        inner = lock()
        self.inner, self.layout = inner, inner.layout
        self.loss_class = of.FiniteLossClass([self.seen(model) for model in inner.loss_class.models])
        self.dynamics_class = of.FiniteDynamicsClass([self.seen(model) for model in inner.dynamics_class.models])

    def seen(self, model):
        return lambda context: model(self.inner.contexts[context.number % 3])

    def sample_context(self, rng):
        return Point(int(rng.integers(20)))

    def mdp(self, context):
        return self.seen(self.inner.mdp)(context)


class Point:
    """A context of a user's class."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        return isinstance(other, Point) and other.number == self.number


def small(name="small", agents=("opo", "greedy"), environments=None, **options) -> Study:
    """A study of a few quick runs."""
    if environments is None:
        environments = [{"name": "combination-lock", "label": "lock", "options": {"horizon": 3}}]
    return Study(name, environments, list(agents), root=ROOT, **{"episodes": 60, "seeds": 2, **options})


def bits(folder) -> dict[tuple[str, str, int], dict[str, bytes]]:
    """All recorded columns of all finished runs as bytes, except measurements such as seconds."""
    results = Results(folder)
    assert not results.messages
    return {
        (run.environment.label, run.agent.label, run.seed): {
            name: np.ascontiguousarray(column).tobytes() for name, column in results.read(run).columns.items() if name not in MEASURED
        }
        for run in results.runs
        if run.id in results.done
    }


def left_over(folder) -> list[str]:
    """Temporary files, checkpoints of finished runs and signs of life that should not be there."""
    folder = pathlib.Path(folder)
    finished = {path.stem for path in (folder / "runs").iterdir()}
    found = [str(path) for path in folder.rglob(".*")]
    found += [str(path) for path in (folder / "checkpoints").iterdir() if path.stem.partition("-")[0] in finished]
    return found + [str(path) for path in (folder / "running").iterdir()]
