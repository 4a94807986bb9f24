"""Numbers that several rooms compute alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["log_loss"]


def log_loss(probabilities: npt.NDArray[Any]) -> float:
    """Sum of -log P over what was observed; 0 where nothing was, infinite where a probability is 0."""
    with np.errstate(divide="ignore"):
        return abs(float(np.log(probabilities).sum()))
