"""Further contextual models on the tables of ICU-Sepsis: wards, formularies, and aggregated conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import MANY, as_integer, as_items, as_number, one_of
from .environment import Environment
from .families import family
from .icu_sepsis import (
    DEATH,
    LIVE,
    SEVERITY,
    SOURCE,
    SURVIVAL,
    IcuData,
    absorbing,
    average_rows,
    load_icu_data,
    remaining_doses,
    severity_groups,
)
from .tables import TabularMDP

__all__ = ["icu_formulary", "icu_reduced", "icu_table", "icu_wards"]

Array = npt.NDArray[Any]


def icu_table(loss: str = "survival", *, masked: bool = True) -> TabularMDP:
    """ICU-Sepsis as a table, with the reward that corresponds to the loss of `icu_sepsis`, starting from all admissions.

    Parameters
    ----------
    loss : {"survival", "return", "death"}
        Reward 1 for a step that ends in survival ("survival": in every step from then on; "return": once), or -1 for one that
        ends in death.
    masked : bool
        Whether to allow only the doses that clinicians gave, or all 25.
    """
    data = _data(loss)
    return _table(data.P, data.start, data.admissible if masked else None, loss)


def _data(loss: str) -> IcuData:
    one_of(loss, "loss", ("survival", "return", "death"))
    data = load_icu_data()
    return absorbing(data) if loss == "survival" else data


def _table(P: Any, start: Array, mask: Array | None, loss: str, states: int = 716) -> TabularMDP:
    target = states - 716 + (DEATH if loss == "death" else SURVIVAL)
    reached = P[:, [target]].toarray().reshape(states, 25).clip(0.0, 1.0)
    span = (-1.0, 0.0) if loss == "death" else (0.0, 1.0)
    rewards = -reached if loss == "death" else reached
    return TabularMDP(P, rewards, start, mask, reward_range=span, name="icu-sepsis", source=SOURCE)


def icu_wards(horizon: int = 10, loss: str = "survival", *, strictness: Sequence[float] = (0.0, 0.02, 1.0)) -> Environment:
    """ICU-Sepsis with all 25 doses; the context is how strictly a ward forbids doses that clinicians never gave.

    Such a dose ends in death with probability w, the ward's strictness, and otherwise acts like the average of the
    doses that were given. w = 0 and w = 1 are the package's own options "mean" and "terminate".

    Parameters
    ----------
    horizon : int
    loss : {"survival", "return", "death"}
        See `icu_sepsis`.
    strictness : sequence of float
        w of each context, in [0, 1].
    """
    data = _data(loss)
    barred = ~data.admissible.ravel()
    rows = np.flatnonzero(barred)
    death = sp.csr_array((np.ones(rows.size), (rows, np.full(rows.size, DEATH))), shape=data.P.shape)
    tables, labels = [], []
    for i, each in enumerate(as_items(strictness, "strictness", "numbers")):
        w = as_number(each, f"strictness[{i}]", most=1.0)
        P = sp.csr_array(sp.diags_array(1.0 - w * barred) @ data.P + w * death)
        P.eliminate_zeros()
        tables.append(_table(P, data.start, None, loss))
        labels.append(f"strictness {w:g}")
    return family(tables, horizon, labels=labels, name="icu-wards", source=SOURCE)


def icu_formulary(horizon: int = 10, loss: str = "survival", *, wards: int = 4, sigma: float = 0.3, seed: int = 0) -> Environment:
    """ICU-Sepsis; the context is the ward's formulary, the doses in stock for each condition.

    In each ward but the first, each dose of each condition is missing with probability sigma, and then acts like the average
    of the doses in stock (at least one per condition is).

    Parameters
    ----------
    horizon : int
    loss : {"survival", "return", "death"}
        See `icu_sepsis`.
    wards : int
    sigma : float
    seed : int
        Seed of the formularies.
    """
    data = _data(loss)
    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    tables = []
    for ward in range(as_integer(wards, "wards", least=1, most=MANY)):
        kept = data.admissible if ward == 0 else remaining_doses(data.admissible, sigma, rng)
        P = average_rows(data, kept, data.admissible & ~kept)
        tables.append(_table(P, data.start, data.admissible, loss))
    return family(tables, horizon, labels=[f"ward {ward}" for ward in range(wards)], name="icu-formulary", source=SOURCE)


def icu_reduced(horizon: int = 10, loss: str = "survival", *, groups: int = 30, severity: Sequence[float] = SEVERITY) -> Environment:
    """ICU-Sepsis with the conditions aggregated into groups of similar SOFA scores: a small, dense model.

    The groups are quantiles of the conditions' scores; within a group, conditions are weighted by their frequency at admission.
    Aggregation changes the values. The context is the severity group of the admission, as in `icu_sepsis`.

    Parameters
    ----------
    horizon : int
    loss : {"survival", "return", "death"}
        See `icu_sepsis`.
    groups : int
        Number of groups of conditions; there are three more states: death, survival and the state after either.
    severity : sequence of float
        See `icu_sepsis`.
    """
    data = _data(loss)
    n = as_integer(groups, "groups", least=1, most=200)
    starts, labels, weights = severity_groups(data, severity)
    sofa, mass = data.sofa[:LIVE], np.concatenate([data.start[:LIVE], np.ones(3)])
    edges = np.quantile(sofa, np.linspace(0.0, 1.0, n + 1)[1:-1])
    group = np.concatenate([np.searchsorted(edges, sofa, side="right"), np.arange(n, n + 3)])
    into = sp.csr_array((np.ones(716), (np.arange(716), group)), shape=(716, n + 3))
    weight = mass / np.bincount(group, mass, n + 3)[group]
    reached = (data.P @ into).toarray().reshape(716, 25, n + 3)
    P = np.zeros((n + 3, 25, n + 3))
    np.add.at(P, group, weight[:, None, None] * reached)
    flat = sp.csr_array(P.reshape(-1, n + 3))
    tables = [_table(flat, into.T @ start, None, loss, n + 3).dense() for start in starts]
    return family(tables, horizon, labels=labels, probabilities=weights, name="icu-reduced", source=SOURCE)
