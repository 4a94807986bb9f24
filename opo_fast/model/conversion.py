"""Conversion of arguments to `Transitions`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError, Place
from .layout import Layout, as_mask
from .transitions import Transitions

__all__ = ["as_transitions"]

Array = npt.NDArray[Any]


def as_transitions(
    layout: Layout,
    transitions: Any,
    action_mask: Array | None = None,
    *,
    dtype: npt.DTypeLike = np.float64,
    where: str | Place = "transitions",
    own_mask: bool = False,
) -> Transitions:
    """`transitions` as `Transitions` of this layout; if they are `Transitions` already, they are returned unchanged.

    With `own_mask` their mask must equal `action_mask` even if that is None, since an agent's policies have one number for each
    allowed state-action pair.
    """
    # A LayeredMDP may be given for its transitions.
    transitions = getattr(transitions, "transitions", transitions)
    if not isinstance(transitions, Transitions):
        return Transitions(layout, transitions, action_mask=action_mask, dtype=dtype, where=where)
    if transitions.changing:
        raise OpoError(f"{where} belong to an UpdatableMDP, which can change them: pass a LayeredMDP or Transitions")
    if transitions.layout != layout:
        raise OpoError(f"{where} belong to {transitions.layout!r}: {layout!r} is needed")
    if action_mask is not None or own_mask:
        mask = None if action_mask is None else as_mask(layout, action_mask)
        mine = transitions.action_mask
        if not (mask is mine or (mask is not None and mine is not None and np.array_equal(mask, mine))):
            hint = "; give the agent the action_mask of the environment" if mask is None else ""
            raise OpoError(f"action_mask differs from the mask with which the {where} were built{hint}")
    return transitions
