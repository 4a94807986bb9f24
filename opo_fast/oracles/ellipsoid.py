"""Confidence ellipsoids of linear losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._support.checks import as_number

__all__ = ["GROWTH", "as_norm", "ball_of", "below", "inverse_of", "regular_ridge"]

Array = npt.NDArray[Any]

GROWTH = math.log(1.1)
"""How much the log determinant of a plausible set's matrix grows before the matrix is stored again."""
_NOISE = 0.5
"""A loss in [0, 1] is 1/2-sub-Gaussian around its mean (Hoeffding's lemma)."""


def as_norm(norm: float | None, dimension: int) -> float:
    """A bound on |theta|."""
    return math.sqrt(dimension) if norm is None else as_number(norm, "norm", strict=True)


def regular_ridge(function_class: Any) -> float:
    """lambda of the plausible sets: noise^2 / norm^2, or the class's own ridge if that is larger."""
    return float(max(function_class.ridge, (_NOISE / function_class.norm) ** 2))


def ball_of(factor: Array, function_class: Any, delta: float) -> tuple[Array, float]:
    """Centre and radius of the ellipsoid, shape (dimension + 1,), and log det V, from the flat regular factor."""
    d, ridge = function_class.dimension, regular_ridge(function_class)
    square = factor.reshape(d + 1, d + 1)
    log_det = 2.0 * float(np.log(square.diagonal()[:-1]).sum())
    noise = _NOISE * math.sqrt(max(log_det - d * math.log(ridge), 0.0) - 2.0 * math.log(delta))
    centre = np.asarray(scipy.linalg.lapack.dtrtrs(square[:-1, :-1], square[:-1, -1])[0])
    return np.append(centre, noise + math.sqrt(ridge) * function_class.norm), log_det


def inverse_of(factor: Array, dimension: int) -> Array:
    """R^-1, so that |phi' R^-1| is the norm of phi in V^-1, V = R'R."""
    return np.ascontiguousarray(scipy.linalg.lapack.dtrtri(factor.reshape(dimension + 1, dimension + 1)[:-1, :-1])[0])


def below(rows: Array, balls: Array, along: Array) -> Array:
    """The least <row, theta> in each ball (centre, radius), clipped to [0, 1]; `along` holds row' R^-1."""
    centres, radii = balls[..., :-1], balls[..., -1]
    products = np.einsum("nd,nd->n", rows, np.broadcast_to(centres, rows.shape))
    return np.asarray(np.clip(products - radii * np.sqrt(np.einsum("ne,ne->n", along, along)), 0.0, 1.0))
