"""Features of a time-homogeneous model, repeated for every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_real, instance, shown
from ..errors import OpoError
from ..model.layout import Layout

__all__ = ["stationary_features"]

Array = npt.NDArray[Any]


def stationary_features(features: Callable[[Any], Any], layout: Layout, start: int | None = None) -> Callable[[Any], Array]:
    """Turn features (S, A, d) of a time-homogeneous model into features of its unrolled layout.

    Parameters
    ----------
    features : callable
        ``features(context)`` returns an array of shape (S, A, ...).
    layout : Layout
        That of `LayeredMDP.stationary`: one state in the first layer, S states in each of the others.
    start : int, optional
        The state of the first layer. Default: none, because the first layer draws the start; its features are then 0.

    Returns
    -------
    callable
        Maps a context to an array of shape (n_states, A, ...), as `LinearLossClass` and the other classes with features take it.
    """
    instance(layout, "layout", Layout)
    if not callable(features):
        raise OpoError(f"features is {shown(features)}: a callable features(context) is needed")
    sizes = set(layout.layer_sizes[1:])
    if layout.layer_sizes[0] != 1 or len(sizes) > 1:
        raise OpoError(f"layout has layers of {layout.layer_sizes} states: one state in the first and S in each other layer is needed")
    n = sizes.pop() if sizes else None
    if start is not None:
        start = as_integer(start, "start", least=0, most=None if n is None else n - 1)

    def unrolled(context: Any) -> Array:
        array = as_real(features(context), f"features at context {context!r}")
        if array.ndim < 2 or array.shape[1] != layout.n_actions or n not in (None, array.shape[0]):
            raise OpoError(f"features at context {context!r} have shape {array.shape}: ({n or 'S'}, {layout.n_actions}, ...) is needed")
        first = np.zeros((1, *array.shape[1:])) if start is None else array[start : start + 1]
        return np.concatenate([first] + [array] * (layout.horizon - 1))

    return unrolled
