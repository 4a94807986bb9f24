"""Algorithm 1's inner loop at one context: the policy after a sequence of models, given at once or one by one."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, instance
from ..errors import OpoError
from ..model.arguments import Backend, check_backend, to_fill
from ..model.layered import LayeredMDP
from ..model.layout import Layout, as_mask
from ..model.transitions import Transitions
from . import algorithm1
from .engine import ChainEngine
from .history import Fits, History
from .next_steps import NextSteps, next_steps
from .rules import opo_rule

__all__ = ["PolicyChain", "policy_chain"]

Array = npt.NDArray[Any]

MEMORY = 1 << 31
"""Byte budget of a chain; past policies take at most half of it."""


class PolicyChain:
    """Algorithm 1's inner loop at one context, model by model.

    Each step evaluates the policy under its model with the losses f - b, Q being raised to 0, where b = min{1, (beta_loss / 2) / (1 + N)}
    + 2 H min{1, (beta_dynamics / 2) / (1 + N)} and N are the expected visits of the policies of all earlier steps under the model's
    dynamics; then the policy is multiplied by exp(-eta Q) and normalised.

    A step under dynamics that came before costs a few sweeps, however many steps there were. A step under new dynamics also computes the
    occupancies of all earlier policies under them; if `memory` does not hold these policies, the chain is computed again from its start.

    Parameters
    ----------
    layout : Layout
    eta, beta_loss, beta_dynamics : float
        Learning rate and exploration parameters, at least 0.
    action_mask : array_like of bool, shape (n_states, A), optional
        The mask of the models.
    memory : int
        Byte budget, at most half of which holds past policies. It never changes a result.

    Notes
    -----
    A chain can be copied and pickled, and a copy continues with the same bits. Pickle it together with the models that you will append,
    as in ``pickle.dumps((chain, mdp))``: a model that was saved apart from the chain has other transitions objects, so its dynamics would
    count as new ones.

    Examples
    --------
    >>> chain = of.PolicyChain(layout, eta=0.1, beta_loss=0.5, beta_dynamics=0.1)  # doctest: +SKIP
    >>> for model in models:  # doctest: +SKIP
    ...     chain.append(model)
    ...     policy = chain.policy()
    """

    def __init__(
        self,
        layout: Layout,
        *,
        eta: float,
        beta_loss: float,
        beta_dynamics: float,
        action_mask: npt.ArrayLike | None = None,
        memory: int = MEMORY,
    ) -> None:
        instance(layout, "layout", Layout)
        self.layout, self.action_mask = layout, as_mask(layout, action_mask)
        self._models, self._history = _Given(), History()
        rule = opo_rule(layout, eta, beta_loss, beta_dynamics)
        self._engine = ChainEngine(layout, self.action_mask, rule, self._models, as_integer(memory, "memory", least=0), alone=True)
        self._next: NextSteps | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_next": None}

    def __copy__(self) -> PolicyChain:
        # A shallow copy would share the history.
        return copy.deepcopy(self)

    def append(self, model: LayeredMDP) -> None:
        """Add the model f^k, P^k of the next step, of the chain's layout and mask.

        Dynamics count as unchanged if they are the same transitions object (see `LayeredMDP.with_losses`), losses if they are the
        `losses` of the same model. The chain keeps references to the models.
        """
        if type(model) is not LayeredMDP or model.layout is not self.layout or model.transitions.action_mask is not self.action_mask:
            _check_model(model, f"model of step {len(self) + 1}", self.layout, self.action_mask, "the chain")
        self._history.append(self._models.add(model))

    def __len__(self) -> int:
        return len(self._history)

    def __repr__(self) -> str:
        return f"<PolicyChain of {self.layout!r} after {len(self)} models>"

    def policy(self, *, out: Array | None = None) -> Array:
        """The policy after all models so far, shape (n_states, A); before the first model, the uniform policy.

        Parameters
        ----------
        out : ndarray of float64, shape (n_states, A), optional
            Array to be filled with the policy; C-contiguous.
        """
        with self._engine.lock:
            rows = self._rows()
            if out is None and self.action_mask is None:
                return rows.reshape(self.layout.shape).copy()
            full = to_fill(out, "out", self.layout.shape)
            if self.action_mask is None:
                full[...] = rows.reshape(self.layout.shape)
            else:
                full[...] = 0.0
                full[self.action_mask] = rows
            return full

    def _rows(self) -> Array:
        """The policy after all models, one number per row."""
        n, ready = self._history.length, self._next
        if ready is not None and ready.advance(n):
            return ready.chain.policy(0)
        self._next = None
        chain, _ = self._engine.chain(None, self._history, n)
        self._next = next_steps(chain, self._history)
        return chain.policy(0)


def policy_chain(
    history: Sequence[LayeredMDP],
    *,
    eta: float,
    beta_loss: float,
    beta_dynamics: float,
    backend: Backend = "numba",
) -> Array:
    """pi^{t+1} at one context from the models of steps k = 1..t (Algorithm 1, inner loop).

    `PolicyChain` does the same model by model, without starting again for each policy.

    Parameters
    ----------
    history : sequence of LayeredMDP
        The models f^k, P^k evaluated at the context, all with the same layout and mask. Dynamics count as equal if they are the same
        transitions object (see `LayeredMDP.with_losses`), losses if they are the `losses` of the same model.
    eta, beta_loss, beta_dynamics : float
        Learning rate and exploration parameters, at least 0.

    Returns
    -------
    ndarray, shape (n_states, A)
        The policy after t steps from the uniform policy; masked actions have probability exactly 0.
    """
    check_backend(backend)
    models = as_items(history, "history", "opo_fast.LayeredMDP")
    if not models:
        raise OpoError("history is empty: at least one model is needed (before the first, the policy is uniform)")
    instance(models[0], "history[0]", LayeredMDP)
    layout, mask = models[0].layout, models[0].action_mask
    if backend == "numpy":
        for k, model in enumerate(models):
            _check_model(model, f"history[{k}]", layout, mask, "history[0]")
        rule = opo_rule(layout, eta, beta_loss, beta_dynamics)
        return algorithm1.policy_chain(models, eta=rule.eta, beta_loss=rule.beta_loss, beta_dynamics=float(rule.beta_dynamics[0]))
    chain = PolicyChain(layout, eta=eta, beta_loss=beta_loss, beta_dynamics=beta_dynamics, action_mask=mask)
    for k, model in enumerate(models):
        _check_model(model, f"history[{k}]", layout, mask, "history[0]")
        chain.append(model)
    return chain.policy()


def _check_model(model: Any, name: str, layout: Layout, mask: Array | None, other: str) -> None:
    instance(model, name, LayeredMDP)
    if model.layout != layout:
        raise OpoError(f"{name} has another layout than {other}: {model.layout!r} instead of {layout!r}")
    mine = model.action_mask
    if mine is not mask and (mine is None or mask is None or not np.array_equal(mine, mask)):
        raise OpoError(f"{name} has another action mask than {other}")


class _Given:
    """The distinct losses and transitions of a chain's models, numbered in the order in which they came."""

    def __init__(self) -> None:
        self._losses: list[LayeredMDP] = []
        self._transitions: list[Transitions] = []
        self._number()

    def _number(self) -> None:
        # Identities belong to one process and one copy; the numbers, which the history and the engine keep, do not change.
        self._loss_numbers = {id(model.losses): i for i, model in enumerate(self._losses)}
        self._numbers = {id(transitions): i for i, transitions in enumerate(self._transitions)}

    def __getstate__(self) -> dict[str, Any]:
        return {"_losses": self._losses, "_transitions": self._transitions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._number()

    def add(self, model: LayeredMDP) -> Fits:
        """The numbers of a model's losses and transitions."""
        loss = self._loss_numbers.setdefault(id(model.losses), len(self._losses))
        if loss == len(self._losses):
            self._losses.append(model)
        dynamics = self._numbers.setdefault(id(model.transitions), len(self._transitions))
        if dynamics == len(self._transitions):
            self._transitions.append(model.transitions)
        return Fits(loss, dynamics)

    def losses(self, fit: Hashable, context: Any) -> Array:
        return self._losses[cast(int, fit)].row_losses

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        return self._transitions[cast(int, fit)]

    def lower(self, version: Hashable, context: Any) -> Array:
        raise NotImplementedError

    def candidates(self, version: Hashable) -> tuple[Hashable, ...] | None:
        raise NotImplementedError

    def radius(self, version: Hashable, context: Any) -> Array:
        raise NotImplementedError
