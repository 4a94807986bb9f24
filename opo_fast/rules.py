"""What one step of a policy chain does: the agents of the paper's Table 1 differ in these and in nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .checks import real
from .layout import Layout

__all__ = ["ChainRule", "opo_rule"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ChainRule:
    """What a step of the chain does; the agents of Table 1 differ in these and in nothing else.

    Attributes
    ----------
    eta : float
        Learning rate of the exponential weights.
    half_loss : float
        beta_loss / 2 of the bonus min{1, half_loss / (1+N)}.
    half_dynamics : ndarray, shape (H,)
        The same for the dynamics, per layer.
    weight : float
        Weight of the dynamics' bonus; 2H in Algorithm 1.
    greedy : bool
        Policy step: play the least Q of this step (E-UC3RL, RM-UCDD) instead of exponential weights (OPO).
    visits : {"latest", "contemporaneous", "actions"}
        Visit rule: past policies under this step's dynamics (OPO), each under its own step's dynamics (E-UC3RL), or
        the number of past policies that choose the action (RM-UCDD).
    """

    eta: float
    half_loss: float
    half_dynamics: Array
    weight: float
    greedy: bool = False
    visits: str = "latest"


def opo_rule(layout: Layout, eta: float, beta_loss: float, beta_dynamics: float) -> ChainRule:
    """The rule of Algorithm 1."""
    half_dynamics = np.full(layout.horizon, real(beta_dynamics, "beta_dynamics") / 2)
    return ChainRule(real(eta, "eta"), real(beta_loss, "beta_loss") / 2, half_dynamics, 2.0 * layout.horizon)
