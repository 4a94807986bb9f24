"""What an environment carries beside its contextual model: the classes that hold its truth, and the user's reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cmdp import FiniteContexts
from ..errors import OpoError
from ..layers import LayeredMDP
from .rewards import RewardMap

__all__ = ["Environment", "PerContext"]

Array = npt.NDArray[Any]
Model = Callable[[Any], Any]


class PerContext:
    """A candidate model of contexts 0..n-1: a prebuilt object (losses or `Transitions`) for each.

    Parameters
    ----------
    objects : sequence
        One per context; handed out as they are, so that one dynamics keeps its identity.
    name : str
        What the candidate assumes.
    """

    def __init__(self, objects: Sequence[Any], name: str) -> None:
        self.objects, self.name = tuple(objects), name

    def __call__(self, context: Any) -> Any:
        if isinstance(context, (int, np.integer)) and 0 <= context < len(self.objects):
            return self.objects[int(context)]
        raise OpoError(f"context is {context!r}: a whole number from 0 to {len(self.objects) - 1} is needed")

    def __repr__(self) -> str:
        return f"<{self.name}, {len(self.objects)} contexts>"


class Environment(FiniteContexts):
    """A contextual MDP with finitely many contexts, and realizable model classes for it.

    Parameters
    ----------
    mdps, probabilities, labels, name
        As in `opo_fast.FiniteContexts`.
    loss_models, dynamics_models : sequence of callables, optional
        The candidates ``model(context)`` of the loss and the dynamics class; the truth is among them. Default: the truth
        alone.
    reward_map : RewardMap, optional
        Turns losses back into the user's reward.
    steps : int, optional
        Steps that are played in the source's own terms; the horizon, less an added start layer. Default: the horizon.
    source : str
        Where the numbers come from.

    Attributes
    ----------
    loss_class : FiniteLossClass
    dynamics_class : FiniteDynamicsClass
    action_mask : ndarray of bool, shape (n_states, A), or None
    true_loss, true_dynamics : int
        Which candidates are the truth. Nothing that learns may look at them.
    """

    def __init__(
        self,
        mdps: Sequence[LayeredMDP],
        probabilities: npt.ArrayLike | None = None,
        labels: Sequence[str] | None = None,
        name: str = "environment",
        *,
        loss_models: Sequence[Model] | None = None,
        dynamics_models: Sequence[Model] | None = None,
        true_loss: int = 0,
        true_dynamics: int = 0,
        reward_map: RewardMap | None = None,
        steps: int | None = None,
        source: str = "",
    ) -> None:
        super().__init__(mdps, probabilities, labels, name)
        first = self.mdps[0].action_mask
        for c, mdp in enumerate(self.mdps):
            mask = mdp.action_mask
            if mask is not first and (mask is None or first is None or not np.array_equal(mask, first)):
                raise OpoError(f"mdps[{c}] has another action_mask than mdps[0]: the allowed actions may not depend on the context")
        self.loss_models = tuple(loss_models or [PerContext([mdp.losses for mdp in self.mdps], "truth")])
        self.dynamics_models = tuple(dynamics_models or [PerContext([mdp.transitions for mdp in self.mdps], "truth")])
        self.true_loss, self.true_dynamics = true_loss, true_dynamics
        self.reward_map, self.source = reward_map, source
        self.steps = self.layout.horizon if steps is None else steps

    @property
    def action_mask(self) -> Array | None:
        """Allowed pairs (n_states, A) of every context, or None where all are."""
        return self.mdps[0].action_mask

    @cached_property
    def loss_class(self) -> Any:
        """The loss candidates as a `FiniteLossClass`."""
        from ..oracles.finite import FiniteLossClass

        return FiniteLossClass(self.loss_models, names=[_name(model, i) for i, model in enumerate(self.loss_models)])

    @cached_property
    def dynamics_class(self) -> Any:
        """The dynamics candidates as a `FiniteDynamicsClass`."""
        from ..oracles.finite import FiniteDynamicsClass

        return FiniteDynamicsClass(self.dynamics_models, names=[_name(model, i) for i, model in enumerate(self.dynamics_models)])

    def reward_value(self, loss_value: npt.ArrayLike) -> Array:
        """A value (sum of losses of an episode) in the user's own reward; the value itself where there is no reward."""
        value = np.asarray(loss_value, np.float64)
        return value if self.reward_map is None else self.reward_map.value(value, self.steps)

    def __repr__(self) -> str:
        return f"<Environment {self.name!r}: {len(self.mdps)} contexts, {self.layout!r}>"


def _name(model: Model, i: int) -> str:
    return str(getattr(model, "name", f"candidate {i}"))
