"""Environments: a contextual model with the classes that contain its truth, and the user's reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from .._support.checks import as_distribution, as_integer, as_items, as_number, as_real, having, instance, labels_of, shown
from .._support.lru import LRU
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.layered import LayeredMDP
from ..model.layout import Layout, as_mask
from ..model.names import Names
from ..oracles.finite_classes import FiniteDynamicsClass, FiniteLossClass
from .rewards import RewardMap

__all__ = ["Environment", "Noise", "PerContext"]

Array = npt.NDArray[Any]
Model = Callable[[Any], Any]

STORE = 1 << 28
"""Bytes of true models that an environment with endless contexts caches."""


class PerContext:
    """A candidate model for finitely many contexts: one prebuilt object (losses or `Transitions`) for each.

    Parameters
    ----------
    objects : sequence
        One per context; they are returned as they are, so that one dynamics keeps its identity.
    name : str
        What the candidate assumes.
    contexts : sequence, optional
        The contexts. Default: 0..n-1.
    """

    def __init__(self, objects: Sequence[Any], name: str, contexts: Sequence[Any] | None = None) -> None:
        self.objects, self.name = tuple(as_items(objects, "objects", "models")), name
        self._index = _indices(range(len(self.objects)) if contexts is None else as_items(contexts, "contexts", "contexts"))

    def __call__(self, context: Any) -> Any:
        return self.objects[_find(self._index, context)]

    def __repr__(self) -> str:
        return f"<{self.name}, {len(self.objects)} contexts>"


class Noise:
    """Observed losses that are uniform within `width` of their mean, and within [0, 1].

    Parameters
    ----------
    width : float
        Half the width, in [0, 1]; it shrinks near 0 and 1, so that the mean is exact. With 0 the mean itself is observed.
    """

    def __init__(self, width: float) -> None:
        self.width = as_number(width, "noise", most=1.0)

    def __call__(self, means: Array, uniforms: Array) -> Array:
        half = np.minimum(self.width, np.minimum(means, 1.0 - means))
        return np.asarray(np.clip(means + half * (2.0 * uniforms - 1.0), 0.0, 1.0))


class Environment:
    """A contextual MDP whose truth is a pair of candidates of its own model classes, which are therefore realizable.

    Parameters
    ----------
    layout : Layout
    loss_models, dynamics_models : sequence of callables
        The candidates ``model(context)`` of the two classes.
    true_loss, true_dynamics : int
        Which candidates are the truth. No learner may read them.
    contexts : sequence or callable
        The contexts, each hashable or an array; or ``contexts(rng)``, which draws one.
    probabilities : array_like, optional
        Those of a sequence of contexts; uniform by default.
    labels : sequence of str, optional
        Meaning of each context, for tables and plots.
    action_mask : array_like of bool, shape (n_states, A), optional
        Allowed pairs, the same in every context.
    reward_map : RewardMap, optional
        Converts losses back into the user's reward.
    steps : int, optional
        Number of steps in the source's own terms: the horizon without an added start layer. Default: the horizon.
    noise : Noise, optional
        Distribution of the observed losses. Default: Bernoulli.
    joint_losses : callable, optional
        Observed losses that depend on the next states; see `ContextualMDP`.
    state_names, action_names : sequence of str, optional
        Names of the layout's states, distinct within a layer, and of the actions.
    start_layer : bool
        Whether the first layer only draws the first state; see `Names`.
    name, source : str
        For tables; the source is where the numbers come from.

    Attributes
    ----------
    loss_class : FiniteLossClass
    dynamics_class : FiniteDynamicsClass
    contexts : tuple, or None if they are endless
    """

    def __init__(
        self,
        layout: Layout,
        loss_models: Sequence[Model],
        dynamics_models: Sequence[Model],
        *,
        true_loss: int = 0,
        true_dynamics: int = 0,
        contexts: Sequence[Any] | Callable[[np.random.Generator], Any],
        probabilities: npt.ArrayLike | None = None,
        labels: Sequence[str] | None = None,
        action_mask: npt.ArrayLike | None = None,
        reward_map: RewardMap | None = None,
        steps: int | None = None,
        noise: Noise | None = None,
        joint_losses: Callable[[Any, Array, Array, Array], Array] | None = None,
        state_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        start_layer: bool = False,
        name: str = "environment",
        source: str = "",
    ) -> None:
        instance(layout, "layout", Layout)
        self.layout, self.name, self.source = layout, name, source
        self.loss_models, self.dynamics_models = (
            tuple(as_items(models, kind, "callables model(context)", some=True))
            for models, kind in ((loss_models, "loss_models"), (dynamics_models, "dynamics_models"))
        )
        self.true_loss = as_integer(true_loss, "true_loss", least=0, most=len(self.loss_models) - 1)
        self.true_dynamics = as_integer(true_dynamics, "true_dynamics", least=0, most=len(self.dynamics_models) - 1)
        self.action_mask = as_mask(layout, action_mask)
        self.reward_map, self.steps = reward_map, layout.horizon if steps is None else as_integer(steps, "steps", least=1)
        if noise is not None:
            self.sample_losses = noise
        if joint_losses is not None:
            if noise is not None:
                raise OpoError("noise and joint_losses are both given: only one of them is needed")
            self.joint_losses = joint_losses
        known = Names(state_names, action_names, start_layer=start_layer)
        known.check(layout)
        self.start_layer = known.start_layer
        self.state_names, self.action_names = known.states, known.actions
        self._mdps: LRU[LayeredMDP] = LRU(STORE)
        self._draw = contexts if callable(contexts) else None
        self.contexts = None if callable(contexts) else tuple(as_items(contexts, "contexts", "contexts"))
        self.labels: tuple[str, ...] = ()
        self.probabilities: Array | None = None
        if self.contexts is None:
            return
        n = len(self.contexts)
        if not n:
            raise OpoError("contexts: at least one context is needed, got none")
        self._index = _indices(self.contexts)
        p = np.full(n, 1 / n) if probabilities is None else as_real(probabilities, "probabilities").astype(np.float64)
        self.probabilities = as_distribution(p, n, "probabilities", "context")
        self._cumulative, self._last = np.cumsum(p), int(np.flatnonzero(p)[-1])
        self.labels = labels_of([f"context {c}" for c in range(n)] if labels is None else labels, n, "labels", "contexts")

    def sample_context(self, rng: np.random.Generator) -> Any:
        """Draw a context; one of finitely many from one uniform random number."""
        having(rng, "rng", ("random",), "a numpy.random.Generator")
        if self.contexts is None:
            assert self._draw is not None
            return self._draw(rng)
        return self.contexts[min(int(np.searchsorted(self._cumulative, rng.random(), side="right")), self._last)]

    def mdp(self, context: Any) -> LayeredMDP:
        """The true model of a context."""
        if self.contexts is not None:
            _find(self._index, context)
        key = context_key(context)
        found = self._mdps.get(key)
        if found is None:
            losses = self.loss_models[self.true_loss](context)
            dynamics = self.dynamics_models[self.true_dynamics](context)
            found = LayeredMDP(self.layout, losses, dynamics, action_mask=self.action_mask)
            self._mdps.put(key, found, found.losses.nbytes + found.transitions.nbytes)
        return found

    @property
    def mdps(self) -> tuple[LayeredMDP, ...]:
        """The true models of finitely many contexts, in order."""
        return tuple(self.mdp(context) for context in self.contexts or ())

    @cached_property
    def loss_class(self) -> FiniteLossClass:
        """The loss candidates as a function class."""
        return FiniteLossClass(self.loss_models, names=[_name(model, i) for i, model in enumerate(self.loss_models)])

    @cached_property
    def dynamics_class(self) -> FiniteDynamicsClass:
        """The dynamics candidates as a function class."""
        return FiniteDynamicsClass(self.dynamics_models, names=[_name(model, i) for i, model in enumerate(self.dynamics_models)])

    def label(self, context: Any) -> str:
        """The meaning of a context."""
        if self.contexts is not None:
            return self.labels[_find(self._index, context)]
        if isinstance(context, np.ndarray):
            return np.array2string(context, precision=3, suppress_small=True, threshold=8, max_line_width=1000)
        return str(context)

    def reward_value(self, loss_value: npt.ArrayLike) -> Array:
        """A value (sum of losses of an episode) in the user's own reward; the value itself if there is no reward."""
        value = as_real(loss_value, "loss_value").astype(np.float64)
        return value if self.reward_map is None else self.reward_map.value(value, self.steps)

    def __repr__(self) -> str:
        count = "endless" if self.contexts is None else str(len(self.contexts))
        return f"<Environment {self.name!r}: {count} contexts, {self.layout!r}>"


def _name(model: Model, i: int) -> str:
    return str(getattr(model, "name", f"candidate {i}"))


def _indices(contexts: Any) -> dict[Any, int]:
    return {context_key(context): i for i, context in enumerate(contexts)}


def _find(index: dict[Any, int], context: Any) -> int:
    found = index.get(context_key(context))
    if found is None:
        known = f"one of the {len(index)} contexts" if len(index) > 12 else f"one of {list(index)}"
        raise OpoError(f"context is {shown(context)}: {known} is needed")
    return found
