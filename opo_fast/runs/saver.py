"""Saving of runs while they are played."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING

from .._support.checks import as_path
from .._support.interrupts import shielded
from ..errors import OpoError

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Saver"]

SAVE_SECONDS = 30.0
"""Seconds between two saves; more if a save takes so long that saving would take more than a twentieth of the time."""


class Saver:
    """Saves a run from time to time, so that a process that is killed loses little."""

    def __init__(self, run: Simulation, path: str | os.PathLike[str] | None) -> None:
        self.run, self.path = run, path
        if path is not None:
            # An agent that cannot be saved is refused before the first episode.
            run.state()
            folder = os.path.dirname(os.path.abspath(as_path(path, "save")))
            if not os.access(folder, os.W_OK | os.X_OK):
                raise OpoError(f"save: {folder!r} is no folder that can be written to: make it, or save somewhere else")
        self.saved = run.episode
        self._next = time.monotonic() + SAVE_SECONDS

    def save(self, *, now: bool = False) -> None:
        """Save if it is time, or at once with `now`."""
        began = time.monotonic()
        if self.path is None or not self.run.episode or not (now or began >= self._next):
            return
        with shielded():
            self.run.save(self.path)
            self.saved = self.run.episode
        ended = time.monotonic()
        self._next = ended + max(SAVE_SECONDS, 20 * (ended - began))

    def warn_of_loss(self) -> None:
        """Warn about what is lost after a second Ctrl-C stopped the run."""
        done = self.run.episode
        if self.path is not None and self.saved < done:
            warnings.warn(
                f"a second Ctrl-C stopped the run in the middle of episode {done + 1:,}: {as_path(self.path)!r} has the first "
                f"{self.saved:,} episodes, and those after them are not saved",
                stacklevel=4,
            )
