"""Tables of logs: one row per step in named columns, episodes that end early, labels instead of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_items, as_path, pair_of, shown
from .._support.files import reading, writing
from ..errors import OpoError

__all__ = ["Columns", "Grouped", "missing", "read_csv", "unique", "write_csv"]

Array = npt.NDArray[Any]
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})


@dataclass(frozen=True)
class Columns:
    """The names of the columns; see `TrajectoryLog.from_pandas`."""

    episode: str = "episode"
    step: str | None = "step"
    state: str = "state"
    action: str = "action"
    loss: str = "loss"
    reward: str | None = None
    reward_range: tuple[float, float] | None = None
    context: str | Sequence[str] | None = "context"
    next_state: str | None = None
    propensity: str | None = None

    @property
    def contexts(self) -> tuple[str, ...]:
        """The context columns."""
        if self.context is None:
            return ()
        return (self.context,) if isinstance(self.context, str) else tuple(as_items(self.context, "context", "names of columns"))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns to read."""
        named = (self.episode, self.step, *self.contexts, self.state, self.action, self.cost, self.next_state, self.propensity)
        return tuple(name for name in named if name is not None)

    @property
    def cost(self) -> str:
        """The column with losses or rewards."""
        return self.loss if self.reward is None else self.reward

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest allowed value of that column."""
        if self.reward is None:
            return 0.0, 1.0
        if self.reward_range is None:
            raise OpoError("reward_range is missing: pass (low, high), the least and the greatest reward of a step, to convert rewards")
        low, high = pair_of(self.reward_range, "reward_range", "(low, high)")
        if low > high:
            raise OpoError(f"reward_range is {(low, high)}: (low, high) with the least reward first is needed")
        return low, high

    @property
    def kind(self) -> str:
        """The values needed in that column, for messages."""
        low, high = self.range
        return "loss in [0, 1]" if self.reward is None else f"reward from {low:g} to {high:g}"


class Grouped:
    """The rows of a table sorted by episode and step.

    Attributes
    ----------
    episodes : list
        Identifiers of the episodes, ascending.
    of : ndarray of int64, shape (rows,)
        Position of each row's episode.
    at : ndarray of int64, shape (rows,)
        Position of each row inside its episode.
    lengths : ndarray of int64, shape (n,)
    """

    def __init__(self, table: Any, columns: Columns) -> None:
        self._table, self.columns = as_table(table), columns
        for name in columns.names:
            if name not in names_of(self._table):
                hint = "; pass context=None if there is none" if name == "context" else ""
                raise OpoError(f"the table has no column {name!r}: its columns are {', '.join(map(str, names_of(self._table)))}{hint}")
        episode = self._read(columns.episode)
        if not episode.size:
            raise OpoError("the log is empty: at least one trajectory is needed")
        bad = np.flatnonzero(missing(episode))
        if bad.size:
            raise OpoError(f"column {columns.episode!r}: row {int(bad[0])} has no value: an identifier of its episode is needed")
        ids, inverse = unique(episode, columns.episode)
        self.episodes = ids.tolist()
        steps = np.zeros(episode.size) if columns.step is None else self._steps(columns.step, episode)
        self._order = np.lexsort((steps, inverse))
        self.of, self._steps_sorted = inverse[self._order], steps[self._order]
        self.lengths = np.bincount(self.of)
        self.at = np.arange(self.of.size) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        self._first = 0
        if columns.step is not None:
            self._check_steps()

    def _read(self, name: str) -> Array:
        return column_of(self._table, name)

    def _steps(self, name: str, episode: Array) -> Array:
        steps = self._read(name)
        bad = np.flatnonzero(missing(steps))
        if bad.size:
            raise OpoError(f"column {name!r}: episode {episode[bad[0]]!r} has a row without a step")
        if steps.dtype.kind not in "iu":
            try:
                steps = steps.astype(np.int64, casting="unsafe") if (steps == steps.astype(np.int64)).all() else np.array(["no number"])
            except (ValueError, TypeError):
                steps = np.array(["no number"])
        if steps.dtype.kind not in "iu":
            raise OpoError(f"column {name!r} does not hold whole numbers: the steps of an episode, counted from 0 or 1, are needed")
        return steps.astype(np.int64)

    def _check_steps(self) -> None:
        self._first = int(self._steps_sorted.min())
        wrong = np.flatnonzero(self._steps_sorted - self._first != self.at)
        if wrong.size:
            row = int(wrong[0])
            found, needed = int(self._steps_sorted[row]), int(self.at[row]) + self._first
            if found < needed:
                what = f"step {found} occurs twice"
            else:
                what = f"step {needed} is missing" + (f", step {found} follows" if self.at[row] else f": its first step is {found}")
            raise OpoError(
                f"episode {self.episodes[self.of[row]]!r}: {what} (all episodes need the same first step, and consecutive steps after it)"
            )

    def column(self, name: str) -> Array:
        """A column in the order of episodes and steps."""
        return self._read(name)[self._order]

    def place(self, row: int) -> str:
        """Episode and step of a row, for messages."""
        return f"episode {self.episodes[self.of[row]]!r}, step {int(self.at[row]) + self._first}"

    def refuse(self, bad: Array, name: str, message: Any) -> None:
        """Raise an error that names the first row where `bad` is true, if any."""
        rows = np.flatnonzero(bad)
        if rows.size:
            row = int(rows[0])
            raise OpoError(f"column {name!r}, {self.place(row)}: {message(row) if callable(message) else message}")

    def refuse_missing(self, name: str, values: Array, where: Array | None = None) -> None:
        """Refuse missing values (of the rows where `where` is true)."""
        bad = missing(values)
        self.refuse(bad if where is None else bad & where, name, "the value is missing")

    def integers(self, name: str, values: Array, where: Array | None = None) -> Array:
        """`values` as int64; rows where `where` is false become 0."""
        kept = np.ones(values.size, bool) if where is None else where
        result = np.zeros(values.size, np.int64)
        try:
            numbers = values[kept].astype(np.float64)
        except (ValueError, TypeError):
            raise OpoError(
                f"column {name!r} holds {shown(_first_text(values[kept]))}: whole numbers, or labels for them, are needed"
            ) from None
        bad = np.zeros(values.size, bool)
        bad[kept] = numbers != np.floor(numbers)
        self.refuse(bad, name, lambda row: f"{float(values[row])!r} is not a whole number")
        result[kept] = values[kept].astype(np.int64) if values.dtype.kind in "iu" else numbers.astype(np.int64)
        return result

    def numbers(self, name: str, values: Array, where: Array | None = None) -> Array:
        """`values` as float64; rows where `where` is false become NaN."""
        kept = np.ones(values.size, bool) if where is None else where
        result = np.full(values.size, np.nan)
        try:
            result[kept] = values[kept].astype(np.float64)
        except (ValueError, TypeError):
            raise OpoError(f"column {name!r} holds {shown(_first_text(values[kept]))}: numbers are needed") from None
        return result


# -- tables ------------------------------------------------------------------------------------------------------------


def names_of(table: Any) -> list[Any]:
    """Names of the columns of a table."""
    if isinstance(table, Mapping):
        return list(table)
    names = getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        raise OpoError(f"table is a {type(table).__name__}: a data frame or a dict of columns is needed")
    return list(names)


def column_of(table: Any, name: str) -> Array:
    """A column of a table: pandas, polars, pyarrow, a dict, or anything that pyarrow reads through an interchange protocol."""
    found = table[name]
    array = found.to_numpy() if hasattr(found, "to_numpy") else np.asarray(found)
    if array.ndim != 1:
        raise OpoError(f"column {name!r} has shape {array.shape}: one value for each row is needed")
    if array.dtype.kind == "O" and any(isinstance(value, (list, np.ndarray)) for value in array):
        array = np.fromiter((tuple(value) if isinstance(value, (list, np.ndarray)) else value for value in array), object, array.size)
    return np.asarray(array)


def as_table(table: Any) -> Any:
    """A table that `column_of` can read; one with only an interchange protocol is converted by pyarrow."""
    if isinstance(table, Mapping) or hasattr(table, "column_names"):
        return table
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        return pa.table(table)
    if hasattr(table, "__dataframe__"):
        from pyarrow import interchange

        return interchange.from_dataframe(table)
    return table


def missing(values: Array) -> Array:
    """Which values are missing: NaN, None, and the missing values of pandas."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, bool)
    return np.fromiter((_is_missing(value) for value in values), bool, values.size)


def _is_missing(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_missing, value))
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def unique(values: Array, name: str) -> tuple[Array, Array]:
    """Distinct values ascending, and the position of each."""
    if values.dtype.kind == "O" and values.size and all(isinstance(value, str) for value in values):
        values = values.astype(np.str_)
    try:
        found, inverse = np.unique(values, return_inverse=True)
    except TypeError:
        raise OpoError(f"column {name!r} mixes types of values that cannot be sorted: only numbers or only strings are needed") from None
    return found, inverse.reshape(-1)


def _first_text(values: Array) -> Any:
    for value in values.tolist():
        try:
            float(value)
        except (ValueError, TypeError):
            return value
    return values[0]


def read_csv(path: Any, delimiter: str = ",") -> dict[str, Array]:
    """The columns of a CSV file with a header.

    A column of integers becomes int64, one of numbers (or with gaps) float64, any other strings; empty cells and NA, NaN, null
    and None are missing values.
    """
    with reading(path, "a CSV file"), open(as_path(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=delimiter)
        header = next(rows, [])
        if not header:
            raise OpoError("it has no header")
        lines = [line for line in rows if line]
        for i, line in enumerate(lines):
            if len(line) != len(header):
                raise OpoError(f"row {i} has {len(line)} cells, but the header has {len(header)}")
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise OpoError(f"path: {as_path(path)!r} has two columns {twice!r}: one of each name is needed")
    cells = zip(*lines, strict=True) if lines else [()] * len(header)
    return {name: _parsed(list(column)) for name, column in zip(header, cells, strict=True)}


def _parsed(cells: list[str]) -> Array:
    kept = [None if cell.strip().lower() in _MISSING else cell for cell in cells]
    full = None not in kept
    for kind in (int, float):
        try:
            numbers = [np.nan if cell is None else kind(cell) for cell in kept]
            return np.array(numbers, np.int64 if full and kind is int else np.float64)
        except (ValueError, OverflowError):
            continue
    return np.array(kept, np.str_ if full else object)


def write_csv(path: Any, columns: Mapping[str, Array]) -> None:
    """Write columns with a header; numbers with full precision."""
    with writing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        text.detach()
