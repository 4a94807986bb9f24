"""Numbers that several rooms compute alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["log_loss", "log_losses"]


def log_loss(probabilities: npt.NDArray[Any]) -> float:
    """Sum of -log P over what was observed; 0 where nothing was, infinite where a probability is 0."""
    with np.errstate(divide="ignore"):
        return abs(float(np.log(probabilities).sum()))


def log_losses(probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The `log_loss` of each line."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.abs(np.log(probabilities).sum(axis=1)))
