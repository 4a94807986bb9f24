"""Converts the rows of a table to the columns of a log: layers and labels, losses, and episodes that end early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, as_items, as_number, shown
from ..errors import OpoError
from ..model.layout import Layout, as_mask
from .log_tables import Columns, Grouped, missing, unique

__all__ = ["rows_to_log"]

Array = npt.NDArray[Any]
Labels = tuple[tuple[Any, ...], ...]
START = "start"
"""Label of the state that is added if there are several first states."""


def rows_to_log(
    table: Any,
    layout: Layout | None,
    columns: Columns,
    *,
    states: Any = None,
    actions: Any = None,
    absorbing: Any = None,
    start_layer: bool | None = None,
    action_mask: Any = None,
) -> dict[str, Any]:
    """The arguments of `TrajectoryLog`; see `TrajectoryLog.from_pandas`."""
    if layout is None and action_mask is not None:
        raise OpoError("action_mask is given without a layout: states have no numbers then; pass layout as well")
    rows = Grouped(table, columns)
    stays = _Absorbing(absorbing, columns)
    if stays.losses and layout is not None and (states is None or states == "global"):
        raise OpoError("absorbing is given and states are numbered as in Layout: pass states='local' or labels")
    seen = rows.column(columns.state)
    rows.refuse_missing(columns.state, seen)
    kept = stays.before(rows, seen)
    several = unique(seen[rows.at == 0], columns.state)[0].size > 1
    added = (layout is None and several) if start_layer is None else as_bool(start_layer, "start_layer")
    longest = int(kept.max())
    steps = longest if layout is None else layout.horizon - added
    if longest > steps:
        i = int(kept.argmax())
        raise OpoError(f"episode {rows.episodes[i]!r} has {longest} steps: at most {steps}, those of {layout!r}, are needed")
    ends = stays.ends(rows, seen, kept, steps)
    read = rows.at < kept[rows.of]
    if layout is None and states is None:
        labels = _reached(rows, seen, read, ends, kept, steps)
    else:
        labels = _state_labels(layout, states, int(added), steps, None if several else _plain(seen[0]))
    local = _filled(rows, read, steps, _local(rows, seen, read, labels, columns.state), ends, labels)
    action_labels, chosen = _actions(rows, read, layout, actions)
    inferred = layout is None
    if added:
        labels, local = ((START,), *labels), np.concatenate([np.zeros((len(kept), 1), np.int64), local], axis=1)
    if layout is None:
        layout = Layout([len(layer) for layer in labels], len(action_labels))
    mask = _mask(layout, action_mask, labels, set(stays.losses), added)
    first = np.zeros(layout.n_states, np.int64) if mask is None else mask.argmax(axis=1)
    numbers = local + layout.offsets[:-1]
    table_of = {"actions": (chosen, first[numbers]), "losses": (_losses(rows, read, stays, seen), stays.fill(ends, numbers.shape, added))}
    if columns.propensity is not None:
        table_of["propensities"] = _propensities(rows, read), np.ones(numbers.shape)
    result = {name: _placed(rows, read, int(added), values, filling) for name, (values, filling) in table_of.items()}
    named = states is not None and not isinstance(states, str)
    return {
        "layout": layout,
        "contexts": _contexts(rows),
        "states": numbers,
        "action_mask": mask,
        "episodes": None if rows.episodes == list(range(len(kept))) else rows.episodes,
        "state_labels": labels if named or inferred else None,
        "action_labels": action_labels if actions is not None or inferred else None,
        **result,
    }


class _Absorbing:
    """The states in which episodes that end early stay, with the loss (or reward) of each further step."""

    def __init__(self, absorbing: Any, columns: Columns) -> None:
        if absorbing is None:
            given: dict[Any, float] = {}
        elif isinstance(absorbing, Mapping):
            given = {key: as_number(value, f"absorbing[{key!r}]", least=-np.inf) for key, value in absorbing.items()}
        elif isinstance(absorbing, Sequence) and not isinstance(absorbing, str):
            given = dict.fromkeys(absorbing, 0.0)
        else:
            given = {absorbing: 0.0}
        self.losses, self.columns = given, columns

    def is_one(self, values: Array) -> Array:
        """Which of these states are absorbing."""
        if not self.losses:
            return np.zeros(values.shape, bool)
        found, inverse = unique(values, self.columns.state)
        return np.array([value in self.losses for value in found.tolist()])[inverse]

    def before(self, rows: Grouped, seen: Array) -> Array:
        """Steps of each episode before its first row in an absorbing state, (n,)."""
        kept: Array = rows.lengths.copy()
        inside = np.flatnonzero(self.is_one(seen))
        np.minimum.at(kept, rows.of[inside], rows.at[inside])
        if not kept.all():
            raise OpoError(f"episode {rows.episodes[int(np.flatnonzero(kept == 0)[0])]!r} begins in an absorbing state: it has no steps")
        return kept

    def ends(self, rows: Grouped, seen: Array, kept: Array, steps: int) -> list[Any]:
        """The absorbing state of each episode that ends early, None for the others."""
        columns, n = self.columns, len(kept)
        first = np.cumsum(rows.lengths) - rows.lengths
        ends: list[Any] = [None] * n
        following = self._next(rows, seen, kept)
        for i in np.flatnonzero(kept < rows.lengths).tolist():
            row = int(first[i] + kept[i])
            rest = slice(row, int(first[i] + rows.lengths[i]))
            other = np.flatnonzero(seen[rest] != seen[row])
            if other.size:
                after, state = (_plain(seen[k]) for k in (row + int(other[0]), row))
                raise OpoError(f"{rows.place(row + int(other[0]))}: state {after!r} follows the absorbing state {state!r}")
        for i in np.flatnonzero(kept < steps).tolist():
            name, row = rows.episodes[i], int(first[i] + kept[i])
            if kept[i] < rows.lengths[i]:
                ends[i] = seen[row]
            elif following is not None:
                ends[i] = _plain(following[row - 1])
                if ends[i] not in self.losses:
                    into = f"in {columns.next_state} {ends[i]!r}, which absorbing does not name"
                    raise OpoError(f"episode {name!r} ends after {kept[i]} of {steps} steps {into}")
            elif len(self.losses) == 1:
                ends[i] = next(iter(self.losses))
            else:
                needed = "name the state in which it stays by absorbing="
                if self.losses:
                    needed = "absorbing names several states, so a column next_state, or a last row in one of them, is needed"
                raise OpoError(f"episode {name!r} ends after {kept[i]} of {steps} steps: {needed}")
            ends[i] = _plain(ends[i])
        return ends

    def _next(self, rows: Grouped, seen: Array, kept: Array) -> Array | None:
        """The column of next states, which must agree with the states of the following rows."""
        name = self.columns.next_state
        if name is None:
            return None
        following = rows.column(name)
        inside = rows.at < rows.lengths[rows.of] - 1
        read = rows.at < kept[rows.of]
        rows.refuse_missing(name, following, read & (inside | (rows.at < kept.max() - 1)))
        after = np.append(seen[1:], seen[:1])
        rows.refuse(
            inside & read & (following != after),
            name,
            lambda row: f"next state {_plain(following[row])!r}, but the next row's state is {_plain(after[row])!r}",
        )
        return following

    def cost(self, state: Any) -> float:
        """The loss of each further step in an absorbing state."""
        value, columns = self.losses[state], self.columns
        if columns.reward is not None:
            low, high = columns.range
            value = (high - value) / ((high - low) or 1.0)
        if not 0 <= value <= 1:
            raise OpoError(f"absorbing: state {state!r} costs {self.losses[state]!r} in each further step: a {columns.kind} is needed")
        return value

    def fill(self, ends: list[Any], shape: tuple[int, ...], added: bool) -> Array:
        """The losses of the steps after the end of each episode."""
        cost = np.array([0.0 if end is None else self.cost(end) for end in ends])
        filling = np.tile(cost[:, None], shape[1])
        filling[:, : int(added)] = 0.0
        return filling


# -- states and actions ------------------------------------------------------------------------------------------------


def _reached(rows: Grouped, seen: Array, read: Array, ends: list[Any], kept: Array, steps: int) -> Labels:
    """The states that occur in each layer of the table, sorted."""
    reached = [set(unique(seen[read & (rows.at == h)], rows.columns.state)[0].tolist()) for h in range(steps)]
    for end, length in zip(ends, kept.tolist(), strict=True):
        if end is not None:
            for h in range(length, steps):
                reached[h].add(end)
    return tuple(tuple(_sorted(layer)) for layer in reached)


def _state_labels(layout: Layout | None, states: Any, added: int, steps: int, first: Any) -> Labels:
    """The labels of the states of each layer; `first` is the first state, if there is only one."""
    if isinstance(states, str) and states not in ("global", "local"):
        raise OpoError(f"states is {states!r}: 'global', 'local' or labels are needed")
    if states is None or isinstance(states, str):
        if layout is None:
            raise OpoError(f"states is {states!r} and layout is missing: pass the layout that has these numbers, or leave states out")
        low = layout.offsets[added:].tolist()
        if states == "local":
            return tuple(tuple(range(size)) for size in layout.layer_sizes[added:])
        return tuple(tuple(range(low[h], low[h + 1])) for h in range(steps))
    given = as_items(states, "states", "labels, the same in every layer or one sequence for each layer,", some=True)
    if isinstance(given[0], (list, tuple, np.ndarray)):
        labels = tuple(tuple(map(_plain, as_items(layer, "states", "labels"))) for layer in given)
        labels = labels[added:] if len(labels) == steps + added else labels
    else:
        shared = tuple(map(_plain, given))
        labels = ((first,) if first is not None and not added else shared, *[shared] * (steps - 1))
    wanted = None if layout is None else layout.layer_sizes[added:]
    if len(labels) != steps or (wanted is not None and tuple(map(len, labels)) != wanted):
        needed = f"{steps} layers" if wanted is None else f"{list(wanted)}, those of {layout!r},"
        raise OpoError(f"states has layers of {[len(layer) for layer in labels]} labels: {needed} are needed")
    for h, layer in enumerate(labels):
        if len(set(layer)) != len(layer):
            raise OpoError(f"states: layer {h} has a label twice; labels must be distinct")
    return labels


def _local(rows: Grouped, seen: Array, read: Array, labels: Labels, name: str) -> Array:
    """The number of each row's state inside its layer."""
    found, inverse = unique(seen, name)
    values = found.tolist()
    position = np.full((len(labels), len(values)), -1)
    for h, layer in enumerate(labels):
        index = {label: i for i, label in enumerate(layer)}
        position[h] = [index.get(value, -1) for value in values]
    local = np.where(read, position[rows.at.clip(0, len(labels) - 1), inverse], 0)

    def message(row: int) -> str:
        layer = labels[rows.at[row]]
        listed = f"{layer[0]!r} to {layer[-1]!r}" if len(layer) > 8 else ", ".join(map(repr, layer))
        return f"state {values[inverse[row]]!r} is not in its layer, which has {listed}"

    rows.refuse(local < 0, name, message)
    return np.asarray(local)


def _filled(rows: Grouped, read: Array, steps: int, local: Array, ends: list[Any], labels: Labels) -> Array:
    """Local states of all steps, (n, steps); an episode that has ended stays in its absorbing state."""
    result = np.full((len(ends), steps), -1)
    result[rows.of[read], rows.at[read]] = local[read]
    for i, h in np.argwhere(result < 0).tolist():
        if ends[i] not in labels[h]:
            raise OpoError(
                f"episode {rows.episodes[i]!r} has ended before step {h}: the absorbing state {ends[i]!r} is not a state of that layer"
            )
        result[i, h] = labels[h].index(ends[i])
    return result


def _actions(rows: Grouped, read: Array, layout: Layout | None, actions: Any) -> tuple[tuple[Any, ...], Array]:
    """The labels of the actions, and the number of each row's action."""
    name = rows.columns.action
    values = rows.column(name)
    rows.refuse_missing(name, values, read)
    if actions is None and layout is not None:
        numbers = rows.integers(name, values, read)
        n = layout.n_actions
        rows.refuse(read & ((numbers < 0) | (numbers >= n)), name, lambda row: f"action {numbers[row]}: 0 to {n - 1} is needed")
        return tuple(range(n)), numbers
    found, inverse = unique(values[read], name)
    labels = tuple(found.tolist()) if actions is None else tuple(map(_plain, as_items(actions, "actions", "labels", some=True)))
    if layout is not None and len(labels) != layout.n_actions:
        raise OpoError(f"actions has {len(labels)} labels: {layout.n_actions}, those of {layout!r}, are needed")
    index = {label: i for i, label in enumerate(labels)}
    numbers = np.zeros(values.size, np.int64)
    numbers[read] = np.array([index.get(value, -1) for value in found.tolist()])[inverse]
    rows.refuse(numbers < 0, name, lambda row: f"action {_plain(values[row])!r}: one of {', '.join(map(repr, labels))} is needed")
    return labels, numbers


def _mask(layout: Layout, given: Any, labels: Labels, absorbing: set[Any], added: bool) -> Array | None:
    """The action mask: absorbing states, and an added start state, have one action, the first that is allowed."""
    mask = as_mask(layout, given)
    flat = [label for layer in labels for label in layer]
    alone = np.array([label in absorbing for label in flat])
    alone[0] |= added
    if not alone.any():
        return mask
    result = np.ones(layout.shape, bool) if mask is None else mask.copy()
    first = result[alone].argmax(axis=1)
    result[alone] = np.arange(layout.n_actions) == first[:, None]
    return result


# -- numbers and contexts ----------------------------------------------------------------------------------------------


def _losses(rows: Grouped, read: Array, stays: _Absorbing, seen: Array) -> Array:
    """The loss of each row."""
    columns, name = rows.columns, rows.columns.cost
    values = rows.column(name)
    rows.refuse_missing(name, values, read)
    given = read | ~missing(values)
    numbers = rows.numbers(name, values, given)
    low, high = columns.range
    rows.refuse(given & ~((numbers >= low) & (numbers <= high)), name, lambda row: f"{float(numbers[row])!r}: a {columns.kind} is needed")
    stated = np.array([np.nan if inside else stays.losses[_plain(state)] for state, inside in zip(seen, read, strict=True)])
    rows.refuse(
        given & ~read & (numbers != stated),
        name,
        lambda row: f"{float(numbers[row])!r} in state {_plain(seen[row])!r}: {stated[row]:g}, as absorbing says, is needed",
    )
    return numbers if columns.reward is None else np.asarray((high - numbers) / ((high - low) or 1.0))


def _propensities(rows: Grouped, read: Array) -> Array:
    name = rows.columns.propensity
    assert name is not None
    values = rows.column(name)
    rows.refuse_missing(name, values, read)
    numbers = rows.numbers(name, values, read)
    rows.refuse(read & ~((numbers > 0) & (numbers <= 1)), name, lambda row: f"{float(numbers[row])!r}: a number in (0, 1] is needed")
    return numbers


def _placed(rows: Grouped, read: Array, shift: int, values: Array, filling: Array) -> Array:
    """Values of the rows that are read, and `filling` elsewhere, (n, H)."""
    result = filling.copy()
    result[rows.of[read], rows.at[read] + shift] = values[read]
    return result


def _contexts(rows: Grouped) -> Any:
    """The context of each episode."""
    names = rows.columns.contexts
    first = np.cumsum(rows.lengths) - rows.lengths
    columns = []
    for name in names:
        values = rows.column(name)
        rows.refuse_missing(name, values)
        of_episode = values[first][rows.of]
        rows.refuse(
            values != of_episode,
            name,
            lambda row, values=values, of_episode=of_episode: (
                f"{_plain(values[row])!r} after {_plain(of_episode[row])!r}: an episode has one context"
            ),
        )
        columns.append(values[first])
    if not columns:
        return [0] * len(first)
    if all(column.dtype.kind in "biuf" for column in columns) and not isinstance(rows.columns.context, str):
        return np.column_stack(columns)
    if len(columns) == 1:
        values = columns[0].tolist()
        return np.array(values) if isinstance(values[0], tuple) else values
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _sorted(values: set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        raise OpoError(
            f"states mix types of labels that cannot be sorted, such as {shown(next(iter(values)))}: give the labels in order by states="
        ) from None
