"""Finite classes of losses and dynamics: candidates in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy.typing as npt

from .._support.checks import MANY, as_integer, as_items, labels_of
from ..errors import OpoError
from ..model.layout import Layout
from .finite import FiniteDynamicsOracle, FiniteLossOracle
from .squared import FiniteSquaredOracle

__all__ = ["FiniteDynamicsClass", "FiniteLossClass"]

Array = npt.NDArray[Any]


class _FiniteClass:
    """Candidates in a fixed order; oracles break ties by the lowest index."""

    kind: str
    together: Callable[[Any], Any] | None = None
    """The function that returns all candidates at a context, if there is one."""

    def __init__(self, models: Sequence[Callable[[Any], Any]], names: Sequence[str] | None = None) -> None:
        self.models = tuple(as_items(models, "models", "callables model(context)", some=True))
        for i, model in enumerate(self.models):
            if not callable(model):
                raise OpoError(f"models[{i}] is a {type(model).__name__}: a callable model(context) is needed")
        n = len(self.models)
        self.names = labels_of([f"{self.kind} {i}" for i in range(n)] if names is None else names, n, "names", "models")
        self.size = float(len(self.models))

    @classmethod
    def from_function(cls, function: Callable[[Any], Any], n: int, names: Sequence[str] | None = None) -> Self:
        """A class of `n` candidates that are all returned by one function.

        Parameters
        ----------
        function : callable
            ``function(context)`` returns losses (n, n_states, A) or, for dynamics, H-1 dense arrays (n, S_h, A, S_{h+1}). It is
            called once for each context, instead of one function for each candidate.
        n : int
        names : sequence of str, optional

        Examples
        --------
        >>> losses = np.random.default_rng(0).random((10, 7, 3))
        >>> of.FiniteLossClass.from_function(lambda context: context * losses, 10)  # doctest: +SKIP
        """
        if not callable(function):
            raise OpoError(f"function is a {type(function).__name__}: a callable function(context) is needed")
        count = as_integer(n, "n", least=1, most=MANY)
        result = cls([partial(_candidate, function, cls.kind, i) for i in range(count)], names)
        result.together = function
        return result

    def __len__(self) -> int:
        return len(self.models)


def _candidate(function: Callable[[Any], Any], kind: str, i: int, context: Any) -> Any:
    """Candidate `i` of a function that returns all of them."""
    return function(context)[i] if kind == "loss" else [array[i] for array in function(context)]


class FiniteLossClass(_FiniteClass):
    """A finite class F of loss functions.

    Parameters
    ----------
    models : sequence of callables
        ``model(context)`` returns the mean losses, shape (n_states, A), in [0, 1], always the same for the same context.
    names : sequence of str, optional
    """

    kind = "loss"

    def oracle(self, layout: Layout, action_mask: Array | None) -> FiniteLossOracle:
        """A least-squares oracle without data."""
        return FiniteLossOracle(self, layout)


class FiniteDynamicsClass(_FiniteClass):
    """A finite class P of dynamics.

    Parameters
    ----------
    models : sequence of callables
        ``model(context)`` returns transitions as `opo_fast.LayeredMDP` takes them, or a prebuilt `Transitions`.
    names : sequence of str, optional
    """

    kind = "dynamics"

    def oracle(self, layout: Layout, action_mask: Array | None) -> FiniteDynamicsOracle:
        """A log-loss oracle without data."""
        return FiniteDynamicsOracle(self, layout)

    def squared_oracle(self, layout: Layout, action_mask: Array | None) -> FiniteDynamicsOracle:
        """A least-squares oracle without data (RM-UCDD)."""
        return FiniteSquaredOracle(self, layout)
