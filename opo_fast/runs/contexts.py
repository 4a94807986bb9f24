"""The contexts of a run with too many to list: a digest of each, which tells them apart, and its coordinates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.fields import Fields
from ..model.contextual import context_key

__all__ = ["LISTED", "ManyContexts", "Seen", "coordinates", "joined"]

Array = npt.NDArray[Any]

LISTED = 10_000
"""A result lists its contexts up to this number."""
COORDINATES = 8
"""Coordinates of each context that are kept if there are more."""
_BYTES = 16


class ManyContexts(NamedTuple):
    """Distinct contexts in order of first appearance.

    Attributes
    ----------
    digests : ndarray of uint64, shape (n, 2)
        Equal for equal contexts, in every process.
    points : ndarray, shape (n, d), or None
        The first coordinates, at most 8, if the contexts are numbers or vectors of one length.
    """

    digests: Array
    points: Array | None

    @classmethod
    def of(cls, state: Any, n: int) -> ManyContexts:
        """The `n` contexts of a saved result, checked."""
        fields = Fields(state, "what SimulationResult.save wrote", "many")
        digests = fields.value("digests")
        good = isinstance(digests, np.ndarray) and digests.dtype == np.uint64 and digests.shape == (n, 2)
        fields.check("digests", good, f"is no array of uint64 of shape ({n}, 2)")
        return cls(digests, None if fields.value("points") is None else fields.numbers("points", (n, None)))


class Seen:
    """Collects distinct contexts."""

    def __init__(self, contexts: Iterable[Any] = ()) -> None:
        self._digests = bytearray()
        self._points: list[tuple[float, ...]] | None = []
        for context in contexts:
            self.add(context, context_key(context))

    def add(self, context: Any, key: Any) -> None:
        """Add a new context; `key` is its `context_key`."""
        self._digests += hashlib.blake2b(repr(key).encode(), digest_size=_BYTES).digest()
        if self._points is not None:
            point = coordinates(context)
            if point is None or (self._points and len(point) != len(self._points[0])):
                self._points = None
            else:
                self._points.append(point)

    def many(self) -> ManyContexts:
        """All contexts that were added."""
        digests = np.frombuffer(bytes(self._digests), "<u8").astype(np.uint64).reshape(-1, 2)
        return ManyContexts(digests, np.array(self._points) if self._points else None)


def coordinates(context: Any) -> tuple[float, ...] | None:
    """The first coordinates of a number or a vector; None for anything else."""
    if isinstance(context, np.ndarray):
        return tuple(context.ravel()[:COORDINATES].tolist()) if context.dtype.kind in "iuf" and context.size else None
    listed = context if isinstance(context, tuple) else (context,)
    good = listed and all(isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool) for x in listed)
    return tuple(float(x) for x in listed[:COORDINATES]) if good else None


def joined(first: ManyContexts, later: ManyContexts) -> tuple[ManyContexts, Array]:
    """The distinct contexts of two runs together, and for each of `later` its number among them."""
    numbers = {digest.tobytes(): i for i, digest in enumerate(first.digests)}
    found = np.empty(len(later.digests), np.int64)
    new: list[int] = []
    for i, digest in enumerate(later.digests):
        found[i] = numbers.setdefault(digest.tobytes(), len(numbers))
        if found[i] == len(first.digests) + len(new):
            new.append(i)
    points = None
    if first.points is not None and later.points is not None and first.points.shape[1] == later.points.shape[1]:
        points = np.concatenate([first.points, later.points[new]])
    return ManyContexts(np.concatenate([first.digests, later.digests[new]]), points), found
