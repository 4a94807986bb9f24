"""Logged trajectories in columns: what oracles and agents learn from before the first episode."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_array, as_path, frozen, having, instance, items, whole
from .._support.files import reading, writing
from .._support.progress import bar
from .._support.state import read_state, write_state
from ..errors import OpoError, install
from ..model.contextual import ContextualMDP, Trajectory, check_trajectory
from ..model.layout import Layout, as_mask
from ..model.operations import check_policy, play
from ..model.streams import Streams

__all__ = ["TrajectoryLog"]

Array = npt.NDArray[Any]
_FORMAT = "opo_fast.TrajectoryLog"


class TrajectoryLog(Sequence[Trajectory]):
    """Trajectories of one layout in columns; a sequence of `Trajectory`. Immutable.

    Parameters
    ----------
    layout : Layout
    contexts : sequence of n contexts
        Numbers, strings, or arrays that share a shape; or an array whose first axis is the episode. Other hashable
        contexts are taken too, but cannot be written to a file.
    states : array_like of int, shape (n, H) or (n, H + 1)
        Numbered as in `Layout`; the end state may be left out.
    actions : array_like of int, shape (n, H)
    losses : array_like, shape (n, H)
        Observed losses in [0, 1].
    action_mask : array_like of bool (n_states, A), optional
        Masked actions are refused.

    Raises
    ------
    OpoError
        No trajectory at all, columns of different lengths, or the first bad entry: a state that is not of its layer, an
        action that does not exist or is masked, a loss that is not a number in [0, 1].
    """

    def __init__(
        self,
        layout: Layout,
        contexts: Any,
        states: npt.ArrayLike,
        actions: npt.ArrayLike,
        losses: npt.ArrayLike,
        action_mask: npt.ArrayLike | None = None,
    ) -> None:
        instance(layout, "layout", Layout)
        if not isinstance(contexts, np.ndarray):
            contexts = items(contexts, "contexts", "contexts")
        elif not contexts.ndim:
            raise OpoError("contexts is an array without axes: its first axis must be the episode")
        self.layout, self.action_mask = layout, as_mask(layout, action_mask)
        n, horizon = len(contexts), layout.horizon
        if n == 0:
            raise OpoError("the log is empty: at least one trajectory is needed")
        columns = {
            "states": _column(states, "states", "iu"),
            "actions": _column(actions, "actions", "iu"),
            "losses": _column(losses, "losses", "iufb"),
        }
        if columns["states"].ndim == 2 and columns["states"].shape[1] == horizon:
            end = np.full((len(columns["states"]), 1), layout.n_states, np.int64)
            columns["states"] = np.concatenate([columns["states"], end], axis=1)
        for name, width in (("states", horizon + 1), ("actions", horizon), ("losses", horizon)):
            if columns[name].shape != (n, width):
                raise OpoError(f"{name} has shape {columns[name].shape}: (number of contexts, steps) = {(n, width)} is needed")
        self.contexts = _as_contexts(contexts)
        self.states = frozen(columns["states"].astype(np.int64))
        self.actions = frozen(columns["actions"].astype(np.int64))
        self.losses = frozen(columns["losses"].astype(np.float64))
        self._validate()

    def _validate(self) -> None:
        layout, states, actions = self.layout, self.states[:, :-1], self.actions
        low, high = layout.offsets[:-1], layout.offsets[1:]
        _refuse((states < low) | (states >= high), lambda i, h: f"state {states[i, h]}: a state from {low[h]} to {high[h] - 1} is needed")
        last = self.states[:, -1:]
        _refuse(last != layout.n_states, lambda i, h: f"last state {last[i, 0]}: the end state {layout.n_states} is needed")
        bad = (actions < 0) | (actions >= layout.n_actions)
        _refuse(bad, lambda i, h: f"action {actions[i, h]}: 0 to {layout.n_actions - 1} is needed")
        if self.action_mask is not None:
            masked = ~self.action_mask[states, actions]
            _refuse(masked, lambda i, h: f"action {actions[i, h]} is masked in state {states[i, h]}")
        bad = ~((self.losses >= 0) & (self.losses <= 1))
        _refuse(bad, lambda i, h: f"loss {float(self.losses[i, h])!r}: a number in [0, 1] is needed")

    @classmethod
    def of(cls, layout: Layout, trajectories: Any, action_mask: npt.ArrayLike | None = None) -> TrajectoryLog:
        """The log of an iterable of `Trajectory`; a log that was checked for this layout and mask is handed on as it is."""
        instance(layout, "layout", Layout)
        if isinstance(trajectories, TrajectoryLog):
            log, mask = trajectories, as_mask(layout, action_mask)
            if log.layout != layout:
                raise OpoError(f"the log has {log.layout!r}: {layout!r} is needed")
            if mask is None or (log.action_mask is not None and np.array_equal(mask, log.action_mask)):
                return log
            return cls(layout, log.contexts, log.states, log.actions, log.losses, mask)
        if isinstance(trajectories, Trajectory) or not isinstance(trajectories, Iterable):
            raise OpoError(f"trajectories is a {type(trajectories).__name__}: a TrajectoryLog or a sequence of Trajectory is needed")
        checked = []
        mask = as_mask(layout, action_mask)
        for i, trajectory in enumerate(trajectories):
            try:
                checked.append(check_trajectory(layout, mask, trajectory))
            except OpoError as error:
                raise OpoError(f"trajectory {i}: {error}") from None
        if not checked:
            raise OpoError("the log is empty: at least one trajectory is needed")
        states, actions, losses = (np.stack([getattr(t, name) for t in checked]) for name in ("states", "actions", "losses"))
        return cls(layout, [t.context for t in checked], states, actions, losses, mask)

    @classmethod
    def collect(cls, cmdp: ContextualMDP, episodes: int, seed: int = 0, policy: Any = None) -> TrajectoryLog:
        """Play a fixed policy in an environment and log it.

        Parameters
        ----------
        cmdp : ContextualMDP
        episodes : int
        seed : int
            Keys the same streams as `opo_fast.simulate`.
        policy : callable, optional
            ``policy(context)`` gives a policy (n_states, A). Default: uniform over the allowed actions.
        """
        having(cmdp, "cmdp", ("layout", "sample_context", "mdp"), "a ContextualMDP")
        if policy is not None and not callable(policy):
            raise OpoError(f"policy is a {type(policy).__name__}: a callable policy(context) is needed")
        episodes, streams = whole(episodes, "episodes", least=1), Streams(seed, cmdp.layout.horizon)
        sample_losses = getattr(cmdp, "sample_losses", None)
        played, mask = [], None
        for t in range(episodes):
            context = cmdp.sample_context(streams.generator("contexts", t))
            mdp = cmdp.mdp(context)
            mask = mdp.action_mask
            chosen = mdp.uniform_policy() if policy is None else check_policy(mdp, policy(context))
            u = [streams.uniforms(name, t) for name in ("actions", "transitions", "losses")]
            played.append(play(mdp, chosen, u[0], u[1], u[2], context, sample_losses, "numba"))
        return cls.of(cmdp.layout, played, mask)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return TrajectoryLog(self.layout, self.contexts[i], self.states[i], self.actions[i], self.losses[i], self.action_mask)
        trajectory = Trajectory(self.contexts[i], self.states[i], self.actions[i], self.losses[i])
        # As check_trajectory marks what it has passed.
        object.__setattr__(trajectory, "_passed", (self.layout, self.action_mask))
        return trajectory

    def __iter__(self) -> Iterator[Trajectory]:
        return map(self.__getitem__, range(len(self)))

    def parts(self, label: str, *, progress: bool | None = None, size: int = 1000) -> Iterator[TrajectoryLog]:
        """The log part by part, with a bar on standard error.

        Parameters
        ----------
        label : str
            What is being done with the parts.
        progress : bool, optional
            Default: a bar on a terminal, once two seconds have passed.
        size : int
            Trajectories of a part.
        """
        with bar(label, len(self), progress) as show:
            for first in range(0, len(self), size):
                yield self[first : first + size]
                show(min(first + size, len(self)))

    @property
    def pairs(self) -> Array:
        """Row state * A + action of every step, shape (n, H)."""
        return self.states[:, :-1] * self.layout.n_actions + self.actions

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to `path`, ending in .npz or .parquet.

        npz: ``contexts`` (n,) or (n, ...), ``states`` (n, H + 1), ``actions`` and ``losses`` (n, H), and a JSON text with
        the layout. Parquet (pyarrow, extra `parquet`): one row per step with the columns ``episode``, ``step`` (from 0),
        ``context`` (array contexts: a list of numbers), ``state``, ``action``, ``loss``; the layout in the file's
        metadata. The end state and the mask are not written to Parquet.
        """
        column = self._context_column()
        meta = {"format": _FORMAT, "version": 1, "layer_sizes": list(self.layout.layer_sizes), "n_actions": self.layout.n_actions}
        if _kind(path) == "npz":
            arrays = {"contexts": column, "states": self.states, "actions": self.actions, "losses": self.losses}
            if self.action_mask is not None:
                arrays["action_mask"] = self.action_mask
            write_state(path, {"log": meta, **arrays})
            return
        pa, pq = _pyarrow()
        n, horizon = self.actions.shape
        if column.ndim > 2:
            raise OpoError(f"contexts have shape {column.shape[1:]}: Parquet takes numbers, strings and arrays of one axis (npz takes all)")
        context = np.repeat(column, horizon, axis=0)
        table = pa.table(
            {
                "episode": np.repeat(np.arange(n), horizon),
                "step": np.tile(np.arange(horizon), n),
                "context": pa.array(list(context)) if context.ndim == 2 else pa.array(context),
                "state": self.states[:, :-1].ravel(),
                "action": self.actions.ravel(),
                "loss": self.losses.ravel(),
            },
            metadata={"opo_fast": json.dumps({**meta, "context_dtype": column.dtype.str})},
        )
        with writing(path) as file:
            pq.write_table(table, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str], layout: Layout | None = None, action_mask: npt.ArrayLike | None = None) -> TrajectoryLog:
        """Read a log; it is validated like any other.

        Parameters
        ----------
        path : path
            Of an .npz or .parquet file as `save` describes.
        layout : Layout, optional
            Needed for a Parquet file that another program wrote; elsewhere checked.
        action_mask : array_like of bool (n_states, A), optional
        """
        read = _read_npz if _kind(path) == "npz" else _read_parquet
        with reading(path, "a log"):
            meta, contexts, states, actions, losses, mask = read(path)
            found = None if meta is None else Layout(meta["layer_sizes"], meta["n_actions"])
        if layout is None and found is None:
            raise OpoError(f"layout is missing: {os.fspath(path)!r} does not say what its layers are")
        if layout is not None and found is not None and layout != found:
            raise OpoError(f"layout is {layout!r}: the log {os.fspath(path)!r} has {found!r}")
        return cls(layout or found, contexts, states, actions, losses, mask if action_mask is None else action_mask)  # type: ignore[arg-type]

    def _context_column(self) -> Array:
        contexts = self.contexts
        if isinstance(contexts, np.ndarray):
            return contexts
        kinds = {bool: "b", int: "i", float: "f", str: "U"}
        if len({type(context) for context in contexts}) != 1 or type(contexts[0]) not in kinds:
            raise OpoError(
                f"contexts: {contexts[0]!r} and its like cannot be written: numbers or strings of one type or arrays of a shape are needed"
            )
        column = np.array(contexts)
        if column.dtype.kind != kinds[type(contexts[0])]:
            raise OpoError(f"contexts: dtype {column.dtype} cannot be written to a file")
        return column

    def __repr__(self) -> str:
        return f"<TrajectoryLog of {self.layout!r}: {len(self)} trajectories>"


def _column(values: Any, name: str, kinds: str) -> Array:
    array = as_array(values, name)
    if array.dtype.kind not in kinds:
        raise OpoError(f"{name} has dtype {array.dtype}: {'whole ' if kinds == 'iu' else ''}numbers are needed")
    return array


def _refuse(bad: Array, message: Any) -> None:
    if bad.any():
        i, h = (int(x) for x in np.argwhere(bad)[0])
        raise OpoError(f"trajectory {i}, step {h}: {message(i, h)}")


def _as_contexts(contexts: Any) -> Any:
    """A list of scalars, or an array (n, ...) of array contexts."""
    if isinstance(contexts, np.ndarray):
        if contexts.dtype.hasobject:
            raise OpoError("contexts is an array of objects: numbers or strings are needed")
        return contexts.tolist() if contexts.ndim == 1 else frozen(contexts.copy())
    values = [context.item() if isinstance(context, np.generic) else context for context in contexts]
    first = values[0]
    if isinstance(first, np.ndarray) and all(
        isinstance(c, np.ndarray) and (c.shape, c.dtype) == (first.shape, first.dtype) for c in values
    ):
        return frozen(np.stack(values))
    return values


def _kind(path: Any) -> str:
    name = as_path(path)
    for ending in ("npz", "parquet"):
        if name.endswith(f".{ending}"):
            return ending
    raise OpoError(f"path is {name!r}: a name that ends in .npz or .parquet is needed")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise OpoError(f"Parquet files need pyarrow: {install('parquet')}") from None
    return pa, pq


def _read_npz(path: Any) -> tuple[Any, ...]:
    state = read_state(path, "a log")
    meta = state["log"]
    if (meta["format"], meta["version"]) != (_FORMAT, 1):
        raise ValueError(f"format {meta['format']!r}, version {meta['version']!r}")
    return (meta, *(state[name] for name in ("contexts", "states", "actions", "losses")), state.get("action_mask"))


def _read_parquet(path: Any) -> tuple[Any, ...]:
    _, pq = _pyarrow()
    table = pq.read_table(path)
    metadata = (table.schema.metadata or {}).get(b"opo_fast")
    meta = None if metadata is None else json.loads(metadata)
    missing = [name for name in ("episode", "step", "context", "state", "action", "loss") if name not in table.column_names]
    if missing:
        raise OpoError(f"path: {os.fspath(path)!r} has no column {missing[0]!r}: episode, step, context, state, action and loss are needed")
    for name in ("episode", "step", "state", "action", "loss"):
        if table[name].null_count:
            raise OpoError(f"path: column {name!r} of {os.fspath(path)!r} has {table[name].null_count} missing values: none is allowed")
    table = table.sort_by([("episode", "ascending"), ("step", "ascending")])
    episode, step = (table[name].to_numpy() for name in ("episode", "step"))
    _, counts = np.unique(episode, return_counts=True)
    if table.num_rows == 0:
        raise OpoError("the log is empty: at least one trajectory is needed")
    n, horizon = counts.size, int(counts[0])
    if (counts != horizon).any() or (step.reshape(n, horizon) != np.arange(horizon)).any():
        i = int(np.flatnonzero(counts != horizon)[0]) if (counts != horizon).any() else 0
        raise OpoError(
            f"path: episode {episode[int(counts[:i].sum())]} of {os.fspath(path)!r} has {int(counts[i])} steps, the first has {horizon}: "
            "each episode needs the steps 0 to H - 1, once each"
        )
    context = table["context"].combine_chunks().to_pylist()
    for i in range(n):
        if any(c != context[i * horizon] for c in context[i * horizon : (i + 1) * horizon]):
            raise OpoError(f"path: episode {episode[i * horizon]} of {os.fspath(path)!r} has several contexts: one is needed")
    contexts: Any = context[::horizon]
    if isinstance(contexts[0], list):
        contexts = np.array(contexts, dtype=None if meta is None else meta["context_dtype"])
    columns = [table[name].to_numpy().reshape(n, horizon) for name in ("state", "action", "loss")]
    return (meta, contexts, *columns, None)
