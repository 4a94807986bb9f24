"""E-UC3RL (Levy, Cassel, Cohen and Mansour, ICML 2024)."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from .._support.checks import as_delta, as_integer, as_number
from ..algorithm.rules import euc3rl_rule
from ..model.layout import Layout
from ..model.operations import Backend
from .base import check_layout, sizes_of
from .chain_agent import MEMORY, ChainAgent

__all__ = ["EUC3RL", "euc3rl_parameters"]


class EUC3RL(ChainAgent):
    """Eluder-based counterfactual optimism: OPO's bonus with other visits, and a greedy policy step.

    In episode t, at its context, for k = 1..t: the bonus comes from the occupancies of the policies i < k, each
    under its own fit P^i (*contemporaneous* dynamics), and pi^k is the optimum of (f^k - bonus, P^k). pi^t is played. Unlike
    in OPO-CMDP, the newest fit enters this episode's policy.

    Taken from the sources: the oracles (least squares, log loss), the form of the bonus, the sum in the visits, and the
    optimization problem of each step. The algorithm box was not available, so the following is our reading: the weight 2H of
    the dynamics' bonus; V (but not Q) is raised to 0 where it is negative, which keeps optimism (if Q were raised, all
    unexplored actions would tie, and the one with the lowest index would be played); ties go to the lowest action; and the
    constants below, which `bonus_scale` multiplies.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        Function classes or oracles, as for `OPO`.
    episodes : int, optional
        T of the parameters; needed unless beta_loss and beta_dynamics are given.
    delta : float
        Failure probability.
    eluder : float, optional
        Eluder dimension of the dynamics class with respect to the squared Hellinger distance. Default: the smaller of
        |P| and |S||A|, which are upper bounds.
    bonus_scale : float
        Factor on both betas.
    beta_loss, beta_dynamics : float, optional
        Values by hand, to which the scale does not apply.
    action_mask, backend, memory
        See `ChainAgent`.
    """

    name = "E-UC3RL"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        episodes: int | None = None,
        delta: float = 0.05,
        eluder: float | None = None,
        bonus_scale: float = 1.0,
        beta_loss: float | None = None,
        beta_dynamics: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        check_layout(layout)
        sizes = sizes_of(loss_class, dynamics_class)
        self.beta_loss, self.beta_dynamics = self._parameters(
            episodes,
            {"beta_loss": beta_loss, "beta_dynamics": beta_dynamics},
            lambda t: euc3rl_parameters(layout, t, **sizes, delta=delta, eluder=eluder, bonus_scale=bonus_scale),
        )
        rule = euc3rl_rule(layout, self.beta_loss, self.beta_dynamics)
        super().__init__(layout, loss_class, dynamics_class, rule, action_mask=action_mask, backend=backend, memory=memory)


def euc3rl_parameters(
    layout: Layout,
    episodes: int,
    *,
    loss_class_size: float,
    dynamics_class_size: float,
    delta: float = 0.05,
    eluder: float | None = None,
    bonus_scale: float = 1.0,
) -> tuple[float, float]:
    """beta_loss and beta_dynamics of E-UC3RL.

    These constants are derived here, not taken from the paper: beta_loss balances the two terms of the regret, T X / beta and
    beta |S||A| log(T+1), with X = H^6 d L, d the Eluder dimension and L = log(128 T^4 H |F||P| / delta^2) as in OPO-CMDP;
    beta_dynamics = beta_loss / sqrt(2H), the same ratio as in OPO-CMDP. They give the paper's rate,
    H^3 sqrt(T |S||A| d L).
    """
    check_layout(layout)
    episodes = as_integer(episodes, "episodes", least=1, most=10**100)
    delta = as_delta(delta)
    n_losses = as_number(loss_class_size, "loss_class_size", least=1.0)
    n_dynamics = as_number(dynamics_class_size, "dynamics_class_size", least=1.0)
    pairs = layout.n_states * layout.n_actions
    eluder = min(n_dynamics, float(pairs)) if eluder is None else as_number(eluder, "eluder")
    h = layout.horizon
    log_term = math.log(128.0) + 4 * math.log(episodes) + math.log(h) + math.log(n_losses) + math.log(n_dynamics) - 2 * math.log(delta)
    beta = as_number(bonus_scale, "bonus_scale") * math.sqrt(episodes * h**6 * eluder * log_term / (pairs * math.log(episodes + 1)))
    return beta, beta / math.sqrt(2 * h)
