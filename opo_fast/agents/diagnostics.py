"""Diagnostics of whether an optimistic agent's bonuses are too large, too small, or no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algorithm.chain import Chain
from ..model.reference import bonus, expected_next, occupancy

if TYPE_CHECKING:
    from .chain_agent import ChainAgent

__all__ = ["Diagnostics", "diagnose"]

Array = npt.NDArray[Any]
NAN = float("nan")


class Diagnostics(NamedTuple):
    """Diagnostics of the last step of a chain at one context; NaN if they do not apply.

    Attributes
    ----------
    truncated : float
        Share of the pairs whose estimate of Q is below 0 before max{0, .}: their bonuses hide the differences between actions.
        0 with plausible sets, whose bound is never below 0.
    truncated_played : float
        The same, weighted by the visits of the next episode's policy under the fit.
    vacuous_bonuses : float
        Share of the pairs whose bonus is at least the greatest loss-to-go, H - h + 1 in layer h.
    plausible_losses, plausible_dynamics : float
        Numbers of plausible candidates.
    hedge_bound : float
        Sum over the layers of the greatest 2 Delta of a state, which bounds term (iii) of the regret at this context.
    """

    truncated: float = NAN
    truncated_played: float = NAN
    vacuous_bonuses: float = NAN
    plausible_losses: float = NAN
    plausible_dynamics: float = NAN
    hedge_bound: float = NAN


def diagnose(agent: ChainAgent, chain: Chain, lane: int, context: Any, *, full: bool) -> Diagnostics:
    """The diagnostics of a chain that has taken at least one step; without `full` only those that cost almost nothing."""
    fits = agent.history[chain.steps - 1]
    found: dict[str, float] = {}
    if chain.hedge is not None:
        gaps = chain.hedge.gap[lane : chain.hedge.size : chain.lanes]
        found["hedge_bound"] = 2 * float(np.maximum.reduceat(gaps, agent.layout.offsets[:-1]).sum())
    if fits.loss_version is not None:
        found.update(
            truncated=0.0,
            truncated_played=0.0,
            plausible_losses=float(agent.loss_oracle.plausible_count(fits.loss_version)),
            plausible_dynamics=float(agent.dynamics_oracle.plausible_count(fits.dynamics_version)),
        )
        if chain.last is None:
            found["vacuous_bonuses"] = 1.0
    if full and chain.last is not None:
        found.update(_of_bonuses(agent, chain, lane, context))
    return Diagnostics(**found)


def _of_bonuses(agent: ChainAgent, chain: Chain, lane: int, context: Any) -> dict[str, float]:
    assert chain.last is not None
    model = agent.model(agent.history[chain.steps - 1][:2], context)
    layout, t = model.layout, model.transitions
    betas = agent.rule.bonus(chain.steps - 1)
    visits, v = t.scatter(chain.last[lane :: chain.lanes].copy()), chain.v[lane :: chain.lanes]
    allowed = np.ones(layout.shape, bool) if model.action_mask is None else model.action_mask
    stage = np.repeat(np.arange(layout.horizon), layout.layer_sizes)[:, None]
    b = bonus(visits, betas.beta_loss) + agent.rule.weight * bonus(visits, betas.beta_dynamics[stage])
    q, vacuous = model.losses - b, b >= layout.horizon - stage
    for h, array in enumerate(t.arrays()):
        layer = layout.layer(h)
        q[layer] += expected_next(array, v[layout.layer(h + 1)], q[layer].shape)
    share = float(vacuous[allowed].mean())
    if agent.history[chain.steps - 1].loss_version is not None:
        return {"vacuous_bonuses": share}
    below = (q < 0) & allowed
    played = float((occupancy(model, agent.policy(context)) * below).sum() / layout.horizon)
    return {"truncated": float(below[allowed].mean()), "truncated_played": played, "vacuous_bonuses": share}
