"""The state of AdaHedge in a chain."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.fields import Fields
from ..kernels._simd import LANES
from ..model.layout import aligned_parts
from .self_tuning import START_GAP

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["HedgeSums"]

Array = npt.NDArray[Any]


class HedgeSums:
    """Sums of mixability gaps and of weights, and the logarithms of the numbers of actions, for each state and lane.

    Arrays are eight numbers longer than that, so that a vector can be read at the last state.

    Attributes
    ----------
    gap : ndarray
        Delta of each state; the regret of the policies in it is at most twice that.
    total : ndarray
        Sum over the actions a of exp(-(log|A| / Delta) r(a)), where r(a) is the sum of Q(a) minus the least such sum.
    log_actions : ndarray, shape (n_states + 8,)
        log|A|; log 2 if there is one action, so that no learning rate is 0 / 0.
    """

    def __init__(self, engine: ChainEngine, lanes: int) -> None:
        self.size, self.log_actions, self._actions = _of_layout(engine.rows.tobytes(), lanes)
        self.gap, self.total, self.excess = aligned_parts([self.size + LANES] * 3)
        self.restart()

    def restart(self) -> None:
        """Go back to before the first step."""
        self.gap[: self.size] = START_GAP
        self.total[: self.size] = self._actions

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.gap.nbytes + self.total.nbytes + self.excess.nbytes

    def state(self) -> dict[str, Array]:
        """What `restore` needs."""
        return {"gap": self.gap[: self.size].copy(), "total": self.total[: self.size].copy()}

    def restore(self, fields: Fields) -> None:
        """Restore what `state` returned."""
        gap = fields.numbers("gap", (self.size,), least=START_GAP)
        # The best action of each state has weight 1.
        total = fields.numbers("total", (self.size,), least=1.0)
        fields.check("total", bool((total <= self._actions * (1 + 1e-9)).all()), "holds weights above the number of actions")
        self.gap[: self.size], self.total[: self.size] = gap, total


@functools.lru_cache(maxsize=64)
def _of_layout(rows: bytes, lanes: int) -> tuple[int, Array, Array]:
    """What all chains of a layout share: numbers per vector, logarithms and numbers of actions."""
    counts = np.diff(np.frombuffer(rows, np.int64))
    log_actions = np.zeros(counts.size + LANES)
    log_actions[: counts.size] = np.log(np.maximum(counts, 2))
    return counts.size * lanes, log_actions, np.repeat(counts, lanes).astype(np.float64)
