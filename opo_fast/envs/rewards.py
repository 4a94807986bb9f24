"""Rewards as losses: the affine map from a reward range onto [0, 1], which is kept so that results can be shown in rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_array, as_integer, as_number, as_real, pair_of
from ..errors import OpoError
from ..model.layout import as_mask_2d

__all__ = ["RescaledRewards", "RewardMap", "rewards_to_losses"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RewardMap:
    """The affine map loss = (high - reward) / (high - low), in both directions.

    Attributes
    ----------
    low, high : float
        Rewards with loss 1 and loss 0. If they are equal, every reward has loss 0.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        as_number(self.low, "low", least=-np.inf)
        as_number(self.high, "high", least=-np.inf)
        if self.low > self.high:
            raise OpoError(f"low is {self.low!r} and high is {self.high!r}: low must not be above high")
        if not np.isfinite(self.high - self.low):
            raise OpoError(f"low is {self.low!r} and high is {self.high!r}: their difference overflows; scale the rewards down")

    @property
    def scale(self) -> float:
        """Reward per unit of loss: high - low."""
        return self.high - self.low

    def losses(self, rewards: npt.ArrayLike) -> Array:
        """The losses of rewards, in the same shape; rewards outside [low, high] are refused."""
        r = np.asarray(as_real(rewards, "rewards"), np.float64)
        bad = np.argwhere(~((r >= self.low) & (r <= self.high)))
        if bad.size:
            place = [int(i) for i in bad[0]]
            value = float(r[tuple(place)])
            raise OpoError(f"rewards{place or ''} is {value!r}: a number from {self.low} to {self.high} is needed")
        return np.asarray((self.high - r) / (self.scale or 1.0))

    def rewards(self, losses: npt.ArrayLike) -> Array:
        """The rewards of losses, in the same shape."""
        return np.asarray(self.high - self.scale * as_real(losses, "losses").astype(np.float64))

    def value(self, loss_value: npt.ArrayLike, steps: int) -> Array:
        """The sum of rewards over `steps` steps with the sum of losses `loss_value`: steps * high - scale * loss_value.

        An extra first layer of loss 0 (for a start distribution) does not count as a step.
        """
        return np.asarray(
            as_integer(steps, "steps", least=0) * self.high - self.scale * as_real(loss_value, "loss_value").astype(np.float64)
        )

    def loss_value(self, reward_value: npt.ArrayLike, steps: int) -> Array:
        """The inverse of `value`."""
        return np.asarray(
            (as_integer(steps, "steps", least=0) * self.high - as_real(reward_value, "reward_value").astype(np.float64))
            / (self.scale or 1.0)
        )

    @property
    def absorbing(self) -> float:
        """The loss of a step in an absorbing state, whose reward is 0.

        With any other loss there (such as 0) the optimum for a fixed horizon would silently change.
        """
        if not self.low <= 0.0 <= self.high:
            raise OpoError(f"reward_range is ({self.low}, {self.high}): absorbing states have reward 0, which it must contain")
        return float((self.high - 0.0) / (self.scale or 1.0))


class RescaledRewards(NamedTuple):
    """Losses in the shape of the rewards, and the map that made them."""

    losses: Array
    map: RewardMap


def rewards_to_losses(
    rewards: npt.ArrayLike,
    reward_range: tuple[float, float] | None = None,
    action_mask: npt.ArrayLike | None = None,
) -> RescaledRewards:
    """Losses in [0, 1] for rewards of any range: loss = (high - reward) / (high - low).

    Over a fixed number H of steps, V_loss = (H * high - V_reward) / (high - low), so both have the same optimum. That
    holds only if absorbing states are rescaled too: include their reward of 0 in `rewards`, or use
    ``map.absorbing`` as their loss.

    Parameters
    ----------
    rewards : array_like, any shape
        Expected rewards, for instance (S, A) with the absorbing states among the S. Rewards of (s, a, s') must be
        averaged over s' first (`opo_fast.envs.expected_rewards`).
    reward_range : (low, high), optional
        Smallest and largest reward. Default: those of `rewards`. Models that are compared need the same range.
    action_mask : array_like of bool, the shape of `rewards`, optional
        Rewards where it is false are ignored (they may be -inf); their loss is 1.

    Returns
    -------
    RescaledRewards
        Named tuple ``(losses, map)``; ``map.value(v, steps)`` converts a value back to a sum of rewards.

    Raises
    ------
    OpoError
        At a reward that is not finite or outside `reward_range`, which is named with its position.
    """
    r = np.array(as_real(rewards, "rewards"), np.float64)
    if action_mask is not None:
        mask = as_array(action_mask, "action_mask")
        mask = as_mask_2d(mask, (r.shape[0], r.shape[1]), "action_mask") if r.ndim == 2 else mask.astype(bool)
    else:
        mask = np.ones(r.shape, bool)
    if mask.shape != r.shape:
        raise OpoError(f"action_mask has shape {mask.shape}: the shape of rewards, {r.shape}, is needed")
    bad = np.argwhere(~np.isfinite(r) & mask)
    if bad.size:
        place = tuple(int(i) for i in bad[0])
        where = f"state {place[0]}, action {place[1]}" if len(place) == 2 else f"position {list(place)}"
        value = float(r[place])
        raise OpoError(f"rewards: {where} has {value!r}; a finite number is needed (mask actions that are not available)")
    if not mask.any():
        raise OpoError("rewards is empty: at least one reward is needed")
    if reward_range is None:
        scale = RewardMap(float(r[mask].min()), float(r[mask].max()))
    else:
        scale = RewardMap(*pair_of(reward_range, "reward_range", "(low, high)"))
    losses = scale.losses(np.where(mask, r, scale.low))
    return RescaledRewards(losses, scale)
