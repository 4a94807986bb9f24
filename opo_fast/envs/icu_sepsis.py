"""ICU-Sepsis as a contextual MDP: the tables of the PyPI package icu-sepsis, read without importing it.

716 states (0..712 a patient's condition, 713 death, 714 survival, 715 after either), 25 doses, estimated from MIMIC-III
(Choudhary et al., "ICU-Sepsis: a benchmark MDP built from real medical data", RLC 2024).
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import MANY, as_integer, as_items, as_number, one_of
from ..errors import OpoError, install
from ..model.layout import Layout
from ..model.transitions import Transitions
from .environment import Environment, PerContext
from .rewards import RewardMap

__all__ = ["IcuData", "icu_sepsis", "load_icu_data"]

Array = npt.NDArray[Any]
Loss = Literal["survival", "return", "death"]

LIVE, DEATH, SURVIVAL, AFTER = 713, 713, 714, 715
SEVERITY = (5.0, 7.0, 9.0)
"""SOFA scores that separate the severity groups of an admission, close to the quartiles 4.69, 6.49, 8.55."""
CONDITIONS = [*(f"condition {state}" for state in range(LIVE)), "death", "survival", "after"]
DOSES = [f"dose {action}" for action in range(25)]
"""Five levels of fluids times five of vasopressors; the package does not document their order."""
SOURCE = "PyPI icu-sepsis 2.0.1 (MIT), estimated from MIMIC-III"


@dataclass(frozen=True, eq=False)
class IcuData:
    """The tables of icu-sepsis.

    Attributes
    ----------
    P : csr_array, shape (716 * 25, 716)
        Transition probabilities; the rows of inadmissible actions are the mean of the admissible ones.
    admissible : ndarray of bool, shape (716, 25)
    start : ndarray, shape (716,)
    expert : ndarray, shape (716, 25)
        The clinicians' policy, which also gives doses that are not admissible; its rows for states 713 to 715 are zero.
    sofa : ndarray, shape (716,)
        Mean SOFA score of a state, a measure of severity; 0 for the states 713 to 715.
    """

    P: Any
    admissible: Array
    start: Array
    expert: Array
    sofa: Array

    @property
    def expert_policy(self) -> Array:
        """`expert` with the uniform policy in the three states where the table is zero."""
        policy = self.expert.copy()
        empty = policy.sum(axis=1) == 0
        policy[empty] = self.admissible[empty] / self.admissible[empty].sum(axis=1, keepdims=True)
        return policy


def load_icu_data() -> IcuData:
    """Read the tables of the installed package icu-sepsis without importing it.

    Raises
    ------
    OpoError
        If the package is missing, or its files are not those of version 2.
    """
    spec = importlib.util.find_spec("icu_sepsis")
    if spec is None or not spec.submodule_search_locations:
        raise OpoError(f"the environment icu-sepsis needs the package icu-sepsis: {install('icu')}")
    return _read(pathlib.Path(spec.submodule_search_locations[0]) / "envs" / "assets")


@functools.lru_cache(maxsize=1)
def _read(folder: pathlib.Path) -> IcuData:
    try:
        with np.load(folder / "dynamics.npz", allow_pickle=False) as file:
            tx, start, expert, sofa = (file[name] for name in ("tx_mat", "d_0", "expert_policy", "sofa_scores"))
        lines = (folder / "admissible_actions.txt").read_text().splitlines()
        admissible = np.zeros((716, 25), bool)
        for state, line in enumerate(lines[1:]):
            admissible[state, [int(word) for word in line.split()]] = True
        if tx.shape != (716, 25, 716) or len(lines) != 717:
            raise ValueError(f"tx_mat has shape {tx.shape}")
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise OpoError(f"{folder}: these are not the tables of icu-sepsis 2 ({error}): {install('icu')}") from None
    P = sp.csr_array(tx.reshape(716 * 25, 716))
    for array in (P.data, P.indices, P.indptr, admissible, start, expert, sofa):
        array.flags.writeable = False
    return IcuData(P, admissible, start, expert, sofa)


def icu_sepsis(
    horizon: int = 10,
    loss: Loss = "survival",
    *,
    severity: Sequence[float] = SEVERITY,
    sigmas: Sequence[float] = (0.5, 0.3, 0.5, 0.3),
    seed: int = 0,
) -> Environment:
    """Sepsis treatment; the context is the severity group of the admission (its SOFA score).

    The group determines the distribution of the first condition: that of all admissions, restricted to the group. An extra first
    layer with one state and one action draws it, so the layout has ``horizon + 1`` layers. The allowed actions in a condition
    are the doses that clinicians gave in it.

    Candidate dynamics: in the perturbed ones, each dose of each condition is out of stock with probability sigma, and then
    acts like the average of the doses in stock (at least one per condition is). In "no dose matters" all doses act like the
    average, and in "doses mixed up" the effects of each condition's doses are permuted. So the candidates differ on allowed
    pairs, in support and in the doses that they recommend. Candidate losses are those of the same candidates, and a constant. In
    both classes the truth is neither the first nor the last.

    Parameters
    ----------
    horizon : int
        Steps of treatment H.
    loss : {"survival", "return", "death"}
        "survival": a step that does not end in survival costs 1, and survivors stay in that state, so the value is the
        expected number of steps without survival. "return": the package's own reward, 1 once at survival, as a loss,
        so the value is H - P(survival within H steps). "death": a step that ends in death costs 1 once, so the
        value is P(death within H steps). In the last two, doses differ by 0.05 or less: decrease
        ``bonus_scale`` for them.
    severity : sequence of float
        SOFA scores that separate the groups, increasing.
    sigmas : sequence of float
        Perturbation strength of each perturbed candidate.
    seed : int
        Seed of the perturbations.

    Returns
    -------
    Environment
        With 4 contexts by default.

    Raises
    ------
    OpoError
        If the package icu-sepsis is missing, or an argument is out of range.
    """
    horizon = as_integer(horizon, "horizon", least=1, most=MANY)
    one_of(loss, "loss", ("survival", "return", "death"))
    data = load_icu_data()
    if loss == "survival":
        data = absorbing(data)
    starts, labels, weights = severity_groups(data, severity)
    mask = np.concatenate([np.arange(25)[None] == 0] + [data.admissible] * horizon)
    layout = Layout([1] + [716] * horizon, 25)

    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    sigmas = as_items(sigmas, "sigmas", "strengths")
    kept = [data.admissible] + [remaining_doses(data.admissible, sigma, rng) for sigma in sigmas]
    named = [("no dose matters", average_rows(data, data.admissible, data.admissible))]
    named += [
        (f"doses missing, sigma {sigma:g} ({i + 1})", average_rows(data, keep, data.admissible & ~keep))
        for i, (sigma, keep) in enumerate(zip(sigmas, kept[1:], strict=True))
    ]
    named.insert(1, ("doses mixed up", _shuffle(data, rng)))
    truth = (len(named) + 1) // 2
    named.insert(truth, ("truth", _admissible_rows(data)))

    dynamics = [PerContext([_layered(layout, mask, start, block) for start in starts], name) for name, block in named]
    losses = [PerContext([_losses(block, loss, horizon)] * len(starts), name) for name, block in named]
    never = PerContext([_constant(horizon, float(loss != "death"))] * len(starts), "nobody dies" if loss == "death" else "nobody survives")
    losses[0] = never
    return Environment(
        layout,
        losses,
        dynamics,
        true_loss=truth,
        true_dynamics=truth,
        contexts=range(len(starts)),
        probabilities=weights,
        labels=labels,
        action_mask=mask,
        reward_map=None if loss == "death" else RewardMap(0.0, 1.0),
        steps=horizon,
        state_names=["admission", *CONDITIONS * horizon],
        action_names=DOSES,
        start_layer=True,
        name="icu-sepsis",
        source=SOURCE,
    )


def absorbing(data: IcuData) -> IcuData:
    """The tables with death and survival as absorbing states (in the package both lead to state 715)."""
    target = np.arange(716 * 25) // 25
    last = (target == DEATH) | (target == SURVIVAL)
    loops = sp.csr_array((np.ones(50), (np.flatnonzero(last), target[last])), shape=data.P.shape)
    P = sp.csr_array(sp.diags_array((~last).astype(float)) @ data.P + loops)
    return replace(data, P=P)


def severity_groups(data: IcuData, severity: Sequence[float]) -> tuple[list[Array], list[str], Array]:
    """Start distributions, labels and probabilities of the severity groups."""
    edges = [as_number(edge, f"severity[{i}]") for i, edge in enumerate(as_items(severity, "severity", "scores"))]
    if any(b <= a for a, b in itertools.pairwise(edges)):
        raise OpoError(f"severity is {list(severity)}: increasing numbers are needed")
    group = np.searchsorted(edges, data.sofa, side="right")
    weights = np.bincount(group, weights=data.start, minlength=len(edges) + 1)
    if (weights == 0).any():
        raise OpoError(f"severity is {list(severity)}: no admission has a score in group {int(np.argmin(weights))}")
    starts = [np.where(group == c, data.start, 0.0) / weights[c] for c in range(len(edges) + 1)]
    low, high = [None, *edges], [*edges, None]
    labels = [
        "all" if a is None and b is None else f"SOFA < {b:g}" if a is None else f"SOFA >= {a:g}" if b is None else f"SOFA {a:g}-{b:g}"
        for a, b in zip(low, high, strict=True)
    ]
    return starts, labels, weights / weights.sum()


def remaining_doses(admissible: Array, sigma: float, rng: np.random.Generator) -> Array:
    """The doses in stock if each is missing with probability sigma; at least one per condition."""
    sigma = as_number(sigma, "sigma", most=1.0)
    keep = admissible & (rng.random(admissible.shape) >= sigma)
    keep[LIVE:] = admissible[LIVE:]
    spare = np.where(admissible, rng.random(admissible.shape), -1.0).argmax(axis=1)
    empty = np.flatnonzero(~keep.any(axis=1))
    keep[empty, spare[empty]] = True
    return keep


def _admissible_rows(data: IcuData) -> Any:
    """The admissible rows of P; the others are empty."""
    return sp.csr_array(sp.diags_array(data.admissible.ravel().astype(float)) @ data.P)


def average_rows(data: IcuData, keep: Array, averaged: Array) -> Any:
    """P with the `averaged` pairs acting like the mean of the kept pairs of their state; only admissible rows are filled."""
    own = sp.diags_array((data.admissible & ~averaged).ravel().astype(float))
    state, action = np.nonzero(averaged)
    count = keep.sum(axis=1)
    row, column, weight = [], [], []
    for s, a in zip(state, action, strict=True):
        kept = np.flatnonzero(keep[s])
        row.append(np.full(kept.size, s * 25 + a))
        column.append(s * 25 + kept)
        weight.append(np.full(kept.size, 1.0 / count[s]))
    mixing = own.tocsr()
    if row:
        entries = (np.concatenate(weight), (np.concatenate(row), np.concatenate(column)))
        mixing = mixing + sp.csr_array(entries, shape=mixing.shape)
    result = sp.csr_array(mixing @ data.P)
    result.eliminate_zeros()
    result.sort_indices()
    return result


def _shuffle(data: IcuData, rng: np.random.Generator) -> Any:
    """P with the rows of each state's admissible actions permuted by a random cycle; the other rows are empty."""
    source = np.zeros(716 * 25, np.int64)
    for s in range(716):
        order = rng.permutation(np.flatnonzero(data.admissible[s]))
        source[s * 25 + order] = s * 25 + np.roll(order, 1)
    mask = data.admissible.ravel().astype(float)
    return sp.csr_array(sp.diags_array(mask) @ data.P[source])


def _layered(layout: Layout, mask: Array | None, start: Array, block: Any) -> Transitions:
    first = np.zeros((layout.n_actions, start.size))
    first[:] = start
    arrays = [sp.csr_array(first)] + [block] * (layout.horizon - 2)
    return Transitions(layout, arrays, action_mask=mask)


def _losses(block: Any, loss: str, horizon: int) -> Array:
    reached = block[:, [DEATH if loss == "death" else SURVIVAL]].toarray().reshape(716, 25).clip(0.0, 1.0)
    base = reached if loss == "death" else 1.0 - reached
    return np.concatenate([np.zeros((1, 25))] + [base] * horizon)


def _constant(horizon: int, value: float) -> Array:
    return np.concatenate([np.zeros((1, 25)), np.full((716 * horizon, 25), value)])
