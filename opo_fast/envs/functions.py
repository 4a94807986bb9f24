"""Environments from functions of named states and actions; only states that can be reached are kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import MANY, as_distribution, as_integer, as_items, as_number, shown
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.layout import Layout
from ..model.transitions import Transitions
from .environment import Environment, PerContext

__all__ = ["from_functions"]

Array = npt.NDArray[Any]
Step = Callable[..., Any]
DENSE = 1 << 22
"""Number of entries of a layer up to which its transitions are a dense array; larger ones are CSR."""


def from_functions(
    horizon: int,
    start: Any,
    actions: Sequence[Any],
    transitions: Step | Sequence[Step],
    loss: Step | Sequence[Step] | None = None,
    *,
    next_loss: Step | Sequence[Step] | None = None,
    terminal: Callable[[Any, Any], float] | None = None,
    allowed: Callable[[int, Any], Iterable[Any]] | None = None,
    contexts: Sequence[Any] = (0,),
    probabilities: npt.ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    true_loss: int = 0,
    true_dynamics: int = 0,
    name: str = "functions",
) -> Environment:
    """Make a contextual MDP from functions; stages count from 0, states are anything hashable.

    Parameters
    ----------
    horizon : int
        Number of steps H.
    start : hashable, or a mapping from states to probabilities
        Where episodes begin. For a mapping there is an extra first layer with one state and loss 0, which draws the state.
    actions : sequence
        All actions.
    transitions : callable ``(context, stage, state, action)``, or a sequence of them
        Returns the next state, or a mapping from next states to probabilities. Several are the candidates of the dynamics class.
    loss : callable ``(context, stage, state, action)``, or a sequence of them
        Returns the mean loss in [0, 1]; the observed loss is 0 or 1. Several are the candidates of the loss class.
    next_loss : callable ``(context, stage, state, action, next_state)``, or a sequence of them
        In place of `loss`: a loss in [0, 1] that depends on the next state. The observed loss is that of the next state drawn; the
        model has its mean, under the transitions with the same index or, if the numbers of candidates differ, the true ones.
    terminal : callable ``(context, state)``, optional
        Terminal value in [0, 1] of the state after the last step: an extra last layer, in which every action has this loss.
    allowed : callable ``(stage, state)``, optional
        Returns the actions that are allowed in a state. Default: all.
    contexts, probabilities, labels, true_loss, true_dynamics, name
        See `Environment`.

    Returns
    -------
    Environment
        Each layer has the states that can be reached in some context under some candidate; ``state_names`` and ``action_names``
        are the strings of the states and actions.

    Raises
    ------
    OpoError
        If a function returns an invalid value, which is named with context, stage, state and action.
    """
    if (loss is None) == (next_loss is None):
        raise OpoError("loss and next_loss: exactly one of them is needed")
    joint = next_loss is not None
    dynamics, losses = _several(transitions, "transitions"), _several(next_loss if joint else loss, "next_loss" if joint else "loss")
    true_loss = as_integer(true_loss, "true_loss", least=0, most=len(losses) - 1)
    true_dynamics = as_integer(true_dynamics, "true_dynamics", least=0, most=len(dynamics) - 1)
    contexts = as_items(contexts, "contexts", "contexts", some=True)
    for what, function in (("terminal", terminal), ("allowed", allowed)):
        if function is not None and not callable(function):
            raise OpoError(f"{what} is {shown(function)}: a callable, or None, is needed")
    tree = _Tree(
        as_integer(horizon, "horizon", least=1, most=MANY), start, as_items(actions, "actions", "actions", some=True), allowed, contexts
    )
    tree.grow(dynamics, terminal is not None or joint)
    tree.finish(terminal is not None)
    built = [[tree.transitions(i, context) for context in contexts] for i in range(len(dynamics))]
    tables = []
    for i, function in enumerate(losses):
        under = i if len(losses) == len(dynamics) else true_dynamics
        tables.append([tree.losses(function, joint, under, context, terminal) for context in contexts])
    return Environment(
        tree.layout,
        [PerContext(each, f"loss {i}", contexts) for i, each in enumerate(tables)],
        [PerContext(each, f"dynamics {i}", contexts) for i, each in enumerate(built)],
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=contexts,
        probabilities=probabilities,
        labels=[str(context) for context in contexts] if labels is None else labels,
        action_mask=tree.mask,
        steps=tree.steps,
        joint_losses=_Joint(tree, losses[true_loss], true_dynamics, terminal) if joint else None,
        state_names=[str(state) for layer in tree.layers[: tree.layout.horizon] for state in layer],
        action_names=[str(action) for action in tree.actions],
        start_layer=tree.drawn,
        name=name,
        source="functions",
    )


def _several(functions: Any, name: str) -> list[Step]:
    listed = [functions] if callable(functions) else as_items(functions, name, "callables", some=True)
    for i, function in enumerate(listed):
        if not callable(function):
            raise OpoError(f"{name}[{i}] is a {type(function).__name__}: a callable is needed")
    return listed


def is_hashable(value: Any) -> bool:
    """Whether a value can be a key; a tuple of lists cannot, although tuples have __hash__."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _Tree:
    """The states of each layer, and the transitions between them."""

    def __init__(self, steps: int, start: Any, actions: list[Any], allowed: Any, contexts: list[Any]) -> None:
        self.steps, self.actions, self.contexts, self._allowed = steps, actions, contexts, allowed
        self._numbers: dict[Any, int] = {}
        for i, action in enumerate(actions):
            if not is_hashable(action):
                raise OpoError(f"actions[{i}] is {shown(action)}: a hashable value, such as a name, is needed")
            if self._numbers.setdefault(action, i) != i:
                raise OpoError(f"actions[{i}] is {shown(action)}, like actions[{self._numbers[action]}]: actions must be distinct")
        self._places = {context_key(context): i for i, context in enumerate(contexts)}
        self.drawn = isinstance(start, Mapping)
        """Whether a first layer draws the start."""
        if not self.drawn and (start is None or not is_hashable(start)):
            raise OpoError(f"start is {shown(start)}: a hashable state, or a mapping from states to probabilities, is needed")
        self.start = {state: as_number(p, f"start[{state!r}]", most=1.0) for state, p in start.items()} if self.drawn else {start: 1.0}
        as_distribution(np.array(list(self.start.values())), len(self.start), "start", "state")
        self.layers: list[list[Hashable]] = []
        self.index: list[dict[Hashable, int]] = []
        self._rows: dict[tuple[int, Any, int, Hashable, int], dict[Hashable, float]] = {}

    def grow(self, dynamics: list[Step], last: bool) -> None:
        """Find the states that can be reached; with `last` also those after the last step."""
        first = list(self.start)
        self.layers = [["start"], first] if self.drawn else [first]
        for stage in range(self.steps):
            layer, following = self.layers[-1], dict[Hashable, None]()
            if stage == self.steps - 1 and not last:
                break
            for i, function in enumerate(dynamics):
                for c, context in enumerate(self.contexts):
                    for state in layer:
                        for a in self.allowed(stage, state):
                            row = self._row(function, context, stage, state, self.actions[a])
                            self._rows[i, c, stage, state, a] = row
                            following.update(dict.fromkeys(row))
            self.layers.append(list(following))
        self.index = [{state: i for i, state in enumerate(layer)} for layer in self.layers]

    def finish(self, terminal: bool) -> None:
        """Set the layout; with terminal values the states after the last step are its last layer."""
        horizon = self.steps + self.drawn + terminal
        self.layout = Layout([len(layer) for layer in self.layers[:horizon]], len(self.actions))
        mask = np.zeros(self.layout.shape, bool)
        for h, layer in enumerate(self.layers[:horizon]):
            stage = h - self.drawn
            for i, state in enumerate(layer):
                s = int(self.layout.offsets[h]) + i
                mask[s, list(range(len(self.actions))) if not 0 <= stage < self.steps else self.allowed(stage, state)] = True
        self.mask = None if mask.all() else mask

    def place(self, context: Any) -> int:
        """The index of a context."""
        return self._places[context_key(context)]

    def allowed(self, stage: int, state: Any) -> list[int]:
        """The indices of the allowed actions."""
        if self._allowed is None:
            return list(range(len(self.actions)))
        given = as_items(self._allowed(stage, state), f"allowed({stage}, {state!r})", "actions", some=True)
        for action in given:
            if not is_hashable(action) or action not in self._numbers:
                raise OpoError(f"allowed({stage}, {state!r}) has {shown(action)}: one of {self.actions} is needed")
        return sorted({self._numbers[action] for action in given})

    def _row(self, function: Step, context: Any, stage: int, state: Any, action: Any) -> dict[Hashable, float]:
        place = f"transitions({context!r}, {stage}, {state!r}, {action!r})"
        answer = function(context, stage, state, action)
        if not isinstance(answer, Mapping):
            if answer is None or not is_hashable(answer):
                raise OpoError(f"{place} is {shown(answer)}: a next state, or a mapping from next states to probabilities, is needed")
            return {answer: 1.0}
        row = {following: as_number(p, f"{place}[{following!r}]", most=1.0 + 1e-9) for following, p in answer.items()}
        total = sum(row.values())
        if not abs(total - 1) <= 1e-8:
            raise OpoError(f"{place}: the probabilities sum to {total!r}; 1 is needed")
        return {following: p for following, p in row.items() if p > 0}

    def row(self, dynamics: int, context: int, stage: int, state: Hashable, action: int) -> dict[Hashable, float]:
        """P(. | state, action) of a candidate."""
        return self._rows[dynamics, context, stage, state, action]

    def transitions(self, dynamics: int, context: Any) -> Transitions:
        """The transitions of a candidate at a context."""
        c, n_actions = self.place(context), len(self.actions)
        sizes = self.layout.layer_sizes
        dense = max((a * n_actions * b for a, b in pairwise(sizes)), default=0) <= DENSE
        arrays: list[Any] = []
        for h in range(self.layout.horizon - 1):
            stage, shape = h - self.drawn, (sizes[h] * n_actions, sizes[h + 1])
            array: Any = np.zeros(shape) if dense else sp.lil_array(shape)
            for i, state in enumerate(self.layers[h]):
                for a in range(n_actions) if stage < 0 else self.allowed(stage, state):
                    row = self.start if stage < 0 else self.row(dynamics, c, stage, state, a)
                    for following, p in row.items():
                        array[i * n_actions + a, self.index[h + 1][following]] = p
            arrays.append(array.reshape(sizes[h], n_actions, sizes[h + 1]) if dense else array.tocsr())
        return Transitions(self.layout, arrays, action_mask=self.mask)

    def losses(self, function: Step, joint: bool, dynamics: int, context: Any, terminal: Any) -> Array:
        """Mean losses (n_states, A) of a candidate at a context."""
        table, c = np.zeros(self.layout.shape), self.place(context)
        for h, layer in enumerate(self.layers[: self.layout.horizon]):
            stage = h - self.drawn
            for i, state in enumerate(layer):
                s = int(self.layout.offsets[h]) + i
                if stage >= self.steps:
                    table[s] = as_number(terminal(context, state), f"terminal({context!r}, {state!r})", most=1.0)
                for a in self.allowed(stage, state) if 0 <= stage < self.steps else ():
                    given = context, stage, state, self.actions[a]
                    table[s, a] = self._mean(function, given, self.row(dynamics, c, stage, state, a) if joint else None)
        return table

    def _mean(self, function: Step, given: tuple[Any, ...], row: dict[Hashable, float] | None) -> float:
        if row is None:
            return as_number(function(*given), f"loss{given!r}", most=1.0)
        return min(
            1.0,
            sum(p * as_number(function(*given, following), f"next_loss{(*given, following)!r}", most=1.0) for following, p in row.items()),
        )


class _Joint:
    """Observed losses of a trajectory if losses depend on the next states."""

    def __init__(self, tree: _Tree, function: Step, dynamics: int, terminal: Any) -> None:
        self.tree, self.function, self.dynamics, self.terminal = tree, function, dynamics, terminal

    def __call__(self, context: Any, states: Array, actions: Array, uniforms: Array) -> Array:
        tree, layout = self.tree, self.tree.layout
        c, losses = tree.place(context), np.zeros(layout.horizon)
        for h in range(layout.horizon):
            stage, state = h - tree.drawn, tree.layers[h][int(states[h] - layout.offsets[h])]
            if stage >= tree.steps:
                losses[h] = self.terminal(context, state)
            elif stage >= 0:
                following = self._following(h, c, stage, state, states, actions, float(uniforms[h]))
                losses[h] = self.function(context, stage, state, tree.actions[int(actions[h])], following)
        return losses

    def _following(self, h: int, c: int, stage: int, state: Any, states: Array, actions: Array, uniform: float) -> Any:
        """The next state; after the last layer of the layout it is drawn with the random number of the loss."""
        tree = self.tree
        if h + 1 < tree.layout.horizon:
            return tree.layers[h + 1][int(states[h + 1] - tree.layout.offsets[h + 1])]
        row = tree.row(self.dynamics, c, stage, state, int(actions[h]))
        at = int(np.searchsorted(np.cumsum(list(row.values())), uniform, side="right"))
        return list(row)[min(at, len(row) - 1)]
