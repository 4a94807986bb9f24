"""OPO-CMDP (paper, Algorithm 1)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..algorithm.parameters import parameters
from ..algorithm.rules import opo_rule
from ..model.layout import Layout
from ..model.operations import Backend
from .base import check_layout, sizes_of
from .chain_agent import MEMORY, ChainAgent

__all__ = ["OPO"]


class OPO(ChainAgent):
    """Optimistic policy optimization for contextual MDPs with offline regression oracles (paper, Algorithm 1).

    Episode t plays pi^t, built at the context from the fits 1..t-1, and then fits anew on all trajectories.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        Function classes (`FiniteLossClass`, `FiniteDynamicsClass`, ...) or oracles.
    episodes : int, optional
        T of the theory's parameters; needed unless eta, beta_loss and beta_dynamics are all given.
    delta : float
        Failure probability of the theory's parameters.
    bonus_scale, eta_scale : float
        Factors on the theory's betas and eta. With 1 (the theory) every bonus stays at its cap at practical T, and the
        policy uniform; `opo_fast.analysis.PRACTICAL` holds a setting that learns.
    eta, beta_loss, beta_dynamics : float, optional
        Given by hand instead; the scales then do not apply to them.
    action_mask, backend, memory
        See `ChainAgent`.

    Attributes
    ----------
    eta, beta_loss, beta_dynamics : float
        As used.

    Raises
    ------
    OpoError
        On parameters out of range; in `policy` and `observe` on models and trajectories that are not valid.
    """

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        episodes: int | None = None,
        delta: float = 0.05,
        bonus_scale: float = 1.0,
        eta_scale: float = 1.0,
        eta: float | None = None,
        beta_loss: float | None = None,
        beta_dynamics: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        check_layout(layout)
        sizes = sizes_of(loss_class, dynamics_class)
        self.eta, self.beta_loss, self.beta_dynamics = self._parameters(
            episodes,
            {"eta": eta, "beta_loss": beta_loss, "beta_dynamics": beta_dynamics},
            lambda t: parameters(layout, t, **sizes, delta=delta, bonus_scale=bonus_scale, eta_scale=eta_scale),
        )
        rule = opo_rule(layout, self.eta, self.beta_loss, self.beta_dynamics)
        super().__init__(layout, loss_class, dynamics_class, rule, action_mask=action_mask, backend=backend, memory=memory)
