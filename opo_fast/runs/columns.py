"""The columns that a run records, and the values that they can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpoError

__all__ = ["COLUMNS", "DIAGNOSTICS", "ERRORS", "INTEGERS", "check_numbered", "check_values", "looks_at"]

Array = npt.NDArray[Any]

DIAGNOSTICS = ("truncated", "truncated_played", "vacuous_bonuses", "plausible_losses", "plausible_dynamics", "hedge_bound")
ERRORS = ("held_out_squared_error", "held_out_log_loss", "true_squared_error", "true_log_loss")
VALUES = ("value", "optimal_value", "uniform_value")
COLUMNS = (*VALUES, "observed_loss", "saturation", *DIAGNOSTICS, *ERRORS, "context_index", "loss_fit", "dynamics_fit")
INTEGERS = ("context_index", "loss_fit", "dynamics_fit")
SHARES = ("saturation", "truncated", "truncated_played", "vacuous_bonuses")
SLACK = 1e-6
"""Tolerance per squared number of layers: rows of float32 probabilities may differ from 1 by that much."""


LOOKS = 16
"""Looks at all pairs, for the diagnostics of a run, while the number of episodes doubles."""


def looks_at(episode: int) -> bool:
    """Whether all pairs are looked at in an episode: this costs as much as a step of a chain.

    The number of the episode alone decides, so that a run that goes on has the same diagnostics as one that was longer from the start.
    """
    return episode % max(1, (1 << episode.bit_length()) // (2 * LOOKS)) == 0


def check_values(columns: Mapping[str, Array], layers: int | None, exact: bool) -> None:
    """Raise an error if a column has a value that no run can record.

    Values and losses lie in [0, H] for H `layers` (None: not known), no policy has a lower value than the optimum, shares lie in [0, 1],
    and errors and counts are at least 0. The observed losses must be finite, and so must the values if they are `exact`.
    """
    most = np.inf if layers is None else float(layers)
    slack = SLACK * (1 if layers is None else layers**2)
    for name in COLUMNS:
        column = columns[name]
        if name in INTEGERS:
            _refuse(name, column, column < (0 if name == "context_index" else -1), "a number of a context or a fit is needed")
            continue
        top = most if name in (*VALUES, "observed_loss") else 1.0 if name in SHARES else np.inf
        with np.errstate(invalid="ignore"):
            bad = (column < -slack) | (column > top + slack)
        if name == "observed_loss" or (name in VALUES and exact):
            _refuse(name, column, ~np.isfinite(column), "a finite number is needed")
        _refuse(name, column, bad, f"a number from 0 to {top:g} is needed" if top < np.inf else "a number of at least 0 is needed")
    with np.errstate(invalid="ignore"):
        for name in ("value", "uniform_value"):
            bad = columns[name] < columns["optimal_value"] - slack
            _refuse(name, columns[name], bad, "at least the optimal value is needed")


def check_numbered(numbers: Array) -> None:
    """Raise an error unless contexts are numbered in order of first appearance."""
    found, first = np.unique(numbers, return_index=True)
    if not np.array_equal(found, np.arange(found.size)) or (np.diff(first) <= 0).any():
        raise OpoError("its column context_index does not number contexts in order of first appearance")


def _refuse(name: str, column: Array, bad: Array, needed: str) -> None:
    if bad.any():
        t = int(bad.argmax())
        raise OpoError(f"its column {name} has {column[t].item()!r} in episode {t + 1}: {needed}")
