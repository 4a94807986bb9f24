"""Log losses, which oracles, agents and runs compute in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["log_loss", "log_losses"]


def log_loss(probabilities: npt.NDArray[Any]) -> float:
    """Sum of -log P over the entries (n,); 0 if there are none, infinite if a probability is 0."""
    return float(log_losses(probabilities))


def log_losses(probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`log_loss` along the last axis."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.abs(np.log(probabilities).sum(axis=-1)))
