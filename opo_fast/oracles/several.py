"""The candidates of a finite class at several contexts, in one array."""

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
    """`FiniteLossOracle.candidates_at` for k contexts, shape (k, n, n_states, A). The class is asked about each new context once."""
    if oracle.function_class.together is None:
        return np.array([oracle.candidates_at(context) for context in contexts])
    answers = np.empty((len(contexts), oracle.scores.size, *oracle.layout.shape))
    new = []
    for i, context in enumerate(contexts):
        key = context_key(context)
        known = oracle._answers.get(key)
        if known is None:
            new.append((i, key))
            answers[i] = oracle.together_at(context)
        else:
            answers[i] = known
    if check_unit(answers.reshape(-1), np.empty(1, np.int64)):
        for i, _ in new:
            oracle.check_stack(answers[i], contexts[i])
    frozen(answers)
    for i, key in new:
        oracle._answers.put(key, answers[i], answers[i].nbytes)
    return answers


def dynamics_at(oracle: FiniteDynamicsOracle, contexts: Sequence[Any]) -> Array | None:
    """All candidate dynamics at k contexts, shape (k, m, transitions), rows in their order; None if one of them is not dense."""
    block, m = oracle.layout.dense_block, oracle.scores.size
    answers = np.empty((len(contexts), m, int(block[-1])))
    if oracle.function_class.together is None or answers[0].nbytes > LINES_BYTES or not answers.size:
        listed = all(_list(answers[i], oracle._answer(context), block) for i, context in enumerate(contexts))
        return answers if listed else None
    new, ends = [], block.tolist()
    for i, context in enumerate(contexts):
        key = context_key(context)
        known = oracle._answers.get(key)
        if known is None:
            new.append((i, key))
            for h, stack in enumerate(oracle.together_at(context)):
                answers[i, :, ends[h] : ends[h + 1]] = stack.reshape(m, -1)
        else:
            answers[i] = known.lines
    frozen(answers)
    for i, key in new:
        oracle._answers.put(key, *oracle.in_lines(answers[i]))
    return answers


def _list(lines: Array, answer: Any, block: Array) -> bool:
    """Write an answer into `lines`; False if a candidate is not dense."""
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
