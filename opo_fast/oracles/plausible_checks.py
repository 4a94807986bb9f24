"""The part of `check_oracle` that tests plausible sets."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.state import read_state, write_state
from ..model.layout import as_losses
from .schedule import add_all

__all__ = ["SetChecker", "hand_over"]

Array = npt.NDArray[Any]
DELTA = 0.05


def hand_over(first: Any, second: Any) -> None:
    """Save the state of `first` to a file and restore it from there into `second`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.npz")
        write_state(path, first.state())
        second.restore(read_state(path))


class SetChecker:
    """Tests of plausible sets; `checker` makes oracles, holds data and contexts, and records faults."""

    def __init__(self, checker: Any) -> None:
        self.checker, self.layout, self.data = checker, checker.layout, checker.data
        mask = checker.action_mask
        self.allowed = np.ones(self.layout.shape, np.bool_) if mask is None else mask

    def run(self) -> None:
        """Run all tests."""
        oracle = self.keeping()
        methods = ["plausible", "plausible_count", *(["lower"] if hasattr(oracle, "losses") else [])]
        missing = [name for name in methods if not callable(getattr(oracle, name, None))]
        if not hasattr(oracle, "losses") and hasattr(oracle, "candidates") == hasattr(oracle, "radius"):
            missing.append("either candidates or radius")
        if missing:
            self.fault(f"the oracle has keep_plausible without {', '.join(missing)}")
            return
        self.check_history(oracle)
        middle = len(self.data) // 2
        first, second = (self.grown(self.data[:middle]) for _ in range(2))
        self.check_same("two new oracles with the same data differ", first, second)
        if hasattr(oracle, "state") and hasattr(oracle, "restore"):
            hand_over(first, second := self.checker.fresh())
            self.check_same("a loaded oracle differs", first, second)
            for one in (first, second):
                add_all(one, self.data[middle:])
            self.check_same("a loaded oracle continues differently", first, second)

    def fault(self, text: str, kind: str = "") -> None:
        self.checker.fault(f"plausible sets: {text}", kind)

    def keeping(self) -> Any:
        oracle = self.checker.fresh()
        oracle.keep_plausible(DELTA)
        return oracle

    def grown(self, data: Any) -> Any:
        oracle = self.keeping()
        for trajectory in data:
            oracle.observe(trajectory)
            oracle.plausible()
        return oracle

    def check_history(self, oracle: Any) -> None:
        known: list[tuple[Hashable, list[Array]]] = []
        steps = sorted({0, 1, 2, len(self.data) // 2, len(self.data)})
        for n, trajectory in enumerate([None, *self.data]):
            if trajectory is not None:
                oracle.observe(trajectory)
            pair = oracle.plausible()
            if oracle.plausible() != pair:
                self.fault("plausible() called twice without new data returns different values")
            if n in steps:
                self.check_set(oracle, *pair)
                known.append((pair[1], self.answers(oracle, pair[1])))
        for i, (version, before) in enumerate(known):
            if different(before, self.answers(oracle, version)):
                self.fault(f"the set of version {version!r} changed after more data (earlier versions must stay valid)", "later")
            if any(version == other and different(before, answers) for other, answers in known[:i]):
                self.fault(f"version {version!r} was returned twice, for different sets", "twice")

    def check_set(self, oracle: Any, fit: Hashable, version: Hashable) -> None:
        hash(version)
        count = float(oracle.plausible_count(version))
        if not (math.isnan(count) or count >= 1):
            self.fault(f"plausible_count({version!r}) is {count!r}; at least 1, or nan, is needed", "count")
        if hasattr(oracle, "candidates"):
            found = oracle.candidates(version)
            if not isinstance(found, tuple) or fit not in found:
                self.fault(f"candidates({version!r}) are {found!r}: a tuple with the fit, {fit!r}, is needed", "candidates")
            elif count != len(found):
                self.fault(f"plausible_count({version!r}) is {count!r}, but there are {len(found)} candidates", "number of candidates")
        for context in self.checker.contexts:
            function = self.checker.answer(oracle, fit, context)
            if hasattr(oracle, "losses"):
                where = f"lower({version!r}, {context!r})"
                above = as_losses(self.layout, oracle.lower(version, context), where) - function.reshape(self.layout.shape)
                if (above[self.allowed] > 1e-12).any():
                    self.fault(f"{where} is above the losses of the fit (by up to {float(above[self.allowed].max()):.3g})", "lower")
            elif hasattr(oracle, "radius"):
                radius = np.asarray(oracle.radius(version, context))
                if radius.shape != self.layout.shape or not ((radius >= 0) & (radius <= 1))[self.allowed].all():
                    self.fault(f"radius({version!r}, {context!r}): numbers in [0, 1] of shape {self.layout.shape} are needed", "radius")

    def answers(self, oracle: Any, version: Hashable) -> list[Array]:
        """Everything that a version determines, at each context."""
        found: list[Array] = []
        for context in self.checker.contexts:
            if hasattr(oracle, "losses"):
                found.append(np.array(oracle.lower(version, context)))
            elif hasattr(oracle, "radius"):
                found.append(np.array(oracle.radius(version, context)))
            else:
                found += [self.checker.answer(oracle, fit, context) for fit in oracle.candidates(version)]
        return found

    def check_same(self, what: str, first: Any, second: Any) -> None:
        if first.plausible() != second.plausible():
            self.fault(f"{what}: plausible() returns {first.plausible()!r} and {second.plausible()!r}")
        elif different(*(self.answers(oracle, oracle.plausible()[1]) for oracle in (first, second))):
            self.fault(what)


def different(first: list[Array], second: list[Array]) -> bool:
    """Whether two lists of arrays differ in a bit."""
    return len(first) != len(second) or any(a.tobytes() != b.tobytes() for a, b in zip(first, second, strict=True))
