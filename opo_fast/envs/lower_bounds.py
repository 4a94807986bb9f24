"""The hard instances of lower bounds in the literature, with their size and gap as options."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import MANY, as_integer, as_number
from .._support.memory import check_room
from ..errors import OpoError
from ..model.layout import Layout
from ..model.transitions import Transitions
from .environment import Environment, PerContext

__all__ = ["hidden_path", "layered_bandit"]

Array = npt.NDArray[Any]

MOST_CANDIDATES = 100_000
"""Limit on the number of candidates, since every candidate is evaluated at every context."""


def layered_bandit(
    horizon: int = 3,
    n_states: int = 2,
    n_actions: int = 3,
    n_contexts: int = 2,
    *,
    unknown: int = 5,
    gap: float = 0.25,
    seed: int = 0,
) -> Environment:
    """The contextual bandit lower bound embedded in layers: a bandit in each context and state, independent of all others.

    Whatever is played, the next state is uniform in the next layer, so only the loss of each step matters. In every context and
    state one action has the mean loss 1/2 - gap and the others 1/2. The best action is known (the first) except in `unknown` pairs of
    a context and a state, called places here; the loss class contains all n_actions ** unknown answers, so log|F| = unknown log|A|, and
    data at one place say nothing about another (Agarwal, Dudik, Kale, Langford and Schapire, AISTATS 2012, Theorem 5.1, for one state).

    A learner must try every action about 1/gap^2 times at each unknown place. Each try costs `gap`, and a place occurs in an episode with
    probability 1 / (n_contexts S_h). In all, exploration costs about unknown (n_actions - 1) / gap; if T is too small for that, it costs
    gap per visit throughout. With the gap sqrt(n_actions / visits of a place) this is the sqrt(T) of the bound.

    The optimum is H (1/2 - gap) in every context; the uniform policy has a regret of H gap (1 - 1/|A|) per episode.

    Parameters
    ----------
    horizon, n_states, n_actions : int
        Layers; states in each layer after the first; actions, at least 2.
    n_contexts : int
        Contexts, equally likely.
    unknown : int
        Number of places whose best action is unknown, at most one for each context and state; chosen at random.
    gap : float
        In (0, 1/2].
    seed : int
        Seed of the places and the answer.

    Returns
    -------
    Environment
        Its loss candidates are `BestActions`, with the true answer at `true_loss`.
    """
    horizon, n_states = as_integer(horizon, "horizon", least=1, most=MANY), as_integer(n_states, "n_states", least=1, most=MANY)
    n_actions, n_contexts = as_integer(n_actions, "n_actions", least=2), as_integer(n_contexts, "n_contexts", least=1, most=MANY)
    gap = _gap(gap)
    layout = Layout([1] + [n_states] * (horizon - 1), n_actions)
    places = n_contexts * layout.n_states
    unknown = as_integer(unknown, "unknown", least=0, most=places)
    size = _candidates(n_actions, unknown, f"unknown is {unknown}, n_actions is {n_actions}", "n_actions ** unknown loss candidates")
    check_room(places + int(layout.dense_block[-1]), f"n_contexts, horizon, n_states, n_actions: {places:,} places and their transitions")
    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    hidden = rng.permutation(places)[:unknown]
    truth = _other_than_first(size, rng)
    answers = itertools.product(range(n_actions), repeat=unknown)
    losses = [BestActions(layout, hidden, answer, gap, "truth" if i == truth else f"answer {i}") for i, answer in enumerate(answers)]
    blocks = [np.full((a, n_actions, b), 1.0 / b) for a, b in itertools.pairwise(layout.layer_sizes)]
    transitions = Transitions(layout, blocks)
    return Environment(
        layout,
        losses,
        [PerContext([transitions] * n_contexts, "truth")],
        true_loss=truth,
        contexts=range(n_contexts),
        name="layered-bandit",
        source="generated; lower bound of contextual bandits",
    )


class BestActions:
    """Losses of 1/2, and 1/2 - gap for the best action: the first one, except at the given places, where the answer names it.

    Attributes
    ----------
    places : ndarray of int64
        context * n_states + state.
    answer : tuple of int
        The best action at each place.
    """

    def __init__(self, layout: Layout, places: Array, answer: tuple[int, ...], gap: float, name: str) -> None:
        self.layout, self.places, self.answer, self.gap, self.name = layout, places, answer, gap, name

    def __call__(self, context: int) -> Array:
        best = np.zeros(self.layout.n_states, np.int64)
        for place, action in zip(self.places, self.answer, strict=True):
            if place // self.layout.n_states == context:
                best[place % self.layout.n_states] = action
        losses = np.full(self.layout.shape, 0.5)
        losses[np.arange(best.size), best] -= self.gap
        return losses


def hidden_path(
    horizon: int = 5, n_actions: int = 2, n_contexts: int = 3, *, payoff: int = 2, gap: float = 0.25, seed: int = 0
) -> Environment:
    """A tree with one hidden path whose end is slightly better: the lower bound for episodic reinforcement learning.

    The first d = horizon - payoff actions lead down a tree with one node for each sequence of actions so far. The last of them leads to a
    good or a bad state, each with probability 1/2, except at the end of the hidden path, where the good state has probability 1/2 + gap.
    In each of the `payoff` layers that follow, the good state costs 0 and the bad one 1; the tree costs nothing (Domingues, Menard,
    Kaufmann and Valko, ALT 2021, section 3, without their waiting state). Losses are known. Each of the n_actions ** d dynamics candidates
    has one path, which every context shifts by its own offset. So data from one context help in the others, which is the gain from
    function approximation.

    All paths but one look alike, so a path can be ruled out only by playing it about 1/gap^2 times.

    The optimum is payoff (1/2 - gap) in every context, any other path has the value payoff / 2, and the uniform policy has a regret of
    payoff gap (1 - n_actions ** -d) per episode.

    Parameters
    ----------
    horizon : int
        Layers, at least payoff + 1; there are n_actions ** (h - 1) nodes in layer h of the tree.
    n_actions : int
        At least 2.
    n_contexts : int
        Contexts, equally likely.
    payoff : int
        Layers with a loss, at least 1.
    gap : float
        In (0, 1/2].
    seed : int
        Seed of the path and the shifts.
    """
    n_contexts, payoff = as_integer(n_contexts, "n_contexts", least=1, most=MANY), as_integer(payoff, "payoff", least=1, most=MANY)
    depth, n_actions = as_integer(horizon, "horizon", least=payoff + 1, most=MANY) - payoff, as_integer(n_actions, "n_actions", least=2)
    gap = _gap(gap)
    paths = _candidates(n_actions, depth, f"horizon is {horizon}, n_actions is {n_actions}", "n_actions ** (horizon - payoff) paths")
    layout = Layout([n_actions**h for h in range(depth)] + [2] * payoff, n_actions)
    # Each candidate stores the whole tree.
    check_room((paths + 1) * int(layout.dense_block[-1]), f"horizon is {horizon}, n_actions is {n_actions}: the trees of {paths:,} paths")
    rng = np.random.default_rng(as_integer(seed, "seed", least=0, most=None))
    truth = _other_than_first(paths, rng)
    shifts = [int(shift) for shift in rng.integers(paths, size=n_contexts)]
    losses = np.zeros(layout.shape)
    losses[layout.offsets[depth] + 1 :: 2] = 1.0
    trees = _Trees(layout, depth, gap)
    return Environment(
        layout,
        [PerContext([losses] * n_contexts, "truth")],
        [PerContext([trees.at((j + shift) % paths) for shift in shifts], "truth" if j == truth else f"path {j}") for j in range(paths)],
        true_dynamics=truth,
        contexts=range(n_contexts),
        name="hidden-path",
        source="generated; lower bound of episodic reinforcement learning",
    )


class _Trees:
    """The transitions of each hidden path, built once."""

    def __init__(self, layout: Layout, depth: int, gap: float) -> None:
        self.layout, self.depth, self.gap = layout, depth, gap
        sizes, actions = layout.layer_sizes, layout.n_actions
        self.down = [np.eye(sizes[h + 1]).reshape(sizes[h], actions, sizes[h + 1]) for h in range(depth - 1)]
        self.stay = [np.broadcast_to(np.eye(2)[:, None], (2, actions, 2))] * (layout.horizon - depth - 1)
        self.found: dict[int, Transitions] = {}

    def at(self, path: int) -> Transitions:
        if path not in self.found:
            last = np.full((self.layout.layer_sizes[self.depth - 1] * self.layout.n_actions, 2), 0.5)
            last[path] = 0.5 + self.gap, 0.5 - self.gap
            block = last.reshape(-1, self.layout.n_actions, 2)
            self.found[path] = Transitions(self.layout, [*self.down, block, *self.stay])
        return self.found[path]


def _candidates(base: int, exponent: int, given: str, what: str) -> int:
    """base ** exponent, for a base of at least 2, or an error if that is too many candidates (before it is computed)."""
    if exponent > MOST_CANDIDATES.bit_length() or base**exponent > MOST_CANDIDATES:
        raise OpoError(f"{given}: {what} are more than {MOST_CANDIDATES:,}; smaller numbers are needed")
    return int(base**exponent)


def _other_than_first(size: int, rng: np.random.Generator) -> int:
    """A random candidate, but not the first one, which an agent believes before it has any data, unless there is no other."""
    return int(rng.integers(1, size)) if size > 1 else 0


def _gap(gap: float) -> float:
    gap = as_number(gap, "gap", most=0.5)
    if gap == 0:
        raise OpoError("gap is 0.0: a number above 0 and at most 0.5 is needed")
    return gap
