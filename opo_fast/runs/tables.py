"""What is known at contexts, context by context, in arrays: the candidates of two finite classes, and the values of the true model.

What several episodes need is looked up in one indexing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.layered import LayeredMDP
from ..model.layout import Layout, uniform_policy
from ..model.operations import evaluate, solve
from ..model.transitions import DENSE, Transitions

__all__ = ["ContextTables"]

Array = npt.NDArray[Any]

ROOM = 1 << 23
"""Bytes of what is kept for each run."""
FIRST = 64


class ContextTables:
    """Tables with a line for each context.

    Parameters
    ----------
    loss_oracle, dynamics_oracle
        Finite oracles; what their candidates say is asked of these.
    runs : int
        Number of runs that the tables are for.
    least : int
        Contexts that must have room at once.

    Attributes
    ----------
    losses : ndarray, shape (k, n_rows, n)
        Of the candidates, pair by pair.
    dynamics : ndarray, shape (k, n_transitions, n)
        Transitions of the candidates: layer by layer, (row, next state).
    best, uniform : ndarray, shape (k,)
        The values of the optimum and of the uniform policy.
    """

    def __init__(self, loss_oracle: Any, dynamics_oracle: Any, runs: int, least: int) -> None:
        self.layout = loss_oracle.layout
        self.loss_oracle, self.dynamics_oracle = loss_oracle, dynamics_oracle
        layout: Layout = self.layout
        self.n_rows = layout.n_states * layout.n_actions
        self.size = int(layout.dense_block[-1])
        self._shapes = (self.n_rows, loss_oracle.scores.size), (self.size, dynamics_oracle.scores.size)
        line = 8 * (self._shapes[0][0] * self._shapes[0][1] + self._shapes[1][0] * self._shapes[1][1] + 2)
        self.most = runs * ROOM // line
        self.fits_in = self.most >= least
        self.lines: dict[Hashable, int] = {}
        self._unused: list[int] = []
        self._allocate(min(FIRST, self.most))

    def _allocate(self, k: int) -> None:
        old = getattr(self, "best", np.empty(0)).size
        shapes = {
            "losses": (k, *self._shapes[0]),
            "dynamics": (k, *self._shapes[1]),
            "best": (k,),
            "uniform": (k,),
        }
        for name, shape in shapes.items():
            grown = np.empty(shape)
            if old:
                grown[:old] = getattr(self, name)
            setattr(self, name, grown)
        self._unused += range(old, k)

    losses: Array
    dynamics: Array
    best: Array
    uniform: Array

    def find(self, contexts: Sequence[Any], keys: Sequence[Hashable], mdps: Sequence[LayeredMDP], needed: set[Hashable]) -> bool:
        """Take in contexts and their true models, and keep those that are `needed`; False where one of them is out of the ordinary."""
        new = {key: (context, mdp) for key, context, mdp in zip(keys, contexts, mdps, strict=True) if key not in self.lines}
        if not new:
            return True
        self._make_room(len(new), needed.union(keys))
        lines = [self._fill(key, context) for key, (context, _) in new.items()]
        if min(lines) < 0:
            return False
        # The values of the optimum and of the uniform policy, once for each context.
        models = [mdp for _, mdp in new.values()]
        self.best[lines] = solve(models, returns="start")
        self.uniform[lines] = evaluate(models, uniform_policy(self.layout, None), returns="start")
        return True

    def _make_room(self, count: int, needed: set[Hashable]) -> None:
        if len(self._unused) < count and self.best.size < self.most:
            self._allocate(min(self.most, max(2 * self.best.size, self.best.size + count)))
        if len(self._unused) < count:
            for key in [key for key in self.lines if key not in needed]:
                self._unused.append(self.lines.pop(key))

    def _fill(self, key: Hashable, context: Any) -> int:
        """Take in a context; -1 where something is wrong with it, or special."""
        line = self._unused[-1]
        try:
            stack = self.loss_oracle.candidates_at(context)
            dense = self._fill_dynamics(self.dynamics[line], context)
        except Exception:
            # The episode that plays this context says what is wrong with it.
            return -1
        if not dense:
            return -1
        self.losses[line] = stack.reshape(len(stack), -1).T
        self.lines[key] = self._unused.pop()
        return line

    def _fill_dynamics(self, columns: Array, context: Any) -> bool:
        """Transitions of all candidates, one per column; False where some are not dense."""
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
