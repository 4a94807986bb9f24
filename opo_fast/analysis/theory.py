"""The bound of the paper's main theorem."""

from __future__ import annotations

import math

from ..algorithm.parameters import PRACTICAL, Parameters, log_size, log_term, parameters
from ..model.layout import Layout

__all__ = ["PRACTICAL", "Parameters", "parameters", "regret_bound"]


def regret_bound(layout: Layout, episodes: int, *, loss_class_size: float, dynamics_class_size: float, delta: float = 0.05) -> float:
    """Bound on the regret that holds with probability 1 - delta: the last explicit line of the main theorem's proof.

    The constants are those of the proof, plus the Azuma term 2H sqrt(2 T log(8/delta)) of the theorem. Where it exceeds
    H T, which every policy obeys, it says nothing; at practical T it always does.
    """
    p = parameters(layout, episodes, loss_class_size=loss_class_size, dynamics_class_size=dynamics_class_size, delta=delta)
    h, t = layout.horizon, episodes
    spread = layout.n_states * layout.n_actions * math.log(t + 1)
    top = 5184 * t * h**7 * log_term(h, t, delta, log_size(loss_class_size, dynamics_class_size))
    expected = (
        top / p.beta_loss
        + 7 * p.beta_loss * spread
        + top / p.beta_dynamics
        + 14 * h * p.beta_dynamics * spread
        + top / min(p.beta_loss, p.beta_dynamics)
        + math.sqrt(2 * h**4 * t * math.log(layout.n_actions))
        + 2 * (h + 1) ** 2
    )
    return expected + 2 * h * math.sqrt(2 * t * math.log(8 / delta))
