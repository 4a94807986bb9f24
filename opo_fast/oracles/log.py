"""Logged trajectories in columns, from which oracles and agents can learn before the first episode."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_array, as_integer, as_items, frozen, having, instance
from .._support.lru import LRU
from .._support.memory import check_room
from .._support.progress import bar
from ..errors import OpoError
from ..model.contextual import ContextualMDP, Trajectory, check_trajectory, context_key, passed
from ..model.layout import Layout, as_mask
from ..model.operations import check_policy, play_in
from ..model.streams import Streams
from .log_files import as_contexts, context_columns, load_log, read_parquet, save_log
from .log_rows import rows_to_log
from .log_tables import Columns, read_csv, write_csv

__all__ = ["TrajectoryLog"]

Array = npt.NDArray[Any]
_ROWS = ("states", "actions", "losses", "propensities")


class TrajectoryLog(Sequence[Trajectory]):
    """Trajectories of one layout in columns; a sequence of `Trajectory`. Immutable.

    Parameters
    ----------
    layout : Layout
    contexts : sequence of n contexts
        Numbers, strings, or arrays of one shape; or an array whose first axis is the episode. Other hashable
        contexts are accepted, but cannot be written to a file.
    states : array_like of int, shape (n, H) or (n, H + 1)
        Numbered as in `Layout`; the end state may be left out.
    actions : array_like of int, shape (n, H)
    losses : array_like, shape (n, H)
        Observed losses in [0, 1].
    action_mask : array_like of bool (n_states, A), optional
        Masked actions are refused.
    propensities : array_like, shape (n, H), optional
        The probability with which each logged action was chosen, in (0, 1].
    episodes : sequence of n numbers or strings, optional
        Identifiers of the episodes in errors and tables; default: numbers from 0.
    state_labels : sequence of H sequences, optional
        Labels of the states of each layer.
    action_labels : sequence of A labels, optional

    Raises
    ------
    OpoError
        If there is no trajectory, if columns have different lengths, or at the first bad entry: a state that is not in its
        layer, an action that does not exist or is masked, a loss that is not a number in [0, 1].
    """

    def __init__(
        self,
        layout: Layout,
        contexts: Any,
        states: npt.ArrayLike,
        actions: npt.ArrayLike,
        losses: npt.ArrayLike,
        action_mask: npt.ArrayLike | None = None,
        *,
        propensities: npt.ArrayLike | None = None,
        episodes: Sequence[Any] | None = None,
        state_labels: Sequence[Sequence[Any]] | None = None,
        action_labels: Sequence[Any] | None = None,
    ) -> None:
        instance(layout, "layout", Layout)
        if not isinstance(contexts, np.ndarray):
            contexts = as_items(contexts, "contexts", "contexts")
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
        if propensities is not None:
            columns["propensities"] = _column(propensities, "propensities", "iuf")
        if columns["states"].ndim == 2 and columns["states"].shape[1] == horizon:
            end = np.full((len(columns["states"]), 1), layout.n_states, np.int64)
            columns["states"] = np.concatenate([columns["states"], end], axis=1)
        for name, column in columns.items():
            width = horizon + (name == "states")
            if column.shape != (n, width):
                raise OpoError(f"{name} has shape {column.shape}: (number of contexts, steps) = {(n, width)} is needed")
        self.contexts = as_contexts(contexts)
        self.states = frozen(columns["states"].astype(np.int64))
        self.actions = frozen(columns["actions"].astype(np.int64))
        self.losses = frozen(columns["losses"].astype(np.float64))
        self.propensities = frozen(columns["propensities"].astype(np.float64)) if propensities is not None else None
        self.episodes = None if episodes is None else as_items(episodes, "episodes", "numbers or strings")
        if self.episodes is not None and len(self.episodes) != n:
            raise OpoError(f"episodes has {len(self.episodes)} entries: one for each of the {n} trajectories is needed")
        self.state_labels = None if state_labels is None else tuple(tuple(layer) for layer in state_labels)
        self.action_labels = None if action_labels is None else tuple(action_labels)
        found = None if self.state_labels is None else tuple(len(layer) for layer in self.state_labels)
        if found not in (None, layout.layer_sizes):
            raise OpoError(f"state_labels has layers of {found} labels: {layout.layer_sizes} are needed")
        if self.action_labels is not None and len(self.action_labels) != layout.n_actions:
            raise OpoError(f"action_labels has {len(self.action_labels)} entries: {layout.n_actions} are needed")
        self._validate()

    def _validate(self) -> None:
        layout, states, actions, refuse = self.layout, self.states[:, :-1], self.actions, self._refuse
        low, high = layout.offsets[:-1], layout.offsets[1:]
        refuse((states < low) | (states >= high), lambda i, h: f"state {states[i, h]}: a state from {low[h]} to {high[h] - 1} is needed")
        last = self.states[:, -1:]
        refuse(last != layout.n_states, lambda i, h: f"last state {last[i, 0]}: the end state {layout.n_states} is needed")
        bad = (actions < 0) | (actions >= layout.n_actions)
        refuse(bad, lambda i, h: f"action {actions[i, h]}: 0 to {layout.n_actions - 1} is needed")
        if self.action_mask is not None:
            masked = ~self.action_mask[states, actions]
            refuse(masked, lambda i, h: f"action {actions[i, h]} is masked in state {states[i, h]}")
        bad = ~((self.losses >= 0) & (self.losses <= 1))
        refuse(bad, lambda i, h: f"loss {float(self.losses[i, h])!r}: a number in [0, 1] is needed")
        if (p := self.propensities) is not None:
            refuse(~((p > 0) & (p <= 1)), lambda i, h: f"propensity {float(p[i, h])!r}: a number in (0, 1] is needed")

    def _refuse(self, bad: Array, message: Any) -> None:
        if bad.any():
            i, h = (int(x) for x in np.argwhere(bad)[0])
            name = f"trajectory {i}" if self.episodes is None else f"episode {self.episodes[i]!r}"
            raise OpoError(f"{name}, step {h}: {message(i, h)}")

    @classmethod
    def of(cls, layout: Layout, trajectories: Any, action_mask: npt.ArrayLike | None = None) -> TrajectoryLog:
        """The log of an iterable of `Trajectory`; a log that was checked for this layout and mask is returned as it is."""
        instance(layout, "layout", Layout)
        if isinstance(trajectories, TrajectoryLog):
            log, mask = trajectories, as_mask(layout, action_mask)
            if log.layout != layout:
                raise OpoError(f"the log has {log.layout!r}: {layout!r} is needed")
            if mask is None or (log.action_mask is not None and np.array_equal(mask, log.action_mask)):
                return log
            return log._with(action_mask=mask)
        if isinstance(trajectories, Trajectory):
            raise OpoError("trajectories is a Trajectory: a TrajectoryLog or a sequence of Trajectory is needed")
        checked = []
        mask = as_mask(layout, action_mask)
        for i, trajectory in enumerate(as_items(trajectories, "trajectories", "Trajectory")):
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
            Seed of the same random streams as in `opo_fast.simulate`.
        policy : callable, optional
            ``policy(context)`` returns a policy (n_states, A); it is fastest to return the same array each time. Default: uniform
            over the allowed actions.
        """
        having(cmdp, "cmdp", ("layout", "sample_context", "mdp"), "a ContextualMDP")
        if policy is not None and not callable(policy):
            raise OpoError(f"policy is a {type(policy).__name__}: a callable policy(context) is needed")
        episodes, streams = as_integer(episodes, "episodes", least=1), Streams(seed, cmdp.layout.horizon)
        check_room(4 * cmdp.layout.horizon * episodes, f"episodes is {episodes}: the trajectories of so many")
        recorder = Recorder(cmdp.layout)
        seen: LRU[Any] = LRU(1 << 26)
        for t in range(episodes):
            context = cmdp.sample_context(streams.generator("contexts", t))
            mdp = cmdp.mdp(context)
            given: Any = None if policy is None else policy(context)
            known = seen.get(key := context_key(context))
            if known is None or known[0] is not mdp or known[1] is not given:
                chosen = mdp.uniform_policy() if policy is None else check_policy(mdp, given)
                known = mdp, given, chosen, mdp.transitions.gather(chosen)
                seen.put(key, known, 2 * chosen.nbytes)
            u = [streams.uniforms(name, t) for name in ("actions", "transitions", "losses")]
            recorder.add(play_in(cmdp, mdp, known[2], (u[0], u[1], u[2]), context, "numba", known[3]), known[2], mdp.action_mask)
        found = recorder.log()
        assert found is not None
        return found

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self.take(np.arange(len(self))[i])
        return passed(Trajectory(self.contexts[i], self.states[i], self.actions[i], self.losses[i]), self.layout, self.action_mask)

    def take(self, indices: npt.ArrayLike) -> TrajectoryLog:
        """The log of the episodes at these positions, in this order; a position may occur more than once."""
        at = np.asarray(indices)
        chosen = {name: None if getattr(self, name) is None else getattr(self, name)[at] for name in _ROWS}
        contexts = self.contexts[at] if isinstance(self.contexts, np.ndarray) else [self.contexts[i] for i in at.tolist()]
        return self._with(contexts=contexts, episodes=self.episodes and [self.episodes[i] for i in at.tolist()], **chosen)

    def with_losses(self, losses: npt.ArrayLike) -> TrajectoryLog:
        """The same log with other losses (n, H)."""
        return self._with(losses=losses)

    def _with(self, **changed: Any) -> TrajectoryLog:
        names = ("layout", "contexts", "action_mask", "episodes", "state_labels", "action_labels", *_ROWS)
        return TrajectoryLog(**{name: changed.get(name, getattr(self, name)) for name in names})

    def __iter__(self) -> Iterator[Trajectory]:
        return map(self.__getitem__, range(len(self)))

    def parts(self, label: str, *, progress: bool | None = None, size: int = 1000) -> Iterator[TrajectoryLog]:
        """The log in parts, with a progress bar on standard error.

        Parameters
        ----------
        label : str
            What is done with the parts.
        progress : bool, optional
            Whether to show the bar. Default: on a terminal and in a notebook, after two seconds.
        size : int
            Number of trajectories in a part.
        """
        with bar(label, len(self), progress) as show:
            for first in range(0, len(self), size):
                yield self[first : first + size]
                show(min(first + size, len(self)))

    @property
    def visits(self) -> Array:
        """How often each state-action pair was logged, shape (n_states, A)."""
        return np.bincount(self.pairs.ravel(), minlength=self.layout.n_states * self.layout.n_actions).reshape(self.layout.shape)

    @property
    def logged(self) -> Array:
        """Mask (n_states, A) of the pairs that were logged; in a state that never occurs, of all allowed pairs."""
        visits = self.visits
        allowed = np.ones(self.layout.shape, bool) if self.action_mask is None else self.action_mask
        return np.where(visits.any(axis=1, keepdims=True), visits > 0, allowed)

    @property
    def pairs(self) -> Array:
        """Row state * A + action of every step, shape (n, H)."""
        return self.states[:, :-1] * self.layout.n_actions + self.actions

    # -- tables and files ----------------------------------------------------------------------------------------------

    @classmethod
    def from_pandas(
        cls,
        table: Any,
        layout: Layout | None = None,
        *,
        episode: str = "episode",
        step: str | None = "step",
        state: str = "state",
        action: str = "action",
        loss: str = "loss",
        reward: str | None = None,
        reward_range: tuple[float, float] | None = None,
        context: str | Sequence[str] | None = "context",
        next_state: str | None = None,
        propensity: str | None = None,
        states: Any = None,
        actions: Sequence[Any] | None = None,
        absorbing: Any = None,
        start_layer: bool | None = None,
        action_mask: npt.ArrayLike | None = None,
    ) -> TrajectoryLog:
        """The log of a table with one row per step.

        Parameters
        ----------
        table : data frame
            A pandas, polars or pyarrow table, a dict of columns, or anything that pyarrow reads through an interchange protocol.
        layout : Layout, optional
            Default: that of the table, whose layers hold the states that the table has in each step.
        episode, state, action, loss : str
            Names of columns.
        step : str or None
            Column of the steps of each episode, consecutive whole numbers from 0 or 1. None: the rows of an episode are in order.
        reward, reward_range : str and (low, high), optional
            A column of rewards in place of losses: loss = (high - reward) / (high - low).
        context : str, sequence of str, or None
            One column, or several: an array of numbers, or a tuple if there are strings. None: all episodes have context 0.
        next_state : str, optional
            Column of the next states. They must agree with the states of the next rows, and give the state in which an episode ends.
        propensity : str, optional
            Column of the probabilities with which the actions were chosen.
        states : "global", "local", or labels, optional
            How states are given: as numbers in `Layout` (the default with a layout), as numbers inside their layer, or by labels, one
            sequence for all layers or one for each. Default without a layout: the labels in the table, sorted.
        actions : sequence of labels, optional
            Default: with a layout numbers, without one the labels in the table, sorted.
        absorbing : state, sequence of states, or mapping from states to numbers, optional
            States in which an episode stays forever, with the loss (or reward) of every further step, 0 by default. An episode ends at
            its first row in such a state or after its last row; in the latter case ``next_state`` gives the state, unless there is only
            one. All remaining steps are in that state, with its only action, the first that is allowed (the actions of rows after the
            end are ignored, and a policy table shows "only" there). Without this option, an episode that is shorter than the longest
            (or than the layout) is an error.
        start_layer : bool, optional
            Whether to add a first layer with one state, loss 0 and one action before the table's first step, which is then stage 1 in
            policies and tables. Default: if there is no layout and episodes begin in different states.
        action_mask : array_like of bool (n_states, A), optional
            Needs a layout.

        Raises
        ------
        OpoError
            At the first missing or wrong value, which is named by column, episode and step.
        """
        columns = Columns(episode, step, state, action, loss, reward, reward_range, context, next_state, propensity)
        found = rows_to_log(
            table,
            layout,
            columns,
            states=states,
            actions=actions,
            absorbing=absorbing,
            start_layer=start_layer,
            action_mask=action_mask,
        )
        return cls(**found)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], layout: Layout | None = None, *, delimiter: str = ",", **options: Any) -> TrajectoryLog:
        """The log of a CSV file with a header and one row per step; the options are those of `from_pandas`.

        A column in which all cells are integers becomes integers, one with numbers floats, and any other strings. Empty cells, NA,
        NaN, null and None are missing values.
        """
        return cls.from_pandas(read_csv(path, delimiter), layout, **options)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str], layout: Layout | None = None, **options: Any) -> TrajectoryLog:
        """The log of a Parquet file (pyarrow, extra `parquet`) with one row per step; the options are those of `from_pandas`."""
        return cls.from_pandas(read_parquet(path), layout, **options)

    def to_columns(self, *, labels: bool = True) -> dict[str, Array]:
        """One row per step: ``episode``, ``step`` (from 0), ``context`` (for arrays and tuples ``context_0``, ...), ``state``, ``action``,
        ``loss``, and ``propensity`` if known.

        Parameters
        ----------
        labels : bool
            Whether to give states and actions by their labels, if there are any; otherwise they are numbered as in `Layout`.
        """
        n, horizon = self.actions.shape
        episodes = np.arange(n) if self.episodes is None else np.array(self.episodes)
        columns = {"episode": np.repeat(episodes, horizon), "step": np.tile(np.arange(horizon), n)}
        columns.update({name: np.repeat(column, horizon) for name, column in context_columns(self.contexts).items()})
        states, actions = self.states[:, :-1].ravel(), self.actions.ravel()
        if labels and self.state_labels is not None:
            states = np.array([label for layer in self.state_labels for label in layer])[states]
        if labels and self.action_labels is not None:
            actions = np.array(self.action_labels)[actions]
        columns.update(state=states, action=actions, loss=self.losses.ravel())
        if self.propensities is not None:
            columns["propensity"] = self.propensities.ravel()
        return columns

    def to_pandas(self, *, labels: bool = True) -> Any:
        """The columns of `to_columns` as a pandas data frame."""
        try:
            import pandas as pd
        except ImportError:
            raise OpoError("a data frame needs pandas: pip install pandas (to_columns and to_csv do not need it)") from None
        return pd.DataFrame(self.to_columns(labels=labels))

    def to_csv(self, path: str | os.PathLike[str], *, labels: bool = True) -> None:
        """Write the columns of `to_columns` to a CSV file, with full precision; `from_csv` reads it."""
        write_csv(path, self.to_columns(labels=labels))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to `path`, ending in .npz or .parquet.

        npz: ``contexts`` (n,) or (n, ...), ``states`` (n, H + 1), ``actions`` and ``losses`` (n, H), and a JSON string with
        the layout and the labels. Parquet (pyarrow, extra `parquet`): one row per step with the columns ``episode``, ``step`` (from 0),
        ``context`` (array contexts: a list of numbers), ``state``, ``action``, ``loss``, ``propensity``; the layout in the file's
        metadata. The end state, the mask and the labels are not written to Parquet.
        """
        save_log(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], layout: Layout | None = None, action_mask: npt.ArrayLike | None = None) -> TrajectoryLog:
        """Read a log; it is validated like any other.

        Parameters
        ----------
        path : path
            An .npz or .parquet file as described in `save`.
        layout : Layout, optional
            Needed for a Parquet file that another program wrote (see also `from_parquet`); otherwise only compared with the file's.
        action_mask : array_like of bool (n_states, A), optional
        """
        found = load_log(path, layout)
        return cls(**(found if action_mask is None else {**found, "action_mask": action_mask}))

    def __repr__(self) -> str:
        return f"<TrajectoryLog of {self.layout!r}: {len(self)} trajectories>"


class Recorder:
    """Records the episodes of a run, with the probabilities of the actions played."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._episodes: list[tuple[Trajectory, Array]] = []
        self._mask: Array | None = None

    def add(self, trajectory: Trajectory, policy: Array, action_mask: Array | None) -> None:
        """Record an episode that was played with this policy."""
        # Rounding may make a probability slightly larger than 1.
        self._episodes.append((trajectory, np.minimum(policy[trajectory.states[:-1], trajectory.actions], 1.0)))
        self._mask = action_mask

    def log(self) -> TrajectoryLog | None:
        """The recorded episodes; None before the first."""
        if not self._episodes:
            return None
        played, chances = zip(*self._episodes, strict=True)
        return TrajectoryLog.of(self.layout, played, self._mask)._with(propensities=np.array(chances))


def _column(values: Any, name: str, kinds: str) -> Array:
    array = as_array(values, name)
    if array.dtype.kind not in kinds:
        raise OpoError(f"{name} has dtype {array.dtype}: {'whole ' if kinds == 'iu' else ''}numbers are needed")
    return array
