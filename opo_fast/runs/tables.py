"""Arrays with one line per context: the candidates of two finite classes, the true model, and the values of two policies.

Runs of several seeds, each at its own context, look up what they need for an episode with a single indexing operation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels.models import TABLE
from ..model.layered import LayeredMDP
from ..model.layout import Layout, uniform_policy
from ..model.operations import evaluate, solve
from ..model.transitions import DENSE, Transitions

__all__ = ["ContextTables"]

Array = npt.NDArray[Any]

ROOM = 1 << 26
"""Bytes that the tables may take."""
FIRST = 64
"""Contexts that the tables have room for at first."""


class ContextTables:
    """Tables with a line for each context.

    Parameters
    ----------
    cmdp : ContextualMDP
    loss_oracle, dynamics_oracle
        Finite oracles that evaluate the candidates at a context.
    least : int
        Number of contexts that must fit at once.

    Attributes
    ----------
    losses : ndarray, shape (k, n_rows, n)
        Losses of the candidates at each state-action pair.
    dynamics : ndarray, shape (k, n_transitions, n)
        Transition probabilities of the candidates: layer by layer, state-action pair by next state.
    best, uniform : ndarray, shape (k,)
        The values of the optimum and of the uniform policy.
    models : ndarray of int64, shape (k, TABLE)
        Where the true models are in memory (see `kernels.models`).
    """

    def __init__(self, cmdp: Any, loss_oracle: Any, dynamics_oracle: Any, least: int) -> None:
        self.cmdp, self.layout = cmdp, loss_oracle.layout
        self.loss_oracle, self.dynamics_oracle = loss_oracle, dynamics_oracle
        layout: Layout = self.layout
        self.n_rows = layout.n_states * layout.n_actions
        self.size = int(layout.dense_block[-1])
        self._shapes = (self.n_rows, loss_oracle.scores.size), (self.size, dynamics_oracle.scores.size)
        line = 8 * (self._shapes[0][0] * self._shapes[0][1] + self._shapes[1][0] * self._shapes[1][1] + TABLE + 2)
        self.most = ROOM // line
        self.fits_in = self.most >= least
        self.lines: dict[Hashable, int] = {}
        self.mdps: list[LayeredMDP | None] = []
        self._unused: list[int] = []
        self._allocate(min(FIRST, self.most))

    def _allocate(self, k: int) -> None:
        old = getattr(self, "best", np.empty(0)).size
        shapes = {
            "losses": (k, *self._shapes[0]),
            "dynamics": (k, *self._shapes[1]),
            "best": (k,),
            "uniform": (k,),
            "models": (k, TABLE),
        }
        for name, shape in shapes.items():
            grown = np.empty(shape, np.int64 if name == "models" else np.float64)
            if old:
                grown[:old] = getattr(self, name)
            setattr(self, name, grown)
        self.mdps += [None] * (k - old)
        self._unused += range(old, k)

    losses: Array
    dynamics: Array
    best: Array
    uniform: Array
    models: Array

    def find(self, contexts: Sequence[Any], keys: Sequence[Hashable], needed: set[Hashable]) -> bool:
        """Add contexts, and keep those whose keys are `needed`; False if one of them cannot be tabulated."""
        new = {key: context for key, context in zip(keys, contexts, strict=True) if key not in self.lines}
        if not new:
            return True
        self._make_room(len(new), needed.union(keys))
        lines = [self._fill(key, context) for key, context in new.items()]
        if min(lines) < 0:
            return False
        self._add_values(lines)
        return True

    def _make_room(self, count: int, needed: set[Hashable]) -> None:
        if len(self._unused) < count and self.best.size < self.most:
            self._allocate(min(self.most, max(2 * self.best.size, self.best.size + count)))
        if len(self._unused) < count:
            for key in [key for key in self.lines if key not in needed]:
                self._unused.append(self.lines.pop(key))

    def _fill(self, key: Hashable, context: Any) -> int:
        """Add a context; returns its line, or -1 if it cannot be tabulated."""
        line = self._unused[-1]
        try:
            mdp = self.cmdp.mdp(context)
            stack = self.loss_oracle.candidates_at(context)
            dense = self._fill_dynamics(self.dynamics[line], context)
        except Exception:
            # The episode with this context raises the error again, with its message.
            return -1
        if type(mdp) is not LayeredMDP or mdp.layout != self.layout or mdp.action_mask is not None or not dense:
            return -1
        if mdp.transitions.dtype != np.float64:
            return -1
        self.losses[line] = stack.reshape(len(stack), -1).T
        self.models[line] = mdp.transitions.places + mdp.loss_place
        self.mdps[line] = mdp
        self.lines[key] = self._unused.pop()
        return line

    def _fill_dynamics(self, columns: Array, context: Any) -> bool:
        """Fill in the transitions of all candidates, one per column; False if some are not dense."""
        answer, block = self.dynamics_oracle._answer(context), self.layout.dense_block
        if answer.lines is not None:
            columns[...] = answer.lines.T
            return True
        for i, model in enumerate(answer.models):
            if isinstance(model, Transitions):
                if model.kind != DENSE or model.action_mask is not None:
                    return False
                model = model.arrays()
            for h, array in enumerate(model):
                if type(array) is not np.ndarray:
                    return False
                columns[block[h] : block[h + 1], i] = array.reshape(-1)
        return True

    def _add_values(self, lines: list[int]) -> None:
        """Compute the values of the optimum and of the uniform policy."""
        mdps = [mdp for line in lines if (mdp := self.mdps[line]) is not None]
        self.best[lines] = solve(mdps, returns="start")
        self.uniform[lines] = evaluate(mdps, uniform_policy(self.layout, None), returns="start")
