"""Names of states and actions, and the known contexts, for readable policies and messages."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from .._support.cached import cached_property
from .._support.checks import as_bool, as_integer, as_items, labels_of, shown
from ..errors import OpoError
from .contextual import context_key
from .layout import Layout

__all__ = ["Names", "some_of", "suggestion", "unrolled", "unseen"]

LISTED = 8
"""Maximum number of contexts or states that a message lists."""


class Names:
    """Names of the states and actions of a layout, and the known contexts. Without names, numbers are shown.

    Parameters
    ----------
    states : sequence of str, optional
        One for each state of the layout, unique within each layer.
    actions : sequence of str, optional
        One for each action.
    contexts : sequence, optional
        All contexts. Any other context is then an error.
    labels : sequence of str, optional
        The meaning of each of `contexts`.
    start_layer : bool
        Whether the first layer only draws the start state, as the extra layer of ``LayeredMDP.stationary(..., start=distribution)``
        does: stage h of the layout, counted from 0, is then step h of the time-homogeneous model, counted from 1.
    """

    def __init__(
        self,
        states: Sequence[str] | None = None,
        actions: Sequence[str] | None = None,
        *,
        contexts: Sequence[Any] | None = None,
        labels: Sequence[str] | None = None,
        start_layer: bool = False,
    ) -> None:
        self.states = None if states is None else tuple(map(str, as_items(states, "state_names", "texts")))
        self.actions = None if actions is None else tuple(map(str, as_items(actions, "action_names", "texts")))
        self.contexts = None if contexts is None else tuple(as_items(contexts, "contexts", "contexts"))
        n = len(self.contexts or ())
        self.labels = tuple(map(str, self.contexts or ())) if labels is None else labels_of(labels, n, "labels", "contexts")
        self.start_layer = as_bool(start_layer, "start_layer")

    @classmethod
    def of(cls, source: Any) -> Names:
        """The names of an environment (``state_names``, ``action_names``, ``contexts``) or of an agent (``names``)."""
        known = source if isinstance(source, Names) else getattr(source, "names", None)
        if isinstance(known, Names):
            return known
        contexts, labels = getattr(source, "contexts", None), getattr(source, "labels", None)
        if not hasattr(source, "contexts") and hasattr(source, "mdps"):
            contexts = range(len(source.mdps))
        if not isinstance(contexts, (Sequence, np.ndarray)):
            contexts = labels = None
        return cls(
            getattr(source, "state_names", None),
            getattr(source, "action_names", None),
            contexts=None if contexts is None else list(contexts),
            labels=labels or None,
            start_layer=bool(getattr(source, "start_layer", False)),
        )

    def check(self, layout: Layout) -> None:
        """Raise unless there is one name for each state and action of a layout."""
        if self.states is not None:
            labels_of(self.states, layout.n_states, "state_names", "states")
        if self.actions is not None:
            labels_of(self.actions, layout.n_actions, "action_names", "actions")

    def state(self, layout: Layout, number: int) -> str:
        """The name of a state, or its position in its layer if states have no names."""
        return str(layout.local(number)[1]) if self.states is None else self.states[number]

    def action(self, number: int) -> str:
        """The name of an action, or its number if actions have no names."""
        return str(number) if self.actions is None else self.actions[number]

    def find(self, layout: Layout, stage: int, state: int | str) -> int:
        """The position in layer `stage` of a state, given by that position or by its name."""
        stage = as_integer(stage, "stage", least=0, most=layout.horizon - 1)
        if not isinstance(state, str):
            return as_integer(state, "state", least=0, most=layout.layer_sizes[stage] - 1)
        if self.states is None:
            raise OpoError(f"state is {shown(state)}, but the states have no names: give its position in layer {stage}")
        layer = self.states[layout.layer(stage)]
        found = [i for i, name in enumerate(layer) if name == state]
        if not found:
            listed = ", ".join(layer[:LISTED]) + (", ..." if len(layer) > LISTED else "")
            raise OpoError(f"state is {shown(state)}{suggestion(state, layer)}: the states of layer {stage} are {listed}")
        if len(found) > 1:
            raise OpoError(f"state is {shown(state)}: {len(found)} states of layer {stage} have this name; give the position in the layer")
        return found[0]

    @cached_property
    def _known(self) -> set[Hashable]:
        return {context_key(context) for context in self.contexts or ()}

    def check_context(self, context: Any) -> None:
        """Raise if the contexts are known and `context` is not one of them."""
        if self.contexts is None or context_key(context) in self._known:
            return
        if isinstance(context, str) and context in self.labels:
            meant = self.contexts[self.labels.index(context)]
            raise OpoError(f"context is {shown(context)}, which is the label of the context {shown(meant)}: pass the context itself")
        raise OpoError(f"context is {shown(context)}{suggestion(context, self.contexts)}: the contexts are {some_of(self.contexts)}")

    def find_action(self, layout: Layout, action: int | str) -> int:
        """The number of an action, given by that number or by its name."""
        if not isinstance(action, str):
            return as_integer(action, "action", least=0, most=layout.n_actions - 1)
        if self.actions is None or self.actions.count(action) != 1:
            if self.actions is None:
                raise OpoError(f"action is {shown(action)}: give its number, since the actions have no names")
            raise OpoError(f"action is {shown(action)}{suggestion(action, self.actions)}: the actions are {', '.join(self.actions)}")
        return self.actions.index(action)


def suggestion(wrong: Any, known: Iterable[Any]) -> str:
    """ " (did you mean ...?)" if one of the known values looks like the wrong one, else an empty text."""
    texts = {text: value for value in known for text in [str(value)]}
    close = difflib.get_close_matches(str(wrong), texts, n=1)
    return f" (did you mean {shown(texts[close[0]])}?)" if close else ""


def some_of(known: Sequence[Any]) -> str:
    """The first entries of a list, for a message."""
    return ", ".join(map(shown, known[:LISTED])) + (f", ... ({len(known):,} in all)" if len(known) > LISTED else "")


def unseen(context: Any, seen: Sequence[Any]) -> str:
    """The message about a context that was never observed."""
    return f"context {shown(context)} was never observed{suggestion(context, seen)}: the agent has seen {some_of(seen)}"


def unrolled(names: Sequence[str] | None, layout: Layout, start: Any) -> list[str] | None:
    """Names of the states of a layered model, from those of the time-homogeneous model that it unrolls.

    Parameters
    ----------
    names : sequence of str or None
    layout : Layout
        Of the model that `LayeredMDP.stationary` returns.
    start : int or array
        Its argument of that name. For a distribution, the state of the extra first layer is called "start".
    """
    if names is None:
        return None
    first = names[start] if isinstance(start, int) else "start"
    return [first, *list(names) * (layout.horizon - 1)]
