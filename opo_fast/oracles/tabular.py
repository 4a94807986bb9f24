"""Tables: means and counts for every state-action pair, in one table or one per context."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, as_number
from .._support.fields import Fields
from .._support.state import decode, encode
from ..model.contextual import Trajectory, context_key
from ..model.layout import Layout
from .confidence import mean_lower, row_radius
from .parametric import Batch, cover_size, grouped
from .plausible import PlausibleOracle
from .support import Support
from .versions import Versions, distinct

__all__ = ["TabularDynamicsClass", "TabularDynamicsOracle", "TabularLossClass", "TabularLossOracle"]

Array = npt.NDArray[Any]


class TabularLossClass:
    """All functions of the state-action pair (one table), or of context and pair (one table per context).

    The least-squares fit is the mean of the observed losses of each pair.

    Parameters
    ----------
    per_context : bool
        One table per context, for finite sets of contexts; nothing is shared between contexts.
    unseen : float
        Loss in [0, 1] of a pair without data. Default 0, which is optimistic.
    size : float, optional
        |F| in the theory's parameters. Default: that of a cover of radius 0.01, at most 1e150.
    """

    def __init__(self, *, per_context: bool = False, unseen: float = 0.0, size: float | None = None) -> None:
        self.per_context, self.unseen = as_bool(per_context, "per_context"), as_number(unseen, "unseen", most=1.0)
        self.size = cover_size(1000, size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> TabularLossOracle:
        """An oracle without data."""
        return TabularLossOracle(self, layout, action_mask)


class TabularDynamicsClass:
    """All dynamics on a support (one table), or one table for each context.

    The fit is (n(s, a, s') + smoothing) / (n(s, a) + smoothing K), where K is the number of allowed next states of the
    pair; with smoothing 0 it maximises the likelihood. A pair without data is uniform over its allowed next states.

    Parameters
    ----------
    support : optional
        Allowed transitions (see `Support`); default: all to the next layer. Others keep probability 0.
    per_context : bool
        One table per context, for finite sets of contexts.
    smoothing : float
        At least 0.
    size : float, optional
        |P| in the theory's parameters. Default: that of a cover of radius 0.01, at most 1e150.
    """

    def __init__(self, support: Any = None, *, per_context: bool = False, smoothing: float = 0.0, size: float | None = None) -> None:
        self.support, self.per_context, self.smoothing = support, as_bool(per_context, "per_context"), as_number(smoothing, "smoothing")
        self.size = cover_size(1000, size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> TabularDynamicsOracle:
        """An oracle without data."""
        return TabularDynamicsOracle(self, layout, action_mask)

    squared_oracle = oracle
    """Frequencies are also the least-squares fit (RM-UCDD)."""


class _Table:
    """Sums of one table, current and past values of the fit and of the set's bounds, and the rows changed since the last of each."""

    def __init__(self, context: Any, n_sums: int, initial: Array, bounds: Array) -> None:
        self.context = context
        self.counts, self.sums = np.zeros(n_sums), np.zeros(n_sums)
        self.fits = Versions(initial)
        self.touched: list[Array] = []
        self.bounds = Versions(bounds)
        self.moved: list[Array] = []

    def take_touched(self) -> Array:
        rows, self.touched = distinct(self.touched), []
        return rows


class _TabularOracle(PlausibleOracle):
    """Tables by context, or one table for all contexts.

    Plausible sets: each pair has its own confidence bound for all times, at delta / n_pairs. With one table per context, the
    i-th table to appear gets 1 / (i (i + 1)) of delta, so that all tables together fail with probability at most delta.
    """

    _n_pairs: int

    def __init__(self, function_class: Any, layout: Layout, action_mask: Array | None, n_sums: int, initial: Array, bounds: Array) -> None:
        super().__init__(layout, action_mask)
        self.function_class = function_class
        self._n_sums, self._initial, self._no_data = n_sums, initial, bounds
        self._tables: dict[Hashable, _Table] = {}
        self._fresh: dict[Hashable, _Table] = {}

    def _key(self, context: Any) -> Hashable:
        return context_key(context) if self.function_class.per_context else None

    def _values(self, fit: Hashable, context: Any) -> Array:
        number, table = self._known(fit), self._tables.get(self._key(context))
        return self._initial if table is None else table.fits.read(number)

    def _parts(self, contexts: Any) -> list[tuple[Any, Any]]:
        """Context of each table, and the positions in the batch that belong to it."""
        if not self.function_class.per_context:
            return [(None, slice(None))]
        return list(grouped(contexts))

    def _check_contexts(self, batch: Batch) -> None:
        """Raise on a context that cannot have its own table."""
        if self.function_class.per_context:
            for context in batch.contexts:
                context_key(context)

    def _table(self, context: Any) -> _Table:
        key = self._key(context)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._empty(context if self.function_class.per_context else None)
        self._fresh[key] = found
        return found

    def _empty(self, context: Any) -> _Table:
        return _Table(context, self._n_sums, self._initial, self._no_data)

    def _solve(self, number: int) -> bool:
        changed = False
        for key, table in self._fresh.items():
            rows = table.take_touched()
            if self.delta is not None:
                table.moved.append(rows)
                self._moved[key] = table
            cells, values = self._fitted(table, rows)
            different = values != table.fits.current[cells]
            if different.any():
                table.fits.write(number, cells[different], values[different])
                changed = True
        self._fresh = {}
        return changed

    def _fitted(self, table: _Table, rows: Array) -> tuple[Array, Array]:
        """Cells of the touched rows, and their best values."""
        raise NotImplementedError

    def _begin(self) -> None:
        self._moved: dict[Hashable, _Table] = {}

    def _note(self, version: int) -> None:
        places = {key: i for i, key in enumerate(self._tables, start=1)} if self._moved else {}
        for key, table in self._moved.items():
            share = 1.0 / (places[key] * (places[key] + 1)) if self.function_class.per_context else 1.0
            rows, table.moved = distinct(table.moved), []
            bounds = self._bounds(table, rows, math.log(self._n_pairs / (self._kept() * share)))
            different = bounds != table.bounds.current[rows]
            if different.any():
                table.bounds.write(version, rows[different], bounds[different])
        self._moved = {}

    def _bounds(self, table: _Table, rows: Array, log_inverse: float) -> Array:
        """The bounds of the pairs in `rows`, all of which have data."""
        raise NotImplementedError

    def _bounds_at(self, version: Hashable, context: Any) -> Array:
        number, table = self._version(version), self._tables.get(self._key(context))
        return self._no_data if table is None else table.bounds.read(number)

    def _sets(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for i, table in enumerate(self._tables.values()):
            state |= {f"plausible.{i}.moved": distinct(table.moved), **table.bounds.state(f"plausible.{i}.")}
        return state

    def _sets_restored(self, fields: Fields, delta: float, versions: int) -> dict[str, Any]:
        return {}  # They are restored with their tables.

    def _visited(self, table: _Table) -> Array:
        """Whether each row has data."""
        raise NotImplementedError

    def _valid(self, table: _Table) -> bool:
        """Whether all fits of a table, whose values are in [0, 1], are possible for this oracle."""
        return True

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"contexts": [encode(table.context) for table in self._tables.values()]}
        for i, table in enumerate(self._tables.values()):
            state |= {f"{i}.counts": table.counts.copy(), f"{i}.sums": table.sums.copy(), **table.fits.state(f"{i}.")}
            touched = table.take_touched()
            table.touched = [touched] if touched.size else []
            state[f"{i}.touched"] = touched
        return state

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        tables, fresh, moved = {}, {}, {}
        for i, stored in enumerate(fields.listed("contexts")):
            table = self._empty(decode(stored, fields.place("contexts")))
            table.counts = fields.numbers(f"{i}.counts", (self._n_sums,), least=0.0)
            table.sums = fields.numbers(f"{i}.sums", (self._n_sums,), least=0.0)
            fields.check(f"{i}.sums", bool((table.sums <= table.counts).all()), "holds a sum of losses above the number of visits")
            table.fits = Versions.restored(self._initial, fields, f"{i}.", number, least=0.0, most=1.0)
            visited = self._visited(table)
            touched = fields.positions(f"{i}.touched", (None,), most=visited.size - 1)
            fields.check(f"{i}.touched", bool(visited[touched].all()), "names a pair without data")
            fields.check(f"{i}.values", self._valid(table), "holds probabilities that do not sum to 1")
            key = self._key(table.context)
            fields.check("contexts", key not in tables, "names a table twice")
            tables[key] = table
            if touched.size:
                table.touched, fresh[key] = [touched], table
            if fields.state.get("plausible.delta") is not None:
                table.bounds = Versions.restored(self._no_data, fields, f"plausible.{i}.", episodes, least=0.0, most=1.0)
                rows = fields.positions(f"plausible.{i}.moved", (None,), most=len(self._no_data) - 1)
                if rows.size:
                    table.moved, moved[key] = [rows], table
        return {"_tables": tables, "_fresh": fresh, "_moved": moved}


class TabularLossOracle(_TabularOracle):
    """Mean loss of every state-action pair; O(H) to add an episode and to fit.

    Plausible set: for each pair all means above `opo_fast.oracles.confidence.mean_lower`.
    """

    def __init__(self, function_class: TabularLossClass, layout: Layout, action_mask: Array | None = None) -> None:
        n_pairs = layout.n_states * layout.n_actions
        super().__init__(function_class, layout, action_mask, n_pairs, np.full(n_pairs, function_class.unseen), np.zeros(n_pairs))
        self._n_pairs = n_pairs if action_mask is None else int(action_mask.sum())

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of a fit, shape (n_states, A)."""
        return self._values(fit, context).reshape(self.layout.shape).copy()

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least loss of each state-action pair over the plausible set of a version, shape (n_states, A)."""
        return self._bounds_at(version, context).reshape(self.layout.shape).copy()

    def _bounds(self, table: _Table, rows: Array, log_inverse: float) -> Array:
        return np.minimum(mean_lower(table.counts[rows], table.sums[rows], log_inverse), table.fits.current[rows])

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of the squared errors of a fit along a trajectory."""
        pairs = trajectory.states[:-1] * self.layout.n_actions + trajectory.actions
        return float(np.square(self._values(fit, trajectory.context)[pairs] - trajectory.losses).sum())

    def gain(self, fit: Hashable) -> float:
        """How much lower the sum of squared errors on all data is for the means than for `fit`."""
        number = self._known(fit)
        return float(
            sum(
                table.counts @ np.square(_means(table, table.fits.read(number)) - table.fits.read(number))
                for table in self._tables.values()
            )
        )

    def _prepare(self, batch: Batch) -> Batch:
        self._check_contexts(batch)
        return batch

    def _add(self, prepared: Batch) -> None:
        for context, where in self._parts(prepared.contexts):
            table = self._table(context)
            pairs = prepared.pairs[where].ravel()
            np.add.at(table.counts, pairs, 1.0)
            np.add.at(table.sums, pairs, prepared.losses[where].ravel())
            table.touched.append(pairs)

    def _visited(self, table: _Table) -> Array:
        return np.asarray(table.counts > 0)

    def _fitted(self, table: _Table, rows: Array) -> tuple[Array, Array]:
        # A mean of numbers in [0, 1] may round to slightly above 1.
        return rows, np.minimum(table.sums[rows] / table.counts[rows], 1.0)


def _means(table: _Table, unseen: Array) -> Array:
    return np.where(table.counts > 0, table.sums / np.maximum(table.counts, 1.0), unseen)


class TabularDynamicsOracle(_TabularOracle):
    """Transition counts; O(H) to add an episode, and only visited rows are fitted again.

    Plausible set: for each pair all rows within `opo_fast.oracles.confidence.row_radius` of the frequencies.
    """

    def __init__(self, function_class: TabularDynamicsClass, layout: Layout, action_mask: Array | None = None) -> None:
        self.support = Support(layout, function_class.support, action_mask)
        open_rows = self.support.counts > 1
        super().__init__(function_class, layout, action_mask, self.support.n_cells, self.support.uniform, open_rows.astype(np.float64))
        allowed = True if action_mask is None else action_mask.ravel()[: open_rows.size]
        self._n_pairs = max(1, int((open_rows & allowed).sum()))

    def transitions(self, fit: Hashable, context: Any) -> list[Any]:
        """Transitions of a fit, as `opo_fast.LayeredMDP` takes them."""
        return self.support.arrays(self._values(fit, context).copy())

    def radius(self, version: Hashable, context: Any) -> Array:
        """Bound on the total-variation distance of plausible rows from the fit's, shape (n_states, A).

        1 without data; 0 if the support has one next state, and in the last layer.
        """
        result = np.zeros(self.layout.n_states * self.layout.n_actions)
        result[: self.support.n_rows] = self._bounds_at(version, context)
        return result.reshape(self.layout.shape)

    def _bounds(self, table: _Table, rows: Array, log_inverse: float) -> Array:
        cells, begins = self.support.cells_of(rows)
        sizes, counts = self.support.counts[rows], table.counts[cells]
        bounds = row_radius(counts, begins, sizes, log_inverse) if rows.size else np.empty(0)
        if self.function_class.smoothing and rows.size:
            # With smoothing the fit differs from the frequencies.
            shift = table.fits.current[cells] - counts / np.repeat(np.add.reduceat(counts, begins), sizes)
            bounds = np.minimum(bounds + 0.5 * np.add.reduceat(np.abs(shift), begins), 1.0)
        return bounds

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P along a trajectory; infinite if the fit excludes it."""
        return self.support.log_loss(self._values(fit, trajectory.context), trajectory)

    def gain(self, fit: Hashable) -> float:
        """How much lower the negative log-likelihood of all data is for the best fit (infinite if `fit` excludes some)."""
        number, total = self._known(fit), 0.0
        for table in self._tables.values():
            seen = np.flatnonzero(table.counts)
            with np.errstate(divide="ignore"):
                best = np.log(self._probabilities(table.counts, self.support.row_sums(table.counts), seen))
                total += float(table.counts[seen] @ (best - np.log(table.fits.read(number)[seen])))
        return total

    def _prepare(self, batch: Batch) -> tuple[Any, Array]:
        self._check_contexts(batch)
        return batch.contexts, self.support.checked_cells(batch.contexts, batch.states, batch.actions)

    def _add(self, prepared: tuple[Any, Array]) -> None:
        contexts, cells = prepared
        for context, where in self._parts(contexts):
            table, mine = self._table(context), cells[where].ravel()
            np.add.at(table.counts, mine, 1.0)
            table.touched.append(self.support.row_of[mine])

    def _visited(self, table: _Table) -> Array:
        return self.support.row_sums(table.counts) > 0

    def _valid(self, table: _Table) -> bool:
        current = self._initial.copy()
        for cells, values in table.fits.changes:
            current[cells] = values
            written, begins = self.support.cells_of(np.unique(self.support.row_of[cells]))
            if cells.size and not (np.abs(np.add.reduceat(current[written], begins) - 1) <= 1e-8).all():
                return False
        return True

    def _fitted(self, table: _Table, rows: Array) -> tuple[Array, Array]:
        cells, begins = self.support.cells_of(rows)
        lengths, smoothing = self.support.counts[rows], self.function_class.smoothing
        totals = np.add.reduceat(table.counts[cells], begins) if rows.size else np.empty(0)
        return cells, (table.counts[cells] + smoothing) / np.repeat(totals + smoothing * lengths, lengths)

    def _probabilities(self, counts: Array, totals: Array, cells: Array) -> Array:
        rows, smoothing = self.support.row_of[cells], self.function_class.smoothing
        return np.asarray((counts[cells] + smoothing) / (totals[rows] + smoothing * self.support.counts[rows]))
