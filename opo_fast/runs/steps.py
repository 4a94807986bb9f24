"""The steps of a chain at a context, with all that Algorithm 1 computes on the way.

`optimistic_steps` goes through Algorithm 1's inner loop in plain NumPy. `agent_steps` has the engine go through the chains of an
agent, whatever its rule, and computes in NumPy the steps that are asked for alone: where each episode has a context of its own that is
one step for each chain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number, instance, shown
from ..agents.baselines import Greedy
from ..agents.chain_agent import ChainAgent
from ..agents.opo import OPO
from ..algorithm.chain import Chain
from ..algorithm.engine import ChainEngine
from ..algorithm.history import Fits
from ..algorithm.rules import Bonus
from ..algorithm.self_tuning import Plausible, SelfTuningRule, optimistic_values
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.operations import bonus, evaluate, occupancy
from ..model.reference import expected_next

__all__ = ["Step", "agent_steps", "allowed_pairs", "greedy_steps", "history_at", "optimistic_steps"]

Array = npt.NDArray[Any]
Wanted = Sequence[tuple[Any, Sequence[int]]]


class Step(NamedTuple):
    """Step t of Algorithm 1's inner loop at one context. Arrays have shape (n_states, A) unless said otherwise.

    Attributes
    ----------
    model : LayeredMDP
        The fits f^t and P^t.
    policy : ndarray
        pi^t, which is played in episode t.
    visits : ndarray
        N = sum_{i<t} q(s, a | pi^i, P^t), the denominator of the bonus less 1.
    bonus_loss, bonus_dynamics : ndarray
        b_{beta_loss} and b_{beta_dynamics} of eq. (2); the algorithm subtracts `bonus`.
    q, v : ndarray
        The optimistic estimates Q^t and V^t, `v` of shape (n_states,).
    ahead : ndarray
        P^t V^t, the estimate of the coming layers.
    truncation : ndarray
        By how much max{0, .} raises Q^t.
    """

    model: LayeredMDP
    policy: Array
    visits: Array
    bonus_loss: Array
    bonus_dynamics: Array
    q: Array
    v: Array
    ahead: Array
    truncation: Array

    @property
    def bonus(self) -> Array:
        """b = b_{beta_loss} + 2 H b_{beta_dynamics} (Algorithm 1, bonus calculation)."""
        return np.asarray(self.bonus_loss + 2 * self.model.layout.horizon * self.bonus_dynamics)


def history_at(agent: OPO, context: Any, episodes: int | None = None) -> list[LayeredMDP]:
    """The models f^t, P^t that the fits of an agent give at a context, those of episode 1 first.

    Parameters
    ----------
    agent : OPO
        After a run: entry t - 1 holds the fits on the data from before episode t.
    context
    episodes : int, optional
        How many. Default: all, one more than the agent has observed, as the next episode's fits are there already.
    """
    instance(agent, "agent", OPO)
    there, models = len(agent.history), _Models(agent, context)
    steps = range(there if episodes is None else as_integer(episodes, "episodes", least=1, most=there))
    return [models.model(agent.history[k]) for k in steps]


def optimistic_steps(history: Iterable[LayeredMDP], *, eta: float, beta_loss: float, beta_dynamics: float) -> Iterator[Step]:
    """Algorithm 1's inner loop at one context, one `Step` for each model.

    Parameters
    ----------
    history : iterable of LayeredMDP
        The models of steps t = 1, 2, ... at the context, as `history_at` gives them. Dynamics are the same where they are
        the same transitions object: each pair of a policy and a dynamics is looked at once.
    eta, beta_loss, beta_dynamics : float
        At least 0.

    Returns
    -------
    iterator of Step
        One at a time, as all of them may not fit into memory.
    """
    models = as_items(history, "history", "models", some=True)
    known: set[int] = set()
    for k, model in enumerate(models):
        instance(model, f"history[{k}]", LayeredMDP)
        if id(model) in known:
            continue
        known.add(id(model))
        if model.layout != models[0].layout or not np.array_equal(allowed_pairs(model), allowed_pairs(models[0])):
            raise OpoError(f"history[{k}] has another layout or action mask than history[0]: {model!r}, {models[0]!r}")
    return _steps(models, as_number(eta, "eta"), as_number(beta_loss, "beta_loss"), as_number(beta_dynamics, "beta_dynamics"))


def _steps(models: Sequence[LayeredMDP], eta: float, beta_loss: float, beta_dynamics: float) -> Iterator[Step]:
    layout, allowed = models[0].layout, allowed_pairs(models[0])
    policy, sum_q = models[0].uniform_policy(), np.zeros(layout.shape)
    past: list[Array] = []
    sums: dict[int, tuple[Array, int]] = {}
    blocks: dict[int, list[Any]] = {}
    betas = Bonus(beta_loss, np.full(layout.horizon, beta_dynamics), len(models), needed=True)
    for model in models:
        key = id(model.transitions)
        visits, counted = sums.get(key, (np.zeros(layout.shape), 0))
        for earlier in past[counted:]:
            visits = visits + occupancy(model, earlier)
        sums[key] = visits, len(past)
        if key not in blocks:
            blocks[key] = model.transitions.arrays()
        step = _step(Plausible(model), policy, visits, betas, blocks[key])
        yield step
        past.append(policy)
        # The softmax of the sum is the product of exponentials without its underflow.
        sum_q += step.q
        gaps = np.where(allowed, sum_q, np.inf)
        weights = np.exp(-eta * np.where(allowed, gaps - gaps.min(axis=1, keepdims=True), 0.0)) * allowed
        policy = weights / weights.sum(axis=1, keepdims=True)


def allowed_pairs(model: LayeredMDP) -> Array:
    """Which pairs are allowed, shape (n_states, A)."""
    mask: Array = np.ones(model.layout.shape, bool) if model.action_mask is None else model.action_mask
    return mask


@dataclass(frozen=True)
class _Counted(SelfTuningRule):
    """Self-tuning with visits at every step, whether or not its policies need them."""

    def bonus(self, step: int) -> Bonus:
        return super().bonus(step)._replace(needed=True)


def agent_steps(agent: ChainAgent, wanted: Wanted) -> Iterator[tuple[int, int, Step]]:
    """Steps of an agent's chains at given contexts and episodes; its own chains are left as they are.

    What a step is depends on the rule: of OPO, by hand or self-tuning, that of Algorithm 1, `truncation` being by how much Q is above
    f - b + P V. Of E-UC3RL and RM-UCDD, which raise V to 0 and not Q, `q` is the Q that they minimise raised to 0, so that
    V = <policy, Q> holds as it does for OPO.

    Parameters
    ----------
    agent : ChainAgent
        After a run.
    wanted : sequence of (context, episodes)
        Contexts, and of each the episodes, counted from 0 and rising, the last one being that which the agent would play next.

    Returns
    -------
    iterator of (which, episode, step)
        The position in `wanted`, the episode, and its `Step`. None are there of the episodes that RM-UCDD is forced to play.

    Raises
    ------
    OpoError
        Another agent, or episodes that it has not come to.
    """
    instance(agent, "agent", ChainAgent)
    return _agent_steps(agent, _checked(wanted, agent.rule.forced + len(agent.history) - 1))


def _checked(wanted: Any, last: int) -> Wanted:
    """What was asked for, of episodes up to `last`, or an error that names what is not."""
    found: list[tuple[Any, Sequence[int]]] = []
    for i, pair in enumerate(as_items(wanted, "wanted", "pairs of a context and its episodes")):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise OpoError(f"wanted[{i}] is {shown(pair)}: a context and its episodes are needed")
        context, episodes = pair
        name = f"wanted[{i}][1]"
        if isinstance(episodes, range):
            for t in (min(episodes), max(episodes)) if episodes else ():
                as_integer(t, f"{name}: an episode", least=0, most=last)
        else:
            episodes = [as_integer(t, f"{name}[{j}]", least=0, most=last) for j, t in enumerate(as_items(episodes, name, "episodes"))]
        if any(a >= b for a, b in pairwise(episodes)):
            raise OpoError(f"{name} is {shown(episodes)}: episodes that rise are needed")
        found.append((context, episodes))
    return found


def _agent_steps(agent: ChainAgent, wanted: Wanted) -> Iterator[tuple[int, int, Step]]:
    """The steps of contexts and episodes that were checked."""
    rule = agent.rule
    if isinstance(rule, SelfTuningRule):
        rule = _Counted(**{field.name: getattr(rule, field.name) for field in fields(rule)})
    engine = ChainEngine(agent.layout, agent.action_mask, rule, agent, agent.engine.memory)
    for first in range(0, len(wanted), engine.together):
        yield from _group_steps(agent, engine, wanted[first : first + engine.together], first)


def _group_steps(agent: ChainAgent, engine: ChainEngine, members: Wanted, first: int) -> Iterator[tuple[int, int, Step]]:
    """The steps of contexts whose chains run side by side."""
    rule, history = engine.rule, agent.history
    chain = engine.new_chain([context for context, _ in members])
    models = [_Models(agent, context) for context, _ in members]
    lanes_at: dict[int, list[int]] = {}
    for lane, (_, episodes) in enumerate(members):
        for t in episodes:
            lanes_at.setdefault(t, []).append(lane)
    for t in sorted(lanes_at):
        k = t - rule.forced
        if k < 0:
            continue
        if not rule.greedy:
            chain.advance(history, k)
            policies = [agent.full(chain.policy(lane)) for lane in lanes_at[t]]
        chain.advance(history, k + 1)
        if rule.greedy:
            policies = [agent.full(chain.policy(lane)) for lane in lanes_at[t]]
        for lane, policy in zip(lanes_at[t], policies, strict=True):
            plausible = models[lane].plausible(history[k])
            visits = plausible.model.transitions.scatter(_visits(chain, lane))
            yield first + lane, t, _step(plausible, policy, visits, rule.bonus(k))


def _visits(chain: Chain, lane: int) -> Array:
    """N of the last step."""
    assert chain.last is not None
    return chain.last[lane :: chain.lanes].copy()


class _Models:
    """The models of fits at one context, each built once, and of one dynamics fit always the same transitions object."""

    def __init__(self, agent: ChainAgent, context: Any) -> None:
        self.agent, self.context = agent, context
        self.models: dict[Hashable, LayeredMDP] = {}
        self.dynamics: dict[Hashable, LayeredMDP] = {}
        self.found: dict[Fits, Plausible] = {}

    def model(self, fits: Fits) -> LayeredMDP:
        key = fits[:2]
        if key not in self.models:
            known = self.dynamics.get(fits.dynamics)
            if known is None:
                model = self.agent.model(key, self.context)
            else:
                model = known.with_losses(self.agent.loss_oracle.losses(fits.loss, self.context))
            self.models[key] = self.dynamics[fits.dynamics] = model
        return self.models[key]

    def plausible(self, fits: Fits) -> Plausible:
        if fits not in self.found:
            known = self.agent.plausible_at(fits, self.context) if self.agent.plausible else Plausible(self.model(fits))
            self.found[fits] = known._replace(model=self.model(fits))
        return self.found[fits]


def _step(plausible: Plausible, policy: Array, visits: Array, betas: Bonus, blocks: list[Any] | None = None) -> Step:
    """The step whose policy and visits are known; `blocks` are the arrays of the transitions, if the caller has them."""
    model, layout = plausible.model, plausible.model.layout
    b_dynamics = np.zeros(layout.shape)
    for h, beta in enumerate(betas.beta_dynamics):
        b_dynamics[layout.layer(h)] = bonus(visits[layout.layer(h)], float(beta))
    b_loss, allowed = bonus(visits, betas.beta_loss), allowed_pairs(model)
    optimistic = model.losses - (b_loss + 2 * layout.horizon * b_dynamics)
    q, ahead, v = np.zeros(layout.shape), np.zeros(layout.shape), np.zeros(layout.n_states)
    blocks = model.transitions.arrays() if blocks is None else blocks
    known = None if plausible.lower is None else optimistic_values(plausible, policy, visits, betas)
    for h in reversed(range(layout.horizon)):
        layer = layout.layer(h)
        if h < layout.horizon - 1:
            ahead[layer] = expected_next(blocks[h], v[layout.layer(h + 1)], ahead[layer].shape)
        if known is None:
            q[layer] = np.where(allowed[layer], np.maximum(0.0, optimistic[layer] + ahead[layer]), 0.0)
        else:
            q[layer] = known.q[layer]
        v[layer] = (policy[layer] * q[layer]).sum(axis=1)
    return Step(model, policy, visits, b_loss, b_dynamics, q, v, ahead, np.where(allowed, q - (optimistic + ahead), 0.0))


def greedy_steps(agent: Greedy, fits: Sequence[tuple[int, int]], wanted: Wanted) -> Iterator[tuple[int, int, Step]]:
    """Steps of a planner without optimism: Q and V of its policy in the fitted model, without bonus and visits.

    Parameters
    ----------
    agent : Greedy or EpsilonGreedy
    fits : sequence
        Of losses and dynamics, of each episode.
    wanted, and what is given
        As of `agent_steps`.
    """
    nothing = np.zeros(agent.layout.shape)
    for which, (context, episodes) in enumerate(_checked(wanted, len(fits) - 1)):
        known: dict[tuple[int, int], LayeredMDP] = {}
        for t in episodes:
            model = known.get(fits[t])
            if model is None:
                model = known[fits[t]] = agent.model(fits[t], context)
            policy = agent.policy_under(model, t)
            q, v = evaluate(model, policy)
            yield which, t, Step(model, policy, nothing, nothing, nothing, q, v, q - model.losses, nothing)
