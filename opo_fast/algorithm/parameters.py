"""Parameters of the paper's main theorem, and scale factors for practical use."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._support.checks import as_integer, as_number, instance
from ..model.layout import Layout

__all__ = ["PRACTICAL", "Parameters", "log_size", "log_term", "normalized_betas", "parameters"]


class Practical(NamedTuple):
    """Scale factors on the theorem's parameters with which OPO learns in a practical number of episodes."""

    bonus_scale: float
    eta_scale: float


PRACTICAL = Practical(bonus_scale=2e-6, eta_scale=50.0)
"""The theory's betas saturate every bonus at any practical T, so that the policy stays uniform. With these factors OPO
solves a combination lock and ICU-Sepsis. Turn `bonus_scale` down where actions differ by less than about 0.05."""


class Parameters(NamedTuple):
    """Learning rate and exploration parameters of Algorithm 1."""

    eta: float
    beta_loss: float
    beta_dynamics: float


def log_term(horizon: int, episodes: int, delta: float, log_size: float) -> float:
    """L = log(128 T^4 H |F||P| / delta^2)."""
    return math.log(128.0) + 4 * math.log(episodes) + math.log(horizon) + log_size - 2 * math.log(delta)


def log_size(loss_class_size: float, dynamics_class_size: float) -> float:
    """log(|F||P|), computed without the product, which could overflow."""
    sizes = as_number(loss_class_size, "loss_class_size", least=1.0), as_number(dynamics_class_size, "dynamics_class_size", least=1.0)
    return sum(map(math.log, sizes))


def parameters(
    layout: Layout,
    episodes: int,
    *,
    loss_class_size: float,
    dynamics_class_size: float,
    delta: float = 0.05,
    bonus_scale: float = 1.0,
    eta_scale: float = 1.0,
) -> Parameters:
    """eta, beta_loss and beta_dynamics of the main theorem (appendix, restatement), times the two scale factors.

    Parameters
    ----------
    layout : Layout
        Gives H, |S| (states of all layers) and |A|.
    episodes : int
        T, at least 1.
    loss_class_size, dynamics_class_size : float
        |F| and |P|, at least 1; for a parametric class, the size of a cover.
    delta : float
        Failure probability in (0, 1).
    bonus_scale, eta_scale : float
        Factors on both betas and on eta.
    """
    instance(layout, "layout", Layout)
    episodes = as_integer(episodes, "episodes", least=1, most=10**100)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    h = layout.horizon
    logs = log_term(h, episodes, delta, log_size(loss_class_size, dynamics_class_size))
    spread = layout.n_states * layout.n_actions * math.log(episodes + 1)
    bonus_scale, eta_scale = as_number(bonus_scale, "bonus_scale"), as_number(eta_scale, "eta_scale")
    return Parameters(
        eta=eta_scale * math.sqrt(2 * math.log(layout.n_actions) / (h**2 * episodes)),
        beta_loss=bonus_scale * math.sqrt(5184 * episodes * h**7 * logs / (7 * spread)),
        beta_dynamics=bonus_scale * math.sqrt(5184 * episodes * h**6 * logs / (14 * spread)),
    )


def normalized_betas(layout: Layout, episodes: int, *, loss_class_size: float, dynamics_class_size: float) -> tuple[float, float]:
    """beta_loss and beta_dynamics without plausible sets: the paper's, without its constants and powers of H.

    beta_loss = 0.1 sqrt(T H log|F| / (|S||A| log(T+1))), beta_dynamics = 0.1 sqrt(T log|P| / (2 |S||A| log(T+1))), where sizes below e
    count as e. The factor 0.1 was chosen on generated and packaged environments; no bound is proved for it.
    """
    logs = [max(1.0, log_size(size, 1.0)) for size in (loss_class_size, dynamics_class_size)]
    share = episodes / (layout.n_states * layout.n_actions * math.log(episodes + 1))
    return 0.1 * math.sqrt(share * layout.horizon * logs[0]), 0.1 * math.sqrt(share * logs[1] / 2)
