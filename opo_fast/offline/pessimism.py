"""Planning for the worst model that a log leaves plausible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number
from ..agents.base import State
from ..agents.oracle_agent import OracleAgent, make_oracle
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.layout import Layout
from ..model.reference import Solution, expected_next
from ..oracles import TabularLossClass
from ..oracles.log import TrajectoryLog
from ..oracles.schedule import add_all

__all__ = ["PessimisticPlan"]

Array = npt.NDArray[Any]


class PessimisticPlan(OracleAgent):
    """The greedy policy of an upper bound on Q that holds for all models that a log leaves plausible; it does not learn online.

    Q(s, a) = min{H - h + 1, u(s, a) + max_P (P V)(s, a)},  V(s) = min_a Q(s, a):  the pessimism of Y. Jin, Z. Yang and Z. Wang (Is
    pessimism provably efficient for offline RL?, ICML 2021) with the plausible sets of self-tuning OPO. u is the greatest plausible loss,
    and the maximum is over the plausible dynamics, separately for each state-action pair (rectangular sets; G. Iyengar, Robust dynamic
    programming, 2005). If a loss oracle has no ``upper``, u is its lower bound mirrored at the fit, f + (f - lower), and 1 where the lower
    bound is 0; the losses of tables are bounded through 1 - l. For dynamics without a list of candidates, the maximum is (P V)(s, a) of the
    fit plus the radius of the row times the span of V.

    If an oracle keeps no plausible set, counts bound its error: sqrt(log(2 pairs / delta) / (2 n(s, a))) is added to the fitted losses, or
    for the dynamics that times the span of V; n(s, a) counts the visits in the log (VI-LCB; P. Rashidinejad et al., NeurIPS 2021).

    Parameters
    ----------
    layout, loss_class, dynamics_class, action_mask
        See `OracleAgent`.
    delta : float
        With probability 1 - delta the bounds hold for the truth, if the classes contain it (and `penalty` is 1 or unused).
    penalty : float
        Factor on the terms with counts.
    """

    name = "pessimistic plan"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        delta: float = 0.05,
        penalty: float = 1.0,
        action_mask: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(layout, loss_class, dynamics_class, action_mask=action_mask)
        self.delta, self.penalty = as_number(delta, "delta", most=1.0, strict=True), as_number(penalty, "penalty")
        self.mirrored: Any = None
        if isinstance(loss_class, TabularLossClass):
            self.mirrored = make_oracle(loss_class, self.layout, self.action_mask, "loss_class", ("observe", "fit", "losses"))
        for oracle in (self.loss_oracle, self.dynamics_oracle, self.mirrored):
            if hasattr(oracle, "keep_plausible"):
                oracle.keep_plausible(self.delta / 2)
        self.visits = np.zeros(layout.shape)

    def warm_start(self, trajectories: Any, *, progress: bool | None = None) -> None:
        """See `OracleAgent.warm_start`."""
        log = TrajectoryLog.of(self.layout, trajectories, self.action_mask)
        super().warm_start(log, progress=progress)
        if self.mirrored is not None:
            add_all(self.mirrored, log.with_losses(1.0 - log.losses))
        self.visits = log.visits.astype(np.float64)

    def policy(self, context: Any) -> Array:
        """The pessimistic plan at `context`."""
        return np.array(self.plan(context).policy)

    def value(self, context: Any) -> float:
        """The upper bound on V(s_1) at `context`."""
        return float(self.plan(context).v[0])

    def plan(self, context: Any) -> Solution:
        """Q, V and policy at a context; computed once for each context and pair of fits."""
        key = (self.fits, context_key(context))
        found = self._plans.get(key)
        if found is None:
            found = self._backward(context)
            self.planning_calls += 1
            self._plans.put(key, found, sum(array.nbytes for array in found))
        return found

    def _backward(self, context: Any) -> Solution:
        layout = self.layout
        allowed = np.ones(layout.shape, bool) if self.action_mask is None else self.action_mask
        upper, (models, radius) = self._upper(context), self._dynamics(context)
        q, v, policy = np.zeros(layout.shape), np.zeros(layout.n_states), np.zeros(layout.shape)
        for h in reversed(range(layout.horizon)):
            layer = layout.layer(h)
            q[layer] = upper[layer]
            if h < layout.horizon - 1:
                following = v[layout.layer(h + 1)]
                worst = np.max([expected_next(model[h], following, q[layer].shape) for model in models], axis=0)
                q[layer] += np.minimum(worst + radius[layer] * np.ptp(following), following.max())
            q[layer] = np.where(allowed[layer], np.minimum(q[layer], layout.horizon - h), np.inf)
            best = q[layer].argmin(axis=1)
            policy[layer][np.arange(best.size), best] = 1.0
            v[layer] = q[layer].min(axis=1)
        return Solution(np.where(allowed, q, 0.0), v, policy)

    def _upper(self, context: Any) -> Array:
        """An upper bound on the losses, (n_states, A)."""
        oracle = self.loss_oracle
        if not hasattr(oracle, "keep_plausible"):
            return np.asarray(np.minimum(oracle.losses(self.fits[0], context) + self._width(), 1.0))
        fit, version = oracle.plausible()
        if self.mirrored is not None:
            return np.asarray(1.0 - self.mirrored.lower(self.mirrored.plausible()[1], context))
        if hasattr(oracle, "upper"):
            return np.asarray(oracle.upper(version, context))
        f, lower = (np.asarray(array) for array in (oracle.losses(fit, context), oracle.lower(version, context)))
        return np.asarray(np.where(lower > 0, np.minimum(2 * f - lower, 1.0), 1.0))

    def _dynamics(self, context: Any) -> tuple[list[Any], Array]:
        """The dynamics over which to maximise, and the radius of their rows, (n_states, A)."""
        oracle, fits, radius = self.dynamics_oracle, (self.fits[1],), np.zeros(self.layout.shape)
        if not hasattr(oracle, "keep_plausible"):
            radius = np.minimum(self._width(), 1.0)
        else:
            fit, version = oracle.plausible()
            if hasattr(oracle, "candidates"):
                fits = tuple(oracle.candidates(version))
            else:
                fits, radius = (fit,), np.asarray(oracle.radius(version, context))
        return [self.transitions(fit, context).arrays() for fit in fits], radius

    def _width(self) -> Array:
        pairs = self.layout.n_states * self.layout.n_actions
        rate = math.log(4 * pairs / self.delta) / 2
        return np.asarray(self.penalty * np.sqrt(rate / np.maximum(self.visits, 1.0)) + (self.visits == 0))

    def observe(self, trajectory: Any) -> None:
        """Refused, since the bounds only hold for a log."""
        raise OpoError("a pessimistic plan only learns from a log: call learn_from_logs with all data for a new plan")

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "delta": self.delta, "penalty": self.penalty}

    def _state(self) -> State:
        mirrored = {} if self.mirrored is None else {f"mirrored.{key}": value for key, value in self.mirrored.state().items()}
        return {**super()._state(), "visits": self.visits.copy(), **mirrored}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self.visits = np.array(state["visits"])
        if self.mirrored is not None:
            self.mirrored.restore({key.removeprefix("mirrored."): value for key, value in state.items() if key.startswith("mirrored.")})
