"""The fits of the steps of policy chains."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from typing import NamedTuple

from ..errors import OpoError

__all__ = ["Fits", "History"]


class Fits(NamedTuple):
    """The fits of a step, and the versions of the plausible sets at that step, if there are any."""

    loss: Hashable
    dynamics: Hashable
    loss_version: Hashable = None
    dynamics_version: Hashable = None


class History:
    """The fits of steps k = 0, 1, ..., stored as runs of equal fits."""

    def __init__(self) -> None:
        self.runs: list[Fits] = []
        self.starts: list[int] = []
        self.length = 0

    def append(self, fits: Fits) -> None:
        """Add the fits of the next step."""
        if self.runs and self.runs[-1] == fits:
            self.length += 1
            return
        try:
            hash(fits)
        except TypeError:
            _refuse_unhashable(fits)
        self.runs.append(fits)
        self.starts.append(self.length)
        self.length += 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: int) -> Fits:
        return self.runs[self._run(k)]

    def _run(self, k: int) -> int:
        return bisect_right(self.starts, k) - 1

    def equal_steps(self, k: int, n: int) -> int:
        """Number of consecutive steps from k on, and before n, with the fits of step k."""
        run = self._run(k) + 1
        end = self.starts[run] if run < len(self.starts) else self.length
        return min(end, n) - k

    def dynamics(self, k: int, n: int) -> set[Hashable]:
        """The dynamics fits of steps k..n-1."""
        return {fits.dynamics for fits in self.between(k, n)}

    def between(self, k: int, n: int) -> list[Fits]:
        """The fits of steps k..n-1, one for each run."""
        return self.runs[self._run(k) : self._run(n - 1) + 1] if k < n else []


def _refuse_unhashable(fits: Fits) -> None:
    """Raise the error about the first of the fits that cannot be hashed."""
    names = "fit() of the losses oracle", "fit() of the dynamics oracle", "the losses oracle's version", "the dynamics oracle's version"
    for name, fit in zip(names, fits, strict=True):
        try:
            hash(fit)
        except TypeError:
            raise OpoError(f"{name} is a {type(fit).__name__}: it must be hashable") from None
