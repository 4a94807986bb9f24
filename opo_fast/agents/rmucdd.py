"""RM-UCDD (Levy and Mansour, AAAI 2023), and the minimum reachability that it assumes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_delta, as_integer, as_items, as_number, having
from ..algorithm.rules import rmucdd_rule
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.operations import Backend
from .base import check_layout, sizes_of
from .chain_agent import MEMORY, ChainAgent

__all__ = ["RMUCDD", "minimum_reachability", "rmucdd_parameters"]

Array = npt.NDArray[Any]
BLOCK = 1 << 22
"""Entries of a block in the backward inductions."""


class RMUCDD(ChainAgent):
    """Optimism from counted actions, if every policy reaches every state with probability at least p_min.

    Episodes 1..|A| play each action once in every state. In each later episode t, at its context, a chain is built for
    k = |A|+1..t. Let n(s, a) be one plus the number of policies i < k of this chain that choose a in s:

        b_loss = min{1, kappa_loss / (2 p_min n)},  b_dynamics = H min{2, sqrt|S_{h+1}| kappa_dynamics / (2 p_min n)}

    and pi^k is the optimum of (f^k - b_loss - b_dynamics, P^k). pi^t is played. Occupancies are never computed: counted
    actions replace them, because a pair is visited with probability at least p_min pi(a|s).

    Taken from the sources: least-squares oracles for losses *and* dynamics, the assumption, counted actions instead of
    occupancies, and the rate. The algorithm box was not available, so the rest is a reconstruction: the first
    |A| episodes and the greedy chain are those of UCCB (Xu and Zeevi), the template of the method; the bonus and its
    constants are derived below, and `bonus_scale` multiplies them. In the last layer the dynamics is known (the end
    state follows), so it has no bonus there. The least Q is chosen before V is raised to 0, so that unexplored
    actions do not tie. With masks, a state with fewer actions cycles through them.

    Parameters
    ----------
    layout : Layout
    loss_class
        A function class or an oracle, as for `OPO`.
    dynamics_class
        A class with ``squared_oracle(layout, action_mask)``, such as `FiniteDynamicsClass`, or a least-squares oracle.
    p_min : float
        Minimum reachability, in [0, 1]; `minimum_reachability` computes it from a true model. At 0 the assumption fails:
        there is a warning, and the largest possible value, 1 / (size of the largest layer), is used instead.
    episodes : int, optional
        T of the parameters; needed unless both kappas are given.
    delta : float
        Failure probability.
    bonus_scale : float
        Factor on both kappas. With 1 / sqrt(p_min) the regret depends on p_min as in the paper's rate.
    kappa_loss, kappa_dynamics : float, optional
        Values by hand, to which the scale does not apply.
    action_mask, backend, memory
        See `ChainAgent`.
    """

    name = "RM-UCDD"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        p_min: float,
        episodes: int | None = None,
        delta: float = 0.05,
        bonus_scale: float = 1.0,
        kappa_loss: float | None = None,
        kappa_dynamics: float | None = None,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        check_layout(layout)
        p_min = as_number(p_min, "p_min", most=1.0)
        if p_min == 0:
            p_min = 1.0 / max(layout.layer_sizes)
            warnings.warn(
                "p_min is 0: some policy never reaches some state, so RM-UCDD's assumption and regret bound do not hold; "
                f"{p_min:.3g} is used instead",
                stacklevel=2,
            )
        sizes, self.p_min = sizes_of(loss_class, dynamics_class), p_min
        self.kappa_loss, self.kappa_dynamics = self._parameters(
            episodes,
            {"kappa_loss": kappa_loss, "kappa_dynamics": kappa_dynamics},
            lambda t: rmucdd_parameters(layout, t, p_min=p_min, **sizes, delta=delta, bonus_scale=bonus_scale),
        )
        rule = rmucdd_rule(layout, self.kappa_loss, self.kappa_dynamics, p_min)
        dynamics = _LeastSquares(dynamics_class) if hasattr(dynamics_class, "oracle") else dynamics_class
        super().__init__(layout, loss_class, dynamics, rule, action_mask=action_mask, backend=backend, memory=memory)


class _LeastSquares:
    """A dynamics class whose oracle fits by least squares."""

    def __init__(self, dynamics_class: Any) -> None:
        if not hasattr(dynamics_class, "squared_oracle"):
            raise OpoError(
                f"dynamics_class is a {type(dynamics_class).__name__} without squared_oracle(...), by which RM-UCDD fits dynamics: a class "
                "with it, such as FiniteDynamicsClass, is needed"
            )
        self.oracle = dynamics_class.squared_oracle


def rmucdd_parameters(
    layout: Layout,
    episodes: int,
    *,
    p_min: float,
    loss_class_size: float,
    dynamics_class_size: float,
    delta: float = 0.05,
    bonus_scale: float = 1.0,
) -> tuple[float, float]:
    """kappa_loss and kappa_dynamics of RM-UCDD.

    These constants are derived here: the true visits are at least p_min n(s, a), so q |error| <= q kappa / (2 p_min n) +
    p_min n error^2 / (2 kappa). Summed, the first part is at most kappa |S||A| (1 + log T) / (2 p_min), the second the
    oracle's error over 2 kappa in each episode. kappa = sqrt(p_min T eps / (|S||A| log(T+1))) balances them, with
    eps = 68 H log(2 T^3 |F| / delta) for losses (OPO paper, Corollary 4.2) and the same with |P| for dynamics.
    """
    check_layout(layout)
    episodes = as_integer(episodes, "episodes", least=1, most=10**100)
    delta = as_delta(delta)
    p_min = as_number(p_min, "p_min", most=1.0)
    scale = as_number(bonus_scale, "bonus_scale") * math.sqrt(
        p_min * episodes / (layout.n_states * layout.n_actions * math.log(episodes + 1))
    )
    errors = [
        68 * layout.horizon * (math.log(2 / delta) + 3 * math.log(episodes) + math.log(as_number(size, name, least=1.0)))
        for size, name in ((loss_class_size, "loss_class_size"), (dynamics_class_size, "dynamics_class_size"))
    ]
    return scale * math.sqrt(errors[0]), scale * math.sqrt(errors[1])


def minimum_reachability(model: Any, contexts: Iterable[Any] | None = None) -> float:
    """The true p_min of an environment: the least probability of reaching a state, over states, contexts and policies.

    Parameters
    ----------
    model : LayeredMDP or ContextualMDP
    contexts : iterable, optional
        Contexts of a contextual model. Default: all, if there are finitely many.

    Returns
    -------
    float
        Computed by one backward induction per state, for many states of a layer at once; 0 if some state can be avoided.
    """
    if isinstance(model, LayeredMDP):
        return _minimum_reachability(model)
    having(model, "model", ("mdp",), "a LayeredMDP or ContextualMDP")
    if contexts is None:
        contexts = listed_contexts(model)
        if contexts is None:
            raise OpoError("contexts is missing: this environment does not list its contexts, so pass those to consider")
    least = 1.0
    for context in as_items(contexts, "contexts", "contexts"):
        least = min(least, _minimum_reachability(model.mdp(context)))
        if least == 0.0:
            break
    return least


def listed_contexts(cmdp: Any) -> Any:
    """All contexts of an environment, or None if it does not list them."""
    contexts = getattr(cmdp, "contexts", None)
    if contexts is None and hasattr(cmdp, "mdps") and len(cmdp.mdps):
        return range(len(cmdp.mdps))
    return contexts


def _minimum_reachability(mdp: LayeredMDP) -> float:
    layout, arrays = mdp.layout, mdp.transitions.arrays()
    allowed = np.ones(layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    least = 1.0
    together = max(1, BLOCK // (max(layout.layer_sizes) * layout.n_actions))
    for target in range(1, layout.horizon):
        size = layout.layer_sizes[target]
        for first in range(0, size, together):
            # Row s of `reach`: the least probabilities of getting from s to some states of the target layer.
            reach: Array = np.eye(size, min(together, size - first), -first)
            for h in range(target - 1, -1, -1):
                array = arrays[h] if sp.issparse(arrays[h]) else np.reshape(arrays[h], (-1, reach.shape[0]))
                ahead = np.asarray(array @ reach).reshape(layout.layer_sizes[h], layout.n_actions, -1)
                reach = np.where(allowed[layout.layer(h)][:, :, None], ahead, np.inf).min(axis=1)
            least = min(least, float(reach.min()))
            if least == 0.0:
                return 0.0
    return least
