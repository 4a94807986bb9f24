"""OPO-CMDP (paper, Algorithm 1), self-tuning or with given parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import numpy.typing as npt

from .._support.checks import as_delta, as_integer, shown
from ..algorithm.parameters import parameters
from ..algorithm.rules import ChainRule, opo_rule
from ..algorithm.self_tuning import self_tuning_rule
from ..errors import OpoError
from ..model.contextual import Trajectory
from ..model.layout import Layout
from ..model.operations import Backend
from .base import check_layout, sizes_of
from .chain_agent import MEMORY, ChainAgent
from .oracle_agent import dynamics_oracle, loss_oracle

__all__ = ["OPO", "Tuning"]

Tuning = Literal["auto", "theory"]
PATIENCE = 100
"""Number of episodes after which an agent at the theory's constants warns that its policy is still uniform."""


class OPO(ChainAgent):
    """Optimistic policy optimization for contextual MDPs with offline regression oracles (paper, Algorithm 1).

    Episode t plays pi^t, built at the context from the fits 1..t-1, and then fits again on all trajectories.

    It needs no parameters. If both oracles have plausible sets, as most of this package's do, Q is the greater of
    Algorithm 1's estimate and a bound over all plausible models, and the learning rate of the exponential weights is AdaHedge's
    (see `opo_fast.algorithm.self_tuning`). If one of them has none, as the scikit-learn classes, it uses the paper's bonus with
    normalised constants, for which no bound is proved: where exploration is hard, such an agent may learn little.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        Function classes (`FiniteLossClass`, `FiniteDynamicsClass`, ...) or oracles.
    tuning : {"auto", "theory"}, optional
        "theory" is Algorithm 1 with the parameters of the main theorem, which keep the policy uniform at any practical
        T. Default: "auto", or by hand if one of the factors or parameters below is given.
    episodes : int, optional
        T of the theory's parameters. Needed for "theory", and by hand unless eta, beta_loss and beta_dynamics are all given.
        Without it "auto" uses the number of the episode, rounded up to a power of two.
    delta : float
        Failure probability, in [1e-100, 1): of the theory's parameters, and of the plausible sets, half for each class.
    bonus_scale, eta_scale : float, optional
        By hand: factors on the theory's betas and eta; 1 if not given.
    eta, beta_loss, beta_dynamics : float, optional
        By hand, instead of the theory's values; the scales do not apply to them.
    action_mask, backend, memory
        See `ChainAgent`.

    Attributes
    ----------
    tuning : {"auto", "theory", "by hand"}
    eta, beta_loss, beta_dynamics : float or None
        The values in use; None if they change from step to step ("auto").
    class_sizes : dict
        |F| and |P| in the theory's parameters.

    Raises
    ------
    OpoError
        On parameters out of range; in `policy` and `observe` on invalid models and trajectories.
    """

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        tuning: Tuning | None = None,
        episodes: int | None = None,
        delta: float = 0.05,
        bonus_scale: float | None = None,
        eta_scale: float | None = None,
        eta: float | None = None,
        beta_loss: float | None = None,
        beta_dynamics: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        check_layout(layout)
        if tuning is not None and tuning not in get_args(Tuning):
            raise OpoError(f"tuning is {shown(tuning)}: 'auto' or 'theory' is needed")
        scales = {"bonus_scale": bonus_scale, "eta_scale": eta_scale}
        given = {"eta": eta, "beta_loss": beta_loss, "beta_dynamics": beta_dynamics}
        by_hand = [name for name, value in {**scales, **given}.items() if value is not None]
        if tuning is not None and by_hand:
            raise OpoError(f"tuning is {tuning!r} and {by_hand[0]} is given: leave one of the two out")
        self.tuning = "by hand" if by_hand else tuning or "auto"
        delta = as_delta(delta)
        self.eta: float | None = None
        self.beta_loss: float | None = None
        self.beta_dynamics: float | None = None
        self.class_sizes = sizes = sizes_of(loss_class, dynamics_class)
        losses, dynamics = loss_oracle(loss_class, layout, action_mask), dynamics_oracle(dynamics_class, layout, action_mask)
        if self.tuning == "auto":
            rule = self._self_tuning(layout, episodes, sizes, delta, (losses, dynamics))
        else:
            factors = {name: 1.0 if value is None else value for name, value in scales.items()}
            rule = self._given(layout, episodes, given, lambda t: parameters(layout, t, **sizes, delta=delta, **factors))
        super().__init__(layout, losses, dynamics, rule, action_mask=action_mask, backend=backend, memory=memory)

    def observe(self, trajectory: Trajectory) -> None:
        """See `ChainAgent.observe`. Warns once, after `PATIENCE` episodes in which the theory's bonuses kept the policy uniform."""
        super().observe(trajectory)
        if self.tuning == "theory" and self.episode == PATIENCE:
            betas, h = self.rule.bonus(self.steps), self.layout.horizon
            # Every Q is 0 where the bonus is at least H however often a pair was visited.
            least = min(1.0, betas.beta_loss / 2 / PATIENCE) + 2 * h * min(1.0, float(betas.beta_dynamics[0]) / 2 / PATIENCE)
            if least >= h * (1 + 1e-6):
                warnings.warn(
                    f"after {PATIENCE} episodes every bonus is still above the greatest loss-to-go {h}, so the policy is uniform: the "
                    "theory's constants need more episodes than is practical; leave out tuning to learn",
                    stacklevel=2,
                )

    def _given(
        self, layout: Layout, episodes: int | None, given: dict[str, float | None], theory: Callable[[int], Iterable[float]]
    ) -> ChainRule:
        """The rule with the theorem's parameters or those given by hand."""
        eta, beta_loss, beta_dynamics = self._parameters(episodes, given, theory)
        self.eta, self.beta_loss, self.beta_dynamics = eta, beta_loss, beta_dynamics
        return opo_rule(layout, eta, beta_loss, beta_dynamics)

    def _self_tuning(
        self, layout: Layout, episodes: int | None, sizes: dict[str, float], delta: float, oracles: tuple[Any, Any]
    ) -> ChainRule:
        """The self-tuning rule; tells the oracles to keep plausible sets if both can."""
        self.planned = None if episodes is None else as_integer(episodes, "episodes", least=1, most=10**100)
        plausible = all(hasattr(oracle, "keep_plausible") for oracle in oracles)
        if plausible:
            for oracle in oracles:
                oracle.keep_plausible(delta / 2)
        return self_tuning_rule(layout, **sizes, delta=delta, episodes=self.planned, plausible=plausible)
