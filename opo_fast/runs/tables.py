"""Arrays with one line per context: the candidates of two finite classes, and the values of two policies in the true model.

What several episodes need is looked up with a single indexing operation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from ..algorithm.packed_classes import small_enough
from ..kernels.forward import STATES
from ..kernels.models import TABLE, backward_models
from ..model.arguments import UNCHECKED
from ..model.batches import model_table
from ..model.contextual import context_key
from ..model.layered import LayeredMDP
from ..model.layout import Layout, address, uniform_policy
from ..oracles.finite import LINES_BYTES
from ..oracles.several import dynamics_at, losses_at

__all__ = ["ContextTables", "models_side_by_side", "start_values"]

Array = npt.NDArray[Any]

ROOM = 1 << 23
"""Bytes that the tables may take, for each run."""
COPIED = 1 << 13
"""Transitions of new models that are copied side by side."""
FIRST = 64
"""Contexts that the tables have room for at first."""


class ContextTables:
    """Tables with a line for each context.

    Parameters
    ----------
    loss_oracle, dynamics_oracle
        Finite oracles that evaluate the candidates at a context.
    runs : int
        Number of runs that share the tables.

    Attributes
    ----------
    most : int
        Number of contexts that fit at once.
    losses : ndarray, shape (k, n, n_rows)
        Losses of the candidates at each state-action pair.
    dynamics : ndarray, shape (k, m, n_transitions)
        Transition probabilities of the candidates: layer by layer, state-action pair by next state.
    best, uniform : ndarray, shape (k,)
        The values of the optimum and of the uniform policy.
    """

    def __init__(self, loss_oracle: Any, dynamics_oracle: Any, runs: int) -> None:
        self.layout = loss_oracle.layout
        self.loss_oracle, self.dynamics_oracle = loss_oracle, dynamics_oracle
        layout: Layout = self.layout
        self.n_rows = layout.n_states * layout.n_actions
        self.size = int(layout.dense_block[-1])
        self._shapes = (loss_oracle.scores.size, self.n_rows), (dynamics_oracle.scores.size, self.size)
        line = 8 * (self._shapes[0][0] * self._shapes[0][1] + self._shapes[1][0] * self._shapes[1][1] + 2)
        (n, _), (m, _) = self._shapes
        # As `FiniteDynamicsOracle.candidates_at` decides.
        few = 0 < 8 * m * self.size <= LINES_BYTES and small_enough(n * self.n_rows, m * self.size)
        self._listed = few and dynamics_oracle.function_class.together is not None
        self.most = runs * ROOM // line
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
        # The last one is used first, so that new contexts have lines in a row.
        self._unused += range(k - 1, old - 1, -1)

    losses: Array
    dynamics: Array
    best: Array
    uniform: Array

    def find(self, contexts: Sequence[Any], keys: Sequence[Hashable], mdps: Sequence[LayeredMDP], needed: set[Hashable]) -> bool:
        """Add contexts with their true models, and keep those whose keys are `needed`; False if one of them cannot be tabulated."""
        new = {key: (context, mdp) for key, context, mdp in zip(keys, contexts, mdps, strict=True) if key not in self.lines}
        if not new:
            return True
        self._make_room(len(new), needed.union(keys))
        asked, unknown = [context for context, _ in new.values()], list(new)
        try:
            losses, dynamics = losses_at(self.loss_oracle, asked, unknown), dynamics_at(self.dynamics_oracle, asked, unknown)
        except Exception:
            # The error is raised in the episode that plays this context.
            return False
        if dynamics is None:
            return False
        lines = [self._unused.pop() for _ in new]
        self.losses[lines], self.dynamics[lines] = losses.reshape(len(new), -1, self.n_rows), dynamics
        # The values of the optimum and of the uniform policy, once for each context.
        models, uniform = [mdp for _, mdp in new.values()], uniform_policy(self.layout, None).reshape(1, -1)
        table = models_side_by_side(models)
        for values, greedy in ((self.best, 1), (self.uniform, 0)):
            values[lines] = start_values(models, table, uniform.copy(), greedy=greedy)
        self.lines.update(zip(new, lines, strict=True))
        return True

    def candidates(self, contexts: Sequence[Any]) -> tuple[Array, Array] | None:
        """Losses and dynamics of the candidates at some contexts, (k, n, n_rows) and (k, m, n_transitions).

        None unless the oracles keep them in such arrays too, and the tables have all of the contexts.
        """
        lines = [self.lines.get(context_key(context)) for context in contexts] if self._listed else [None]
        if None in lines:
            return None
        first, end = lines[0], lines[0] + len(lines)  # type: ignore[operator]
        which: Any = slice(first, end) if lines == list(range(first, end)) else lines  # type: ignore[arg-type]
        return self.losses[which], self.dynamics[which]

    def _make_room(self, count: int, needed: set[Hashable]) -> None:
        if len(self._unused) < count and self.best.size < self.most:
            self._allocate(min(self.most, max(2 * self.best.size, self.best.size + count)))
        if len(self._unused) < count:
            self._unused += [self.lines.pop(key) for key in [key for key in self.lines if key not in needed][::-1]]


def models_side_by_side(mdps: Sequence[LayeredMDP]) -> tuple[Any, ...]:
    """`model_table`. New models that are small are copied side by side: to ask where the arrays of each one are would take longer."""
    first = mdps[0].transitions
    size, block = first.data.size, first.layout.dense_block
    new = "places" not in vars(mdps[-1].transitions) and len(mdps) * size <= COPIED
    # Models with this very array of blocks are dense, and no layer of theirs is a copy.
    if not new or any(mdp.transitions.block is not block for mdp in mdps):
        return model_table(mdps)
    data = frozen(np.concatenate([mdp.transitions.data for mdp in mdps]))
    losses = frozen(np.concatenate([mdp._own_losses for mdp in mdps], axis=None))
    table = np.empty((len(mdps), TABLE), np.int64)
    table[:] = first.places + mdps[0].loss_place
    each = 8 * np.arange(len(mdps))
    table[:, 1], table[:, -1] = address(data) + size * each, address(losses) + first.n_rows * each
    return table, data, first.indptr, first.indices, block, losses, first.layout.offsets, first.rows


def start_values(
    mdps: Sequence[LayeredMDP], table: tuple[Any, ...], policies: Array, *, greedy: int = 0, tolerance: float = UNCHECKED
) -> Array | None:
    """V(s_1) of models under policies, one for each or one for all, or of their optima; None if a policy is invalid."""
    t = mdps[0].transitions
    q, v = np.empty((1, max(t.n_rows, STATES * t.layout.n_actions))), np.empty((len(mdps), t.layout.n_states))
    after = np.arange(len(mdps)), t.width, 0, greedy, policies, tolerance, q, v
    return None if backward_models(*table, 0, 1, np.empty(0, np.int64), *after) else v[:, 0].copy()
