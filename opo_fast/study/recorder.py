"""What a run of a study records: columns of the simulation, and measurements between episodes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_real
from .._support.state import holds
from ..errors import OpoError
from ..model.operations import evaluate, solve
from ..runs.result import DIAGNOSTICS
from ..runs.simulation import Simulation
from .file import Record

__all__ = ["Recorder"]

Array = npt.NDArray[Any]


class Recorder:
    """The columns of a run: those of the simulation in the recorded episodes, and measurements that are made in these episodes."""

    def __init__(self, simulation: Simulation, record: Record) -> None:
        self.simulation, self.record = simulation, record
        total = simulation.episodes
        self.rows = np.unique(np.append(np.arange(record.every, total + 1, record.every), total))
        wanted: list[str] = [name for name in ("expected_regret", "seconds", "memory") if name in record.measures]
        self.measured: dict[str, Array] = {name: np.full(self.rows.size, np.nan) for name in wanted}
        self._line = 0
        self._looked = self._resident = 0.0
        self._models: list[tuple[Any, float, float]] | None = None
        if "expected_regret" in wanted:
            self._models = [
                (context, probability, float(solve(simulation.cmdp.mdp(context), backend=simulation.backend).v[0]))
                for context, probability in _finite_contexts(simulation.cmdp)
            ]

    def step(self) -> None:
        """Play an episode, and make the measurements if it is a recorded one."""
        simulation = self.simulation
        recorded = simulation.episode + 1 == self.rows[self._line]
        if recorded and self._models is not None:
            self.measured["expected_regret"][self._line] = self._expected_regret(self._models)
        simulation.step()
        if recorded:
            if "seconds" in self.measured:
                self.measured["seconds"][self._line] = simulation.seconds
            if "memory" in self.measured:
                self.measured["memory"][self._line] = self._memory()
            self._line += 1

    def _memory(self) -> float:
        """Resident memory in bytes, read at most ten times per second."""
        now = time.monotonic()
        if now - self._looked > 0.1:
            self._looked, self._resident = now, _resident()
        return self._resident

    def _expected_regret(self, models: list[tuple[Any, float, float]]) -> float:
        total = 0.0
        for context, probability, best in models:
            mdp = self.simulation.cmdp.mdp(context)
            value = float(evaluate(mdp, self.simulation.agent.policy(context), backend=self.simulation.backend).v[0])
            total += probability * (value - best)
        return total

    def state(self) -> dict[str, Any]:
        """The state of the simulation, and the measurements."""
        state = self.simulation.state()
        # Contexts may be objects that cannot be saved; the chains are then computed again.
        if not holds(state.get("chains")):
            del state["chains"]
        return {"simulation": state, "measured": {name: column[: self._line] for name, column in self.measured.items()}}

    def restore(self, state: Any) -> None:
        """Go on from `state`; if it does not fit, an error is raised, and this recorder must not be used any more."""
        measured = state.get("measured") if isinstance(state, Mapping) else None
        if not isinstance(measured, Mapping) or "simulation" not in state:
            raise OpoError("state has no 'simulation' and 'measured': what a recorder's state() gave is needed")
        self.simulation.restore(state["simulation"])
        self._line = int(np.searchsorted(self.rows, self.simulation.episode, side="right"))
        for name, column in self.measured.items():
            known = as_real(measured.get(name, column[: self._line]), f"state['measured'][{name!r}]")
            if known.shape != (self._line,):
                raise OpoError(f"state['measured'][{name!r}] has shape {known.shape}: {(self._line,)} is needed")
            column[: self._line] = known

    def columns(self) -> dict[str, Array]:
        """The recorded columns."""
        result = self.simulation.result()
        at = self.rows - 1
        columns: dict[str, Array] = {
            "episode": self.rows.astype(np.int64),
            "value": result.value[at],
            "optimal_value": result.optimal_value[at],
            "uniform_value": result.uniform_value[at],
            "cumulative_regret": result.cumulative_regret[at],
            "cumulative_uniform_regret": np.cumsum(result.uniform_value - result.optimal_value)[at],
            "observed_loss": result.observed_loss[at],
            "context_index": result.context_index[at],
            "loss_fit": result.loss_fit[at],
            "dynamics_fit": result.dynamics_fit[at],
        }
        if "saturation" in self.record.measures:
            columns["saturation"] = result.saturation[at]
        if "model_switches" in self.record.measures:
            fits = np.stack([result.loss_fit, result.dynamics_fit])
            switched = np.append(0, (np.diff(fits, axis=1) != 0).any(axis=0))
            columns["model_switches"] = np.cumsum(switched)[at].astype(np.int64)
        return {**columns, **self.measured}

    def summary(self) -> dict[str, float]:
        """The numbers of the run that tables show."""
        result = self.simulation.result()
        tail = slice(result.episodes - max(1, result.episodes // 10), None)
        numbers = {
            "regret": float(result.cumulative_regret[-1]),
            "uniform_regret": float((result.uniform_value - result.optimal_value).sum()),
            "last_regret": float(result.regret[tail].mean()),
            "gap_closed": result.gap_closed(tail),
            "saturation": float(result.saturation[tail].mean()),
            **{name: _mean(getattr(result, name)[tail]) for name in DIAGNOSTICS},
            "seconds": self.simulation.seconds,
        }
        if "expected_regret" in self.measured:
            numbers["expected_regret"] = float(self.measured["expected_regret"][-1])
        if "memory" in self.measured:
            numbers["memory"] = float(self.measured["memory"].max())
        return numbers


def _mean(column: Array) -> float:
    """Mean of the entries that are not NaN; NaN if there are none."""
    there = column[~np.isnan(column)]
    return float(there.mean()) if there.size else float("nan")


def _finite_contexts(cmdp: Any) -> list[tuple[Any, float]]:
    probabilities = getattr(cmdp, "probabilities", None)
    if probabilities is None:
        raise OpoError("the expected regret over all contexts needs an environment with finitely many contexts: leave out expected_regret")
    contexts = getattr(cmdp, "contexts", None)
    contexts = range(len(probabilities)) if contexts is None else contexts
    return [(context, float(p)) for context, p in zip(contexts, probabilities, strict=True) if p > 0]


def _resident() -> float:
    """Resident memory of this process in bytes; its peak if only that is known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        try:
            import resource
        except ImportError:
            return float("nan")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else 1024 * peak)
