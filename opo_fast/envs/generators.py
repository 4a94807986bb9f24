"""Generated environments: the combination lock, and random contextual MDPs with realizable classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import MANY, as_integer, as_number, as_real, shown
from .._support.memory import check_room
from ..errors import OpoError
from ..model.layout import Layout
from ..model.transitions import Transitions
from .environment import Environment, Noise, PerContext

__all__ = ["combination_lock", "random_finite", "random_linear", "random_softmax"]

Array = npt.NDArray[Any]


def combination_lock(
    horizon: int = 6,
    n_actions: int = 3,
    n_contexts: int = 5,
    *,
    path_cost: float = 0.5,
    n_dynamics: int = 6,
    seed: int = 0,
) -> Environment:
    """A path that costs a little at each step and pays only at its end, with a code that depends on the context.

    Each layer after the first has two states, on the path and off it. On the path, the code's action stays on it, and any
    other action leaves it for good. A step on the path costs path_cost / (H - 2) in the layers between the first and the
    last; off the path it costs nothing. In the last layer the code's action on the path costs 0, and everything else costs 1.
    So the optimum is `path_cost`, leaving at once costs 1, and the code has n_actions ** horizon possible values.

    Loss candidates: the first says that the path never pays, the others that it pays for some last action. Dynamics
    candidates have other codes for the path; the truth is in the middle of both classes. A learner that believes the first
    candidate leaves at once and never sees data that would refute it: greedy learners and OPO-CMDP without a bonus have
    linear regret 1 - path_cost per episode, like the uniform policy.

    Parameters
    ----------
    horizon : int
        At least 3.
    n_actions : int
        At least 2.
    n_contexts : int
        Contexts, equally likely, each with its own code.
    path_cost : float
        Cost of the whole path, in (0, 1).
    n_dynamics : int
        Number of candidate dynamics.
    seed : int
        Seed of the codes.

    Returns
    -------
    Environment
    """
    horizon = as_integer(horizon, "horizon", least=3, most=MANY)
    n_actions = as_integer(n_actions, "n_actions", least=2)
    n_contexts = as_integer(n_contexts, "n_contexts", least=1, most=MANY)
    n_dynamics = as_integer(n_dynamics, "n_dynamics", least=1, most=MANY)
    cost = as_number(path_cost, "path_cost", most=1.0, strict=True) / (horizon - 2)
    layout = Layout([1] + [2] * (horizon - 1), n_actions)
    _check_candidates(layout, n_contexts * (n_actions + 1), n_contexts * n_dynamics)
    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    codes = rng.integers(n_actions, size=(n_dynamics, n_contexts, horizon - 1))
    last = rng.integers(n_actions, size=n_contexts)
    true_dynamics = n_dynamics // 2
    dynamics = [
        PerContext([_lock_dynamics(layout, code) for code in codes[i]], "truth" if i == true_dynamics else f"another code ({i})")
        for i in range(n_dynamics)
    ]
    payers: list[tuple[str, list[int | None]]] = [("never pays", [None] * n_contexts)]
    payers += [(f"pays for the last action + {k}", [int(a + k) % n_actions for a in last]) for k in range(1, n_actions)]
    true_loss = (len(payers) + 1) // 2
    payers.insert(true_loss, ("truth", [int(a) for a in last]))
    losses = [PerContext([_lock_losses(layout, cost, payer) for payer in each], name) for name, each in payers]
    return Environment(
        layout,
        losses,
        dynamics,
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=range(n_contexts),
        name="combination-lock",
        source="generated; a hard exploration problem",
    )


def _lock_dynamics(layout: Layout, code: Array) -> Transitions:
    arrays = []
    for h, key in enumerate(code):
        block = np.zeros((layout.layer_sizes[h], layout.n_actions, 2))
        block[:, :, 1] = 1.0
        block[0, key] = [1.0, 0.0]
        arrays.append(block)
    return Transitions(layout, arrays)


def _lock_losses(layout: Layout, cost: float, payer: int | None) -> Array:
    losses = np.zeros(layout.shape)
    losses[layout.offsets[1:-2]] = cost
    losses[-2:] = 1.0
    if payer is not None:
        losses[-2, payer] = 0.0
    return losses


def random_finite(
    horizon: int = 5,
    n_states: int = 4,
    n_actions: int = 3,
    n_contexts: int = 5,
    *,
    n_losses: int = 10,
    n_dynamics: int = 10,
    successors: int | None = None,
    gap: float = 0.0,
    noise: float | None = None,
    seed: int = 0,
) -> Environment:
    """A random contextual MDP with finite classes of independent candidates; the truth is in the middle of both classes.

    Transition rows are uniform on the simplex over their successors, mean losses are uniform in [0, 1].

    Parameters
    ----------
    horizon, n_states, n_actions : int
        Layers; states in each layer after the first; actions.
    n_contexts : int
        Contexts, equally likely.
    n_losses, n_dynamics : int
        Numbers of candidates.
    successors : int, optional
        Number of next states with positive probability for each pair, the same ones in every candidate. Default: all.
    gap : float
        In every state and context of the truth, Q of every action except the best exceeds V by at least this much.
    noise : float, optional
        Observed losses are uniform within this distance of their mean (see `Noise`). Default: Bernoulli.
    seed : int

    Returns
    -------
    Environment
    """
    n_contexts = as_integer(n_contexts, "n_contexts", least=1, most=MANY)
    true_loss, true_dynamics = _middle(n_losses, "n_losses"), _middle(n_dynamics, "n_dynamics")
    layout, rng, support = _frame(horizon, n_states, n_actions, successors, seed, n_contexts * n_losses, n_contexts * n_dynamics)
    dynamics = [
        PerContext([Transitions(layout, _random_rows(layout, support, rng)) for _ in range(n_contexts)], _title(i, true_dynamics))
        for i in range(n_dynamics)
    ]
    losses = []
    for i in range(n_losses):
        each = [rng.random(layout.shape) for _ in range(n_contexts)]
        if i == true_loss and as_number(gap, "gap", most=1.0) > 0:
            each = [_with_gap(layout, dynamics[true_dynamics](c), gap, rng) for c in range(n_contexts)]
        losses.append(PerContext(each, _title(i, true_loss)))
    return Environment(
        layout,
        losses,
        dynamics,
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=range(n_contexts),
        noise=None if noise is None else Noise(noise),
        name="random-finite",
        source="generated",
    )


def random_linear(
    horizon: int = 5,
    n_states: int = 4,
    n_actions: int = 3,
    dimension: int = 3,
    *,
    n_contexts: int | None = 8,
    n_losses: int = 10,
    n_dynamics: int = 10,
    successors: int | None = None,
    noise: float | None = None,
    seed: int = 0,
) -> Environment:
    """A random contextual MDP that is linear in the context, a vector of `dimension` weights in the simplex.

    Losses are f_c(s, a) = <c, theta(s, a)> with theta in [0, 1]^d, transitions P_c = sum_i c_i P_i. Both are realizable in
    the linear and mixture classes of this dimension. The environment's own finite classes contain the true parameters and
    random others.

    Parameters
    ----------
    horizon, n_states, n_actions, n_losses, n_dynamics, successors, noise, seed
        As in `random_finite`.
    dimension : int
        d, the number of features.
    n_contexts : int, optional
        Number of contexts, drawn once, uniformly from the simplex. None: a new context in each episode.

    Returns
    -------
    Environment
        Its contexts are arrays of shape (d,). ``loss_models[true_loss].theta``, shape (n_states, A, d), and
        ``dynamics_models[true_dynamics].parts``, d lists of H-1 arrays, are the true parameters.
    """
    d = as_integer(dimension, "dimension", least=1, most=MANY)
    true_loss, true_dynamics = _middle(n_losses, "n_losses"), _middle(n_dynamics, "n_dynamics")
    layout, rng, support = _frame(horizon, n_states, n_actions, successors, seed, d * n_losses, d * n_dynamics)
    losses = [LinearLosses(rng.random((*layout.shape, d)), _title(i, true_loss)) for i in range(n_losses)]
    dynamics = [
        MixtureDynamics([_random_rows(layout, support, rng) for _ in range(d)], _title(i, true_dynamics)) for i in range(n_dynamics)
    ]
    contexts = _Simplex(d)
    return Environment(
        layout,
        losses,
        dynamics,
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=_some(contexts, n_contexts, rng),
        noise=None if noise is None else Noise(noise),
        name="random-linear",
        source="generated",
    )


def random_softmax(
    horizon: int = 5,
    n_states: int = 4,
    n_actions: int = 3,
    dimension: int = 3,
    *,
    n_contexts: int | None = 8,
    strength: float = 2.0,
    n_losses: int = 10,
    n_dynamics: int = 10,
    successors: int | None = None,
    noise: float | None = None,
    seed: int = 0,
) -> Environment:
    """A random contextual MDP whose dynamics and losses are generalised linear in the context, a vector in [-1, 1]^d.

    Transitions are P_c(s' | s, a) = softmax over s' of <w(s, a, s'), c>, losses f_c(s, a) = 1 / (1 + exp(-<theta(s, a), c>)).

    Parameters
    ----------
    horizon, n_states, n_actions, dimension, n_contexts, n_losses, n_dynamics, successors, noise, seed
        As in `random_linear`; contexts are uniform in [-1, 1]^d.
    strength : float
        Standard deviation of every parameter.

    Returns
    -------
    Environment
        ``dynamics_models[true_dynamics].weights``, H-1 arrays (S_h, A, S_{h+1}, d), and
        ``loss_models[true_loss].theta`` are the true parameters.
    """
    d = as_integer(dimension, "dimension", least=1, most=MANY)
    strength = as_number(strength, "strength")
    true_loss, true_dynamics = _middle(n_losses, "n_losses"), _middle(n_dynamics, "n_dynamics")
    layout, rng, support = _frame(horizon, n_states, n_actions, successors, seed, d * n_losses, d * n_dynamics)
    losses = [LogisticLosses(strength * rng.standard_normal((*layout.shape, d)), _title(i, true_loss)) for i in range(n_losses)]
    dynamics = [
        SoftmaxDynamics([strength * rng.standard_normal((*block.shape, d)) for block in support], support, _title(i, true_dynamics))
        for i in range(n_dynamics)
    ]
    return Environment(
        layout,
        losses,
        dynamics,
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=_some(_Cube(d), n_contexts, rng),
        noise=None if noise is None else Noise(noise),
        name="random-softmax",
        source="generated",
    )


def as_vector(context: Any, dimension: int) -> Array:
    """A context of these environments as a vector, or an error."""
    vector = as_real(context, "context")
    if vector.shape != (dimension,) or not np.isfinite(vector).all():
        raise OpoError(f"context is {shown(context)}: a vector of {dimension} finite numbers is needed")
    return vector


class LinearLosses:
    """f_c(s, a) = <c, theta(s, a)>; theta has shape (n_states, A, d)."""

    def __init__(self, theta: Array, name: str = "linear") -> None:
        self.theta, self.name = theta, name

    def __call__(self, context: Any) -> Array:
        return np.asarray((self.theta @ as_vector(context, self.theta.shape[-1])).clip(0.0, 1.0))


class LogisticLosses:
    """f_c(s, a) = 1 / (1 + exp(-<theta(s, a), c>)); theta has shape (n_states, A, d)."""

    def __init__(self, theta: Array, name: str = "logistic") -> None:
        self.theta, self.name = theta, name

    def __call__(self, context: Any) -> Array:
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * (self.theta @ as_vector(context, self.theta.shape[-1]))))


class MixtureDynamics:
    """P_c = sum_i c_i P_i; `parts` holds the P_i, each a list of H-1 arrays (S_h, A, S_{h+1})."""

    def __init__(self, parts: list[list[Array]], name: str = "mixture") -> None:
        self.parts, self.name = parts, name

    def __call__(self, context: Any) -> list[Array]:
        vector = as_vector(context, len(self.parts))
        return [np.tensordot(vector, np.stack(blocks), axes=1) for blocks in zip(*self.parts, strict=True)]


class SoftmaxDynamics:
    """P_c(s' | s, a) proportional to exp <w(s, a, s'), c> on the support; `weights` are H-1 arrays (S_h, A, S_{h+1}, d)."""

    def __init__(self, weights: list[Array], support: list[Array], name: str = "softmax") -> None:
        self.weights, self.support, self.name = weights, support, name

    def __call__(self, context: Any) -> list[Array]:
        result = []
        for w, allowed in zip(self.weights, self.support, strict=True):
            logits = np.where(allowed, w @ as_vector(context, w.shape[-1]), -np.inf)
            p = np.exp(logits - logits.max(axis=-1, keepdims=True))
            result.append(p / p.sum(axis=-1, keepdims=True))
        return result


class _Simplex:
    """Contexts uniform on the simplex."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def __call__(self, rng: np.random.Generator) -> Array:
        return rng.dirichlet(np.ones(self.dimension))


class _Cube:
    """Contexts uniform in [-1, 1]^d."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def __call__(self, rng: np.random.Generator) -> Array:
        return rng.uniform(-1.0, 1.0, self.dimension)


def _some(draw: Callable[[np.random.Generator], Array], n: int | None, rng: np.random.Generator) -> Any:
    return draw if n is None else [draw(rng) for _ in range(as_integer(n, "n_contexts", least=1, most=MANY))]


def _check_candidates(layout: Layout, losses: int, dynamics: int) -> None:
    """Refuse more tables of losses and transitions than fit into memory."""
    what = f"n_actions, the states and the candidates: {losses} tables of losses and {dynamics} of dynamics of {layout!r}"
    check_room(losses * layout.n_states * layout.n_actions + dynamics * int(layout.dense_block[-1]), what)


def _frame(
    horizon: int, n_states: int, n_actions: int, successors: int | None, seed: int, losses: int, dynamics: int
) -> tuple[Layout, np.random.Generator, list[Array]]:
    """Layout, random generator, and the possible next states of each pair (H-1 boolean arrays), after a check of the memory needed."""
    horizon, n_states = as_integer(horizon, "horizon", least=1, most=MANY), as_integer(n_states, "n_states", least=1, most=MANY)
    layout = Layout([1] + [n_states] * (horizon - 1), n_actions)
    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    k = n_states if successors is None else as_integer(successors, "successors", least=1, most=n_states)
    _check_candidates(layout, losses, dynamics)
    support = []
    for size in layout.layer_sizes[:-1]:
        order = rng.random((size, n_actions, n_states)).argsort(axis=-1).argsort(axis=-1)
        support.append(order < k)
    return layout, rng, support


def _middle(n: int, name: str) -> int:
    return as_integer(n, name, least=1, most=MANY) // 2


def _random_rows(layout: Layout, support: list[Array], rng: np.random.Generator) -> list[Array]:
    """Rows drawn uniformly from the simplex over their support."""
    result = []
    for allowed in support:
        weights = np.where(allowed, rng.standard_exponential(allowed.shape), 0.0)
        result.append(weights / weights.sum(axis=-1, keepdims=True))
    return result


def _with_gap(layout: Layout, transitions: Transitions, gap: float, rng: np.random.Generator) -> Array:
    """Random losses for which every action except the best is worse by at least `gap`, by backward induction."""
    blocks = transitions.arrays()
    losses = np.empty(layout.shape)
    v_next = np.zeros(0)
    for h in range(layout.horizon - 1, -1, -1):
        lo = int(layout.offsets[h])
        v = np.empty(layout.layer_sizes[h])
        for i in range(v.size):
            future = blocks[h][i] @ v_next if h < layout.horizon - 1 else np.zeros(layout.n_actions)
            losses[lo + i], v[i] = _separated(future, gap, rng)
        v_next = v
    return losses


def _separated(future: Array, gap: float, rng: np.random.Generator) -> tuple[Array, float]:
    for _ in range(1000):
        own = rng.random(future.size)
        best = int((own + future).argmin())
        short = np.maximum(0.0, own[best] + future[best] + gap - own - future)
        short[best] = 0.0
        own = own + short
        excess = max(0.0, float(own.max()) - 1.0)
        own = np.minimum(own, 1.0)
        own[best] -= excess
        if own[best] >= 0.0:
            return own, float(own[best] + future[best])
    raise OpoError(f"gap is {gap!r}: too large for losses in [0, 1]; a smaller one is needed")


def _title(i: int, truth: int) -> str:
    return "truth" if i == truth else f"random {i}"
