"""The bound of the paper's main theorem."""

from __future__ import annotations

from ..algorithm.parameters import PRACTICAL, Parameters, parameters
from ..model.layout import Layout
from .bounds import bounds

__all__ = ["PRACTICAL", "Parameters", "parameters", "regret_bound"]


def regret_bound(layout: Layout, episodes: int, *, loss_class_size: float, dynamics_class_size: float, delta: float = 0.05) -> float:
    """Bound on the regret that holds with probability 1 - delta: the last explicit line of the main theorem's proof.

    The constants are those of the proof, plus the Azuma term 2H sqrt(2 T log(8/delta)) of the theorem. It is vacuous if it exceeds H T,
    as it always does for practical T. `bounds` has all other statements.
    """
    return bounds(layout, episodes, loss_class_size=loss_class_size, dynamics_class_size=dynamics_class_size, delta=delta).regret
