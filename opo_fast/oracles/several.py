"""The candidates of a finite class at several contexts, in one array."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import frozen
from ..kernels.ingest import check_unit
from ..model.transitions import DENSE, Transitions
from .finite import LINES_BYTES, FiniteDynamicsOracle, FiniteLossOracle

__all__ = ["dynamics_at", "losses_at"]

Array = npt.NDArray[Any]


def losses_at(oracle: FiniteLossOracle, contexts: Sequence[Any], keys: Sequence[Hashable]) -> Array:
    """`FiniteLossOracle.candidates_at` for k contexts, shape (k, n, n_states, A). The class is asked about each new context once.

    `keys` has the `context_key` of each context.
    """
    if oracle.function_class.together is None:
        return np.array([oracle.candidates_at(context) for context in contexts])
    answers = np.empty((len(contexts), oracle.scores.size, *oracle.layout.shape))
    new, get, ask = [], oracle._answers.get, oracle.together_at
    for i, key in enumerate(keys):
        known = get(key)
        if known is None:
            new.append(i)
            answers[i] = ask(contexts[i])
        else:
            answers[i] = known
    if check_unit(answers.reshape(-1), np.empty(1, np.int64)):
        for i in new:
            oracle.check_stack(answers[i], contexts[i])
    frozen(answers)
    oracle._answers.put_all([(keys[i], answers[i]) for i in new], answers[0].nbytes)
    return answers


def dynamics_at(oracle: FiniteDynamicsOracle, contexts: Sequence[Any], keys: Sequence[Hashable]) -> Array | None:
    """All candidate dynamics at k contexts, shape (k, m, transitions), rows in their order; None if one of them is not dense."""
    block, m = oracle.layout.dense_block, oracle.scores.size
    answers = np.empty((len(contexts), m, int(block[-1])))
    if oracle.function_class.together is None or answers[0].nbytes > LINES_BYTES or not answers.size:
        listed = all(_list(answers[i], oracle._answer(context), block) for i, context in enumerate(contexts))
        return answers if listed else None
    new, get, ask = [], oracle._answers.get, oracle.together_at
    layers = [
        answers[:, :, begin:end].reshape(len(contexts), m, *shape)
        for begin, end, shape in zip(block[:-1].tolist(), block[1:].tolist(), oracle.layout.dense_shapes, strict=True)
    ]
    for i, key in enumerate(keys):
        known = get(key)
        if known is None:
            new.append(i)
            for layer, stack in zip(layers, ask(contexts[i]), strict=True):
                layer[i] = stack
        else:
            answers[i] = known.lines
    frozen(answers)
    oracle._answers.put_all([(keys[i], oracle.in_lines(answers[i])[0]) for i in new], answers[0].nbytes)
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
