"""The results of a study so far: its finished runs by environment and agent, as arrays and as tables."""

from __future__ import annotations

import csv
import functools
import io
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._support.checks import one_of
from .._support.files import writing
from ..errors import OpoError
from ..runs.result import DIAGNOSTICS
from .grid import Choice, Run
from .runfile import StoredRun, require_pyarrow
from .storage import Store

__all__ = ["Results"]

Array = npt.NDArray[Any]
SUMMARY = ("regret", "uniform_regret", "last_regret", "gap_closed", "saturation", "expected_regret", "seconds", "memory", *DIAGNOSTICS)


class Results:
    """The finished runs of a study.

    Parameters
    ----------
    store : Store or path
        The folder of a study.

    Attributes
    ----------
    study : Study
    runs : list of Run
        All planned runs.
    done : dict
        The metadata of each finished run, by id.
    failures : dict
        The records of failed runs, by id.
    messages : list of str
        One for each damaged file, whose run is left out.
    """

    def __init__(self, store: Store | str | os.PathLike[str]) -> None:
        self.store = store if isinstance(store, Store) else Store.open(store)
        self.study = self.store.study()
        self.runs = self.study.runs()
        known, messages = self.store.finished()
        self.messages = list(messages)
        ids = {run.id for run in self.runs}
        self.done = {id: meta for id, meta in known.items() if id in ids}
        failed = self.store.failed()
        self.failures = {run.id: failed[run.id] for run in self.runs if run.id in failed and run.id not in self.done}

    @property
    def environments(self) -> list[Choice]:
        """All environments, one for each point of their grids."""
        return self.study.choices("environments")

    @property
    def agents(self) -> list[Choice]:
        """All agents, one for each point of their grids."""
        return self.study.choices("agents")

    @functools.cached_property
    def _by_pair(self) -> dict[tuple[str, str], list[Run]]:
        pairs: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs:
            pairs.setdefault((run.environment.label, run.agent.label), []).append(run)
        return pairs

    def finished(self, environment: str, agent: str) -> list[Run]:
        """The finished runs of an environment and an agent, by their labels, in the order of the study's seeds."""
        for position, (kind, label) in enumerate((("environment", environment), ("agent", agent))):
            labels = dict.fromkeys(pair[position] for pair in self._by_pair)
            if label not in labels:
                raise OpoError(f"{kind} is {label!r}: one of {', '.join(labels)} is needed")
        return [run for run in self._by_pair[environment, agent] if run.id in self.done]

    def summaries(self, environment: str, agent: str, name: str) -> dict[int, float]:
        """One number ("regret", "gap_closed", "seconds", ...) of each finished run by seed; runs that do not have it are left out."""
        one_of(name, "name", SUMMARY)
        found = {}
        for run in self.finished(environment, agent):
            value = self.done[run.id]["summary"].get(name)
            if value is not None:
                found[run.seed] = float(value)
        return found

    def read(self, run: Run, columns: Sequence[str] | None = None) -> StoredRun:
        """A finished run with all its columns, or with the given ones."""
        if run.id not in self.done:
            raise OpoError(f"run {run.id} ({run.label}) is not finished")
        return self.store.read_run(self.done[run.id], columns)

    def curves(
        self, environment: str, agent: str, column: str = "cumulative_regret", *, points: int | None = None
    ) -> tuple[Array, Array, list[int]]:
        """One column of all finished runs of an environment and an agent.

        Parameters
        ----------
        environment, agent : str
            Labels.
        column : str
        points : int, optional
            Keep about so many episodes, evenly spaced and including the last.

        Returns
        -------
        episodes : ndarray of int64, shape (n,)
            Counted from 1; only episodes that all runs recorded.
        values : ndarray, shape (runs, n)
        seeds : list of int
        """
        found = []
        for run in self.finished(environment, agent):
            stored = self.read(run, ["episode", column])
            episode = stored["episode"]
            at = np.arange(episode.size)
            if points is not None and episode.size > points:
                at = np.unique(np.linspace(0, episode.size - 1, points).round().astype(np.int64))
            found.append((run.seed, episode[at], stored[column][at]))
        if not found:
            return np.empty(0, np.int64), np.empty((0, 0)), []
        episodes = functools.reduce(np.intersect1d, [episode for _, episode, _ in found])
        values = np.array([column_values[np.searchsorted(episode, episodes)] for _, episode, column_values in found])
        return episodes, values, [seed for seed, _, _ in found]

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self) -> Iterator[dict[str, Any]]:
        """One line per finished run: settings and summary."""
        for run in self.runs:
            if run.id in self.done:
                meta = self.done[run.id]
                yield {**_settings(run), **{name: meta["summary"].get(name) for name in SUMMARY if name in meta["summary"]}}

    def export(self, path: str | os.PathLike[str], *, summary: bool = False) -> int:
        """Write all recorded episodes of all finished runs, or one line per run, as csv or parquet; returns the number of lines.

        Parameters
        ----------
        path : path
            Its ending determines the format.
        summary : bool
            One line per run instead of one per recorded episode.
        """
        path = pathlib.Path(path)
        if path.suffix not in (".csv", ".parquet"):
            raise OpoError(f"the file to write is {os.fspath(path)!r}: an ending .csv or .parquet is needed")
        if not self.done:
            raise OpoError(f"no run of {self.study.name!r} is finished: there is nothing to export")
        blocks = self._summary_block() if summary else self._blocks()
        return _write_csv(path, blocks) if path.suffix == ".csv" else _write_parquet(path, blocks)

    def _summary_block(self) -> Iterator[dict[str, Any]]:
        lines = list(self.table())
        names = list(dict.fromkeys(name for line in lines for name in line))
        yield {name: [line.get(name) for line in lines] for name in names}

    def _blocks(self) -> Iterator[dict[str, Any]]:
        """The columns of one run at a time, all with the same names."""
        settings = {name: None for run in self.runs for name in _settings(run)}
        names: list[str] | None = None
        for run in self.runs:
            if run.id not in self.done:
                continue
            columns = self.read(run).columns
            names = list(columns) if names is None else names
            length = len(columns["episode"])
            mine = {**settings, **_settings(run)}
            nothing = np.full(length, np.nan)
            yield {**{key: [value] * length for key, value in mine.items()}, **{name: columns.get(name, nothing) for name in names}}


def _settings(run: Run) -> dict[str, Any]:
    settings: dict[str, Any] = {"run": run.id, "environment": run.environment.label, "agent": run.agent.label}
    for kind, choice in (("environment", run.environment), ("agent", run.agent)):
        settings.update({f"{kind}.{key}": value for key, value in choice.options.items()})
    return {**settings, "seed": run.seed}


def _write_csv(path: pathlib.Path, blocks: Iterator[Mapping[str, Any]]) -> int:
    count = 0
    with writing(path) as file:
        text = io.TextIOWrapper(cast(Any, file), encoding="utf-8", newline="")
        writer = csv.writer(text)
        for i, block in enumerate(blocks):
            if i == 0:
                writer.writerow(block)
            lines = [column.tolist() if isinstance(column, np.ndarray) else column for column in block.values()]
            writer.writerows(zip(*lines, strict=True))
            count += len(lines[0])
        text.flush()
        text.detach()
    return count


def _write_parquet(path: pathlib.Path, blocks: Iterator[Mapping[str, Any]]) -> int:
    pa = require_pyarrow()
    tables = [pa.table({name: _column(pa, column) for name, column in block.items()}) for block in blocks]
    table = pa.concat_tables(tables, promote_options="permissive")
    with writing(path) as file:
        pa.parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)


def _column(pa: Any, column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return pa.array(column)
    kinds = {type(value) for value in column if value is not None}
    if len(kinds) > 1 and not kinds <= {int, float}:
        column = [None if value is None else str(value) for value in column]
    elif kinds <= {int, float} and float in kinds:
        column = [None if value is None else float(value) for value in column]
    elif kinds & {list, dict}:
        column = [None if value is None else str(value) for value in column]
    return pa.array(column)
