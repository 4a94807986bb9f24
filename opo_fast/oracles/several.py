"""What the candidates of a finite class say at several contexts, in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from ..kernels.ingest import check_unit
from ..model.contextual import context_key
from ..model.transitions import DENSE, Transitions
from .finite import LINES_BYTES, FiniteDynamicsOracle, FiniteLossOracle

__all__ = ["dynamics_at", "losses_at"]

Array = npt.NDArray[Any]


def losses_at(oracle: FiniteLossOracle, contexts: Sequence[Any]) -> Array:
    """What `FiniteLossOracle.candidates_at` gives at each of k contexts, shape (k, n, n_states, A); asked of the class once."""
    if oracle.function_class.together is None:
        return np.array([oracle.candidates_at(context) for context in contexts])
    told = np.empty((len(contexts), oracle.scores.size, *oracle.layout.shape))
    new = []
    for i, context in enumerate(contexts):
        key = context_key(context)
        known = oracle._answers.get(key)
        if known is None:
            new.append((i, key))
            told[i] = oracle.together_at(context)
        else:
            told[i] = known
    if check_unit(told.reshape(-1), np.empty(1, np.int64)):
        for i, _ in new:
            oracle.check_stack(told[i], contexts[i])
    frozen(told)
    for i, key in new:
        oracle._answers.put(key, told[i], told[i].nbytes)
    return told


def dynamics_at(oracle: FiniteDynamicsOracle, contexts: Sequence[Any]) -> Array | None:
    """All candidates at each of k contexts, shape (k, m, transitions), rows in their order; None where one of them is not dense."""
    block, m = oracle.layout.dense_block, oracle.scores.size
    told = np.empty((len(contexts), m, int(block[-1])))
    if oracle.function_class.together is None or told[0].nbytes > LINES_BYTES or not told.size:
        listed = all(_list(told[i], oracle._answer(context), block) for i, context in enumerate(contexts))
        return told if listed else None
    new, ends = [], block.tolist()
    for i, context in enumerate(contexts):
        key = context_key(context)
        known = oracle._answers.get(key)
        if known is None:
            new.append((i, key))
            for h, stack in enumerate(oracle.together_at(context)):
                told[i, :, ends[h] : ends[h + 1]] = stack.reshape(m, -1)
        else:
            told[i] = known.lines
    frozen(told)
    for i, key in new:
        oracle._answers.put(key, *oracle.in_lines(told[i]))
    return told


def _list(lines: Array, answer: Any, block: Array) -> bool:
    """Fill `lines` with an answer, or return False where a candidate is not dense."""
    if answer.lines is not None:
        lines[...] = answer.lines
        return True
    for i, model in enumerate(answer.models):
        if isinstance(model, Transitions):
            if model.kind != DENSE or model.action_mask is not None:
                return False
            model = model.arrays()
        for h, array in enumerate(model):
            if type(array) is not np.ndarray:
                return False
            lines[i, block[h] : block[h + 1]] = array.reshape(-1)
    return True
