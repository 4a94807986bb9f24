"""The fits of the steps of policy chains."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable

from ..errors import OpoError

__all__ = ["History"]


class History:
    """The fits of steps k = 0, 1, ... as runs of equal pairs (loss fit, dynamics fit)."""

    def __init__(self) -> None:
        self.runs: list[tuple[Hashable, Hashable]] = []
        self.starts: list[int] = []
        self.length = 0

    def append(self, loss_fit: Hashable, dynamics_fit: Hashable) -> None:
        """Add the fits of the next step."""
        for name, fit in (("losses", loss_fit), ("dynamics", dynamics_fit)):
            try:
                hash(fit)
            except TypeError:
                raise OpoError(f"fit() of the {name} oracle gave a {type(fit).__name__}: something hashable is needed") from None
        if not self.runs or self.runs[-1] != (loss_fit, dynamics_fit):
            self.runs.append((loss_fit, dynamics_fit))
            self.starts.append(self.length)
        self.length += 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: int) -> tuple[Hashable, Hashable]:
        return self.runs[self._run(k)]

    def _run(self, k: int) -> int:
        return bisect_right(self.starts, k) - 1

    def equal_steps(self, k: int, n: int) -> int:
        """Number of steps from k on, before step n, that have the fits of step k."""
        run = self._run(k) + 1
        end = self.starts[run] if run < len(self.starts) else self.length
        return min(end, n) - k

    def dynamics(self, k: int, n: int) -> set[Hashable]:
        """The dynamics fits of steps k..n-1."""
        return {fit for _, fit in self.pairs(k, n)}

    def pairs(self, k: int, n: int) -> list[tuple[Hashable, Hashable]]:
        """The pairs of fits of the runs that steps k..n-1 lie in."""
        return self.runs[self._run(k) : self._run(n - 1) + 1] if k < n else []
