"""Contextual bandits: H = 1 and one state, for which OPO-CMDP and RM-UCDD are known algorithms, and three other algorithms."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_array, as_delta, as_number, as_real, pair_of
from .._support.fields import Fields
from ..errors import OpoError
from ..model.layout import Layout
from ..model.operations import Backend
from ..oracles.finite_classes import FiniteDynamicsClass
from .base import SOURCE, State, check_layout, checked_fit
from .chain_agent import MEMORY
from .opo import OPO
from .oracle_agent import OracleAgent
from .rmucdd import RMUCDD

__all__ = ["FALCON", "POCMAB", "RegCB", "SquareCB", "UCCB", "inverse_gap_weights"]

Array = npt.NDArray[Any]


def _end_follows(context: Any) -> list[Any]:
    return []


NO_DYNAMICS = FiniteDynamicsClass([_end_follows], names=["the end state follows"])
"""The dynamics of a bandit."""


def check_bandit(layout: Layout) -> None:
    """Refuse a layout with more than one state."""
    check_layout(layout)
    if layout.layer_sizes != (1,):
        raise OpoError(f"layout is {layout!r}: Layout([1], n_actions), that of a bandit (H = 1 and one state), is needed")


class POCMAB(OPO):
    """OPO-CMDP for bandits: b = min{1, (beta_loss/2) / (1 + sum_{i<k} pi^i(a))}, and no bonus for the known dynamics.

    Parameters
    ----------
    layout : Layout
        ``Layout([1], n_actions)``.
    loss_class
        A function class or an oracle.
    **options
        See `OPO`.
    """

    name = "PO-CMAB"

    def __init__(self, layout: Layout, loss_class: Any, **options: Any) -> None:
        check_bandit(layout)
        super().__init__(layout, loss_class, NO_DYNAMICS, beta_dynamics=0.0, **options)


class UCCB(RMUCDD):
    """Upper counterfactual confidence bounds (Xu and Zeevi): RM-UCDD with H = 1 and p_min = 1.

    After one round per action, in round t at a context, for k = |A|+1..t: a^k = argmin of f^k(a) - beta / n(a), where n(a) is
    one plus the number of earlier a^i = a in this chain; a^t is played.

    beta = sqrt(17 T log(2 |F| T^3 / delta) / |A|) is the paper's value at T for all rounds (the paper lets it grow with the
    round; quoted from memory). As in RM-UCDD the bonus is at most 1 and f - bonus at least 0; this only affects the choice
    among actions about which nothing is known yet, of which the lowest is played.

    Parameters
    ----------
    layout : Layout
        ``Layout([1], n_actions)``.
    loss_class
        A function class or an oracle.
    episodes : int, optional
        T; needed unless beta is given.
    delta : float
        Failure probability.
    bonus_scale : float
        Factor on beta.
    beta : float, optional
        Value by hand.
    action_mask, backend, memory
        See `ChainAgent`.
    """

    name = "UCCB"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        *,
        episodes: int | None = None,
        delta: float = 0.05,
        bonus_scale: float = 1.0,
        beta: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        check_bandit(layout)
        probability, scale = as_delta(delta), as_number(bonus_scale, "bonus_scale")

        def theory(t: int) -> list[float]:
            log_term = math.log(2 / probability) + _log_size(loss_class) + 3 * math.log(t)
            return [scale * math.sqrt(17 * t * log_term / layout.n_actions)]

        (self.beta,) = self._parameters(episodes, {"beta": beta}, theory)
        super().__init__(
            layout,
            loss_class,
            NO_DYNAMICS,
            p_min=1.0,
            kappa_loss=2 * self.beta,
            kappa_dynamics=0.0,
            action_mask=action_mask,
            backend=backend,
            memory=memory,
        )


def inverse_gap_weights(losses: Array, gamma: float, allowed: Array | None = None) -> Array:
    """Probabilities of actions by inverse gap weighting (Abe and Long; Foster and Rakhlin).

    1 / (K + gamma (loss - least loss)) for all but the best action, K being the number of allowed ones; the best (the first
    in a tie) gets the rest.

    Parameters
    ----------
    losses : ndarray, shape (A,)
    gamma : float
        At least 0; 0 is uniform.
    allowed : ndarray of bool, shape (A,), optional
    """
    losses, gamma = as_real(losses, "losses"), as_number(gamma, "gamma")
    allowed = np.ones(losses.shape, bool) if allowed is None else as_array(allowed, "allowed")
    if losses.ndim != 1 or allowed.shape != losses.shape or allowed.dtype != np.bool_ or not allowed.any():
        raise OpoError(
            f"losses and allowed have shapes {losses.shape}, {allowed.shape} and dtypes {losses.dtype}, {allowed.dtype}: "
            "(A,) numbers and (A,) booleans, at least one of them true, are needed"
        )
    considered = np.where(allowed, losses, np.inf)
    best = int(considered.argmin())
    weights = np.where(allowed, 1.0 / (allowed.sum() + gamma * (losses - losses[best])), 0.0)
    weights[best] = 0.0
    weights[best] = 1.0 - weights.sum()
    return weights


class _Bandit(OracleAgent):
    """A bandit that computes probabilities of actions from the losses of one fit."""

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        *,
        delta: float,
        action_mask: npt.ArrayLike | None,
        backend: Backend,
    ) -> None:
        check_bandit(layout)
        self.delta = as_delta(delta)
        self.log_size = _log_size(loss_class)
        super().__init__(layout, loss_class, NO_DYNAMICS, action_mask=action_mask, backend=backend)

    @property
    def allowed(self) -> Array | None:
        return None if self.action_mask is None else self.action_mask[0]

    def _predicted(self, fit: Hashable, context: Any) -> Array:
        """Losses of all actions, shape (A,)."""
        losses: Array = np.asarray(self.loss_oracle.losses(fit, context), np.float64)[0]
        return losses


class SquareCB(_Bandit):
    """Inverse gap weighting on the newest fit (Foster and Rakhlin).

    gamma = sqrt(|A| T / (R + log(2/delta))) with R = 2 log|F|, the regret of online regression over a finite class in
    the theory (constants quoted from memory). The oracle here is least squares on all data instead of an online one, as is
    usual in practice for finite and linear classes.

    Parameters
    ----------
    layout : Layout
        ``Layout([1], n_actions)``.
    loss_class
        A function class or an oracle.
    episodes : int, optional
        T; needed unless `schedule` is given.
    delta : float
        Failure probability.
    eta_scale : float
        Factor on gamma: larger is greedier.
    schedule : (float, float), optional
        gamma_t = scale * t^exponent in round t instead; (10, 0.5) is the default in Vowpal Wabbit.
    action_mask, backend
        See `OracleAgent`.
    """

    name = "SquareCB"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        *,
        episodes: int | None = None,
        delta: float = 0.05,
        eta_scale: float = 1.0,
        schedule: tuple[float, float] | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
    ) -> None:
        super().__init__(layout, loss_class, delta=delta, action_mask=action_mask, backend=backend)
        gamma, exponent = (None, 0.0) if schedule is None else pair_of(schedule, "schedule", "(scale, exponent)")
        log_term = 2 * self.log_size + math.log(2 / self.delta)
        (gamma,) = self._parameters(episodes, {"schedule[0]": gamma}, lambda t: [math.sqrt(layout.n_actions * t / log_term)])
        self.schedule = gamma * as_number(eta_scale, "eta_scale"), as_number(exponent, "schedule[1]")

    @property
    def gamma(self) -> float:
        """gamma of the next round."""
        return self.schedule[0] * math.pow(self.episode + 1, self.schedule[1])

    def policy(self, context: Any) -> Array:
        """The probabilities of the next round, shape (1, A)."""
        return inverse_gap_weights(self._predicted(self.fits[0], context), self.gamma, self.allowed)[None]

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "schedule": list(self.schedule)}


class FALCON(_Bandit):
    """Inverse gap weighting on a fit that changes only at the ends of epochs (Simchi-Levi and Xu).

    Epoch m ends with round 2^m. In the first one all actions have equal probability. In epoch m the losses are those of the
    least-squares fit on the n = 2^(m-1) rounds before it, and gamma = (1/30) sqrt(|A| n / log(|F| n / delta)) (constants quoted
    from memory).

    Parameters
    ----------
    layout : Layout
        ``Layout([1], n_actions)``.
    loss_class
        A function class or an oracle.
    delta : float
        Failure probability.
    eta_scale : float
        Factor on gamma; the theory's 1/30 is cautious.
    action_mask, backend
        See `OracleAgent`.
    """

    name = "FALCON"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        *,
        delta: float = 0.05,
        eta_scale: float = 1.0,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
    ) -> None:
        super().__init__(layout, loss_class, delta=delta, action_mask=action_mask, backend=backend)
        self.eta_scale = as_number(eta_scale, "eta_scale")
        self.epoch_fit: Hashable = self.fits[0]

    @property
    def gamma(self) -> float:
        """gamma of the next round's epoch."""
        if self.episode < 2:
            return 0.0
        n = 1 << (self.episode.bit_length() - 1)
        log_term = self.log_size + math.log(n / self.delta)
        return self.eta_scale / 30 * math.sqrt(self.layout.n_actions * n / log_term)

    def observe(self, trajectory: Any) -> None:
        """Add one round; the fit changes at the end of an epoch."""
        super().observe(trajectory)
        if self.episode >= 2 and self.episode & (self.episode - 1) == 0:
            self.epoch_fit = self.fits[0]

    def policy(self, context: Any) -> Array:
        """The probabilities of the next round, shape (1, A)."""
        return inverse_gap_weights(self._predicted(self.epoch_fit, context), self.gamma, self.allowed)[None]

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "eta_scale": self.eta_scale, "delta": self.delta}

    def _state(self) -> State:
        return {**super()._state(), "epoch fit": self.epoch_fit}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self.epoch_fit = checked_fit(self.loss_oracle, Fields(state, SOURCE).value("epoch fit"), "state['epoch fit']")


class RegCB(_Bandit):
    """Optimism over all functions that the data do not exclude (Foster, Agarwal, Dudik, Luo and Schapire), one bound per action.

    Plays the action with the least min{f(a): f in F, excess squared error of f <= radius}. radius = log(|F|/delta)/2: for
    losses in [0, 1] the set contains the truth in all rounds with probability 1 - delta, since exp(2 sum (2 g e - g^2)) is a
    supermartingale, where g is the error of f and e the noise, with variance proxy 1/4 (derived here; the paper's constants
    are larger).

    Parameters
    ----------
    layout : Layout
        ``Layout([1], n_actions)``.
    loss_class
        A class or an oracle with ``lower_bound(context, radius)``, as finite and linear classes have.
    delta : float
        Failure probability.
    bonus_scale : float
        Factor on the radius.
    action_mask, backend
        See `OracleAgent`.
    """

    name = "RegCB"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        *,
        delta: float = 0.05,
        bonus_scale: float = 1.0,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
    ) -> None:
        super().__init__(layout, loss_class, delta=delta, action_mask=action_mask, backend=backend)
        if not hasattr(self.loss_oracle, "lower_bound"):
            raise OpoError(f"loss_class is a {type(loss_class).__name__}: an oracle with lower_bound(context, radius) is needed")
        self.allowed_excess = as_number(bonus_scale, "bonus_scale") * (self.log_size - math.log(self.delta)) / 2

    def lower_bound(self, context: Any) -> Array:
        """The least loss of each action over the functions that are left, shape (A,)."""
        bounds: Array = np.asarray(self.loss_oracle.lower_bound(context, self.allowed_excess), np.float64)[0]
        return bounds

    def value(self, context: Any) -> float:
        """The least of the lower bounds."""
        bounds = self.lower_bound(context)
        return float((bounds if self.allowed is None else bounds[self.allowed]).min())

    def policy(self, context: Any) -> Array:
        """The action with the least lower bound (the first in a tie); shape (1, A)."""
        bounds = self.lower_bound(context)
        best = (bounds if self.allowed is None else np.where(self.allowed, bounds, np.inf)).argmin()
        policy: Array = self.uniform() * 0.0
        policy[0, best] = 1.0
        return policy

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "radius": self.allowed_excess}


def _log_size(loss_class: Any) -> float:
    return math.log(as_number(getattr(loss_class, "size", 1.0), "loss_class.size", least=1.0))
