"""Features of a time-homogeneous model, repeated in every layer."""

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
    """Features (S, A, d) of the pairs of a time-homogeneous model as those of the layout that unrolls it.

    Parameters
    ----------
    features : callable
        ``features(context)`` gives an array of shape (S, A, ...).
    layout : Layout
        Of `LayeredMDP.stationary`: layers of S states after the first, which has one.
    start : int, optional
        The state that the first layer is. Default: none of them, as where the first layer draws the start; its features are 0.

    Returns
    -------
    callable
        From a context to an array of shape (n_states, A, ...), as `LinearLossClass` and the other classes of features take it.
    """
    instance(layout, "layout", Layout)
    if not callable(features):
        raise OpoError(f"features is {shown(features)}: a callable features(context) is needed")
    sizes = set(layout.layer_sizes[1:])
    if layout.layer_sizes[0] != 1 or len(sizes) > 1:
        raise OpoError(f"layout has layers of {layout.layer_sizes} states: one state, and then S in each, are needed")
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
