"""What states and actions are called, for people who read a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._support.checks import as_integer, as_items, labels_of, shown
from ..errors import OpoError
from .layout import Layout

__all__ = ["Names", "unrolled"]


class Names:
    """Names of the states of a layout and of its actions; numbers stand where there are none.

    Parameters
    ----------
    states : sequence of str, optional
        One for each state of the layout; in one layer they differ.
    actions : sequence of str, optional
        One for each action.
    """

    def __init__(self, states: Sequence[str] | None = None, actions: Sequence[str] | None = None) -> None:
        self.states = None if states is None else tuple(map(str, as_items(states, "state_names", "texts")))
        self.actions = None if actions is None else tuple(map(str, as_items(actions, "action_names", "texts")))

    @classmethod
    def of(cls, source: Any) -> Names:
        """The names that an environment (``state_names``, ``action_names``) or an agent (``names``) has."""
        known = source if isinstance(source, Names) else getattr(source, "names", None)
        if isinstance(known, Names):
            return known
        return cls(getattr(source, "state_names", None), getattr(source, "action_names", None))

    def check(self, layout: Layout) -> None:
        """Raise unless there is one name for each state and action of a layout."""
        if self.states is not None:
            labels_of(self.states, layout.n_states, "state_names", "states")
        if self.actions is not None:
            labels_of(self.actions, layout.n_actions, "action_names", "actions")

    def state(self, layout: Layout, number: int) -> str:
        """What a state is called; its number inside its layer where it has no name."""
        return str(layout.local(number)[1]) if self.states is None else self.states[number]

    def action(self, number: int) -> str:
        """What an action is called."""
        return str(number) if self.actions is None else self.actions[number]

    def find(self, layout: Layout, stage: int, state: int | str) -> int:
        """The number inside layer `stage` of a state that is given by that number or by its name."""
        stage = as_integer(stage, "stage", least=0, most=layout.horizon - 1)
        if not isinstance(state, str):
            return as_integer(state, "state", least=0, most=layout.layer_sizes[stage] - 1)
        if self.states is None:
            raise OpoError(f"state is {shown(state)}, and states have no names: its number inside layer {stage} is needed")
        layer = self.states[layout.layer(stage)]
        found = [i for i, name in enumerate(layer) if name == state]
        if len(found) != 1:
            listed = ", ".join(layer[:8]) + (", ..." if len(layer) > 8 else "")
            raise OpoError(f"state is {shown(state)}: {len(found)} states of layer {stage} have that name; one of {listed} is needed")
        return found[0]

    def find_action(self, layout: Layout, action: int | str) -> int:
        """The number of an action that is given by that number or by its name."""
        if not isinstance(action, str):
            return as_integer(action, "action", least=0, most=layout.n_actions - 1)
        if self.actions is None or self.actions.count(action) != 1:
            listed = f"one of {', '.join(self.actions)}" if self.actions is not None else "its number, as actions have no names,"
            raise OpoError(f"action is {shown(action)}: {listed} is needed")
        return self.actions.index(action)


def unrolled(names: Sequence[str] | None, layout: Layout, start: Any) -> list[str] | None:
    """Names of the states of a layered model from those of the time-homogeneous one that it unrolls.

    Parameters
    ----------
    names : sequence of str or None
    layout : Layout
        Of `LayeredMDP.stationary`.
    start : int or array
        As that takes it; a distribution stands for a layer "start".
    """
    if names is None:
        return None
    first = names[start] if isinstance(start, int) else "start"
    return [first, *list(names) * (layout.horizon - 1)]
