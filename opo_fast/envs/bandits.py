"""Contextual bandits (H = 1) from data sets: classification as decisions, and the treatments of a randomised trial."""

from __future__ import annotations

import csv
import importlib.util
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import MANY, as_integer, as_number, instance, one_of
from ..errors import OpoError, install
from ..model.layout import Layout
from .environment import Environment, PerContext

__all__ = ["classification_bandit", "trial_bandit"]

Array = npt.NDArray[Any]

SETS = ("iris", "wine", "breast_cancer", "digits")
ARMS = ("zidovudine", "zidovudine + didanosine", "zidovudine + zalcitabine", "didanosine")


def classification_bandit(data: str = "iris", *, contexts: int | None = 150, noise: float = 0.1, seed: int = 0) -> Environment:
    """A data set of scikit-learn as a contextual bandit: guess the class of a row from its features.

    The context is a row's features, scaled to mean 0 and variance 1 (constant ones to 0); an action is a class. A correct
    guess has mean loss `noise`, a wrong one 1 - `noise`.

    Loss candidates: one class is correct for all rows; the class with the nearest mean, over all features or the first
    half of them; and, in the middle, the truth.

    Parameters
    ----------
    data : {"iris", "wine", "breast_cancer", "digits"}
    contexts : int, optional
        Number of rows, drawn without replacement; None, or more than there are: all. Equal rows count once.
    noise : float
        In [0, 0.5].
    seed : int
        Seed of the draw.

    Returns
    -------
    Environment
        Its contexts are arrays.
    """
    one_of(data, "data", SETS)
    noise = as_number(noise, "noise", most=0.5)
    try:
        from sklearn import datasets
    except ImportError:
        raise OpoError(f"classification bandits need the package scikit-learn: {install('sklearn')}") from None
    bunch = getattr(datasets, f"load_{data}")()
    features, target = np.asarray(bunch.data, np.float64), np.asarray(bunch.target, np.int64)
    spread = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    _, first = np.unique(features, axis=0, return_index=True)
    rows = np.sort(first)
    if contexts is not None and as_integer(contexts, "contexts", least=1) < rows.size:
        rows = np.sort(np.random.default_rng(as_integer(seed, "seed", least=0, most=None)).choice(rows, contexts, replace=False))
    x, y, n_actions = features[rows], target[rows], int(target.max()) + 1
    points = [np.ascontiguousarray(row) for row in x]
    half = max(1, features.shape[1] // 2)
    guesses = [(f"always class {k}", np.full(rows.size, k)) for k in range(n_actions)]
    guesses += [
        ("nearest mean", _nearest(features, target, x)),
        ("nearest mean, half the features", _nearest(features[:, :half], target, x[:, :half])),
    ]
    truth = len(guesses) // 2
    guesses.insert(truth, ("truth", y))
    losses = []
    for name, guess in guesses:
        table = np.full((rows.size, 1, n_actions), 1.0 - noise)
        table[np.arange(rows.size), 0, guess] = noise
        losses.append(PerContext(list(table), name, points))
    return Environment(
        Layout([1], n_actions),
        losses,
        [_no_transitions],
        true_loss=truth,
        contexts=points,
        labels=[f"row {row}: {bunch.target_names[c]}" for row, c in zip(rows, y, strict=True)],
        name=f"bandit-{data}",
        source=f"scikit-learn load_{data}",
    )


def _nearest(features: Array, target: Array, points: Array) -> Array:
    means = np.stack([features[target == k].mean(axis=0) for k in range(int(target.max()) + 1)])
    return np.asarray(np.square(points[:, None] - means).sum(axis=-1).argmin(axis=1))


def _no_transitions(context: Any) -> list[Any]:
    return []


def trial_bandit(by: str | None = "cd40", *, groups: int = 3) -> Environment:
    """The randomised trial ACTG175 as a contextual bandit: which of four treatments avoids the event.

    2,139 patients with HIV were given one of four treatments at random; the event is a drop of the CD4 count by half,
    AIDS or death. The context is the patient's group by a measurement at admission. The loss is 1 if the event happens; its
    mean is the event rate of the group's patients under the treatment.

    Loss candidates: all treatments are equally good; all groups have the rates of all patients; each group has the rates of the
    next one; the treatments are mixed up; and, in the middle, the truth.

    Parameters
    ----------
    by : str, optional
        Column of the data, for instance "cd40" (CD4 count), "age", "wtkg", "karnof" or "preanti". None: one group.
    groups : int
        Number of groups, of about equal size.

    Returns
    -------
    Environment

    Raises
    ------
    OpoError
        If the package lifelines is missing, the column is unknown or has missing values, or a group has no patients under
        some treatment.
    """
    columns = _trial()
    groups = as_integer(groups, "groups", least=1, most=MANY) if by is not None else 1
    arm, event = columns["arms"], columns["cens"]
    if by is None or groups == 1:
        group, labels = np.zeros(arm.size, np.int64), ["all patients"]
    else:
        instance(by, "by", str, needed="the name of a column")
        if by not in columns:
            raise OpoError(f"by is {by!r}: one of the columns {', '.join(sorted(columns))} is needed")
        values = columns[by]
        missing = int(np.isnan(values).sum())
        if missing:
            raise OpoError(f"by is {by!r}: {missing} patients have no value there; a complete column is needed")
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, groups + 1)[1:-1]))
        group = np.searchsorted(edges, values, side="right")
        occupied, group = np.unique(group, return_inverse=True)
        bounds = [-np.inf, *edges, np.inf]
        labels = [_interval(by, bounds[k], bounds[k + 1]) for k in occupied]
    n = len(labels)
    patients = np.zeros((n, 4))
    events = np.zeros((n, 4))
    np.add.at(patients, (group, arm.astype(np.int64)), 1.0)
    np.add.at(events, (group, arm.astype(np.int64)), event)
    if (patients == 0).any():
        c, a = (int(i) for i in np.argwhere(patients == 0)[0])
        raise OpoError(f"groups is {groups}: the group {labels[c]} has no patient under {ARMS[a]}; fewer groups are needed")
    rates = events / patients
    overall = events.sum(axis=0) / patients.sum(axis=0)
    mistaken = [
        ("treatments alike", np.tile((events.sum(axis=1) / patients.sum(axis=1))[:, None], 4)),
        ("treatments mixed up", np.roll(rates, 1, axis=1)),
    ]
    if n > 1:
        mistaken += [("groups alike", np.tile(overall, (n, 1))), ("like the next group", np.roll(rates, -1, axis=0))]
    truth = len(mistaken) // 2
    mistaken.insert(truth, ("truth", rates))
    return Environment(
        Layout([1], 4),
        [PerContext(list(table[:, None, :]), name) for name, table in mistaken],
        [_no_transitions],
        true_loss=truth,
        contexts=range(n),
        probabilities=patients.sum(axis=1) / patients.sum(),
        labels=labels,
        name="trial-actg175",
        source="PyPI lifelines, ACTG175 (MIT)",
    )


def _interval(name: str, low: float, high: float) -> str:
    if low == -np.inf:
        return f"{name} < {high:g}"
    return f"{name} >= {low:g}" if high == np.inf else f"{name} {low:g}-{high:g}"


def _trial() -> dict[str, Array]:
    """The columns of ACTG175, read without importing the package that contains them."""
    spec = importlib.util.find_spec("lifelines")
    if spec is None or not spec.submodule_search_locations:
        raise OpoError(f"the trial needs the package lifelines: {install('trial')}")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "datasets" / "ACTG175.csv"
    if not path.is_file():
        raise OpoError(f"this version of lifelines does not contain the trial's data ({path}): {install('trial')} brings one that does")
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = {
            key: np.array([float(row[key]) if row[key] not in ("", "NA", "nan") else np.nan for row in rows]) for key in rows[0] if key
        }
        if not {"arms", "cens"} <= columns.keys():
            raise KeyError("arms, cens")
    except (OSError, KeyError, IndexError, ValueError, TypeError) as error:
        raise OpoError(f"{path}: this is not the table ACTG175 ({error})") from None
    return columns
