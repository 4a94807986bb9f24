"""All steps of an OPO chain at a context as arrays over the episodes, computed for many episodes at once.

The policies come from the engine. Given the policies, everything else that Algorithm 1 computes at a step only depends on the step's fits,
so steps with equal fits form one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_integer, as_items, instance
from ..agents.opo import OPO
from ..algorithm.engine import ChainEngine
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.operations import bonus
from ..runs.steps import Step, agent_steps, allowed_pairs, history_at

__all__ = ["StackedSteps", "occupancies", "past_sums", "stack", "stacked_steps"]

Array = npt.NDArray[Any]


class StackedSteps(NamedTuple):
    """Steps t = 1, ..., T at one context: the arrays of `Step`, with the episode as first axis.

    Attributes
    ----------
    models : tuple of LayeredMDP
        The distinct fitted models.
    which : ndarray of int64, shape (T,)
        The position in `models` of each step's model.
    policies, visits, bonus_loss, bonus_dynamics, q : ndarray, shape (T, n_states, A)
    v : ndarray, shape (T, n_states)
    """

    models: tuple[LayeredMDP, ...]
    which: Array
    policies: Array
    visits: Array
    bonus_loss: Array
    bonus_dynamics: Array
    q: Array
    v: Array

    @property
    def bonus(self) -> Array:
        """b = b_{beta_loss} + 2 H b_{beta_dynamics}, shape (T, n_states, A)."""
        return np.asarray(self.bonus_loss + 2 * self.models[0].layout.horizon * self.bonus_dynamics)


def stack(steps: Iterable[Step]) -> StackedSteps:
    """Consecutive steps at one context as arrays."""
    found = as_items(steps, "steps", "steps", some=True)
    for t, step in enumerate(found):
        instance(step, f"steps[{t}]", Step, needed="a Step of agent_steps or optimistic_steps")
        mine, first = step.model, found[0].model
        if mine is not first and (mine.layout != first.layout or not np.array_equal(allowed_pairs(mine), allowed_pairs(first))):
            raise OpoError(f"steps[{t}] has another layout or action mask than steps[0]: the steps of one context are needed")
    models, which = _distinct([step.model for step in found])
    columns = (np.array([getattr(step, name) for step in found]) for name in ("policy", "visits", "bonus_loss", "bonus_dynamics", "q", "v"))
    return StackedSteps(models, which, *columns)


def _distinct(listed: Sequence[LayeredMDP]) -> tuple[tuple[LayeredMDP, ...], Array]:
    """The distinct models, and the position of each listed model among them."""
    models = {id(model): model for model in listed}
    position = {key: i for i, key in enumerate(models)}
    return tuple(models.values()), np.array([position[id(model)] for model in listed], np.int64)


def stacked_steps(agent: OPO, contexts: Sequence[Any], episodes: int | None = None) -> Iterator[StackedSteps]:
    """All steps of an agent at some contexts, as if each context had been played in every episode.

    Parameters
    ----------
    agent : OPO
        After a run.
    contexts : sequence
        Distinct contexts.
    episodes : int, optional
        T. Default: the number of episodes that the agent has observed.

    Yields
    ------
    StackedSteps
        The steps at each context in turn.
    """
    instance(agent, "agent", OPO)
    t = as_integer(agent.episode if episodes is None else episodes, "episodes", least=1, most=agent.episode)
    contexts = as_items(contexts, "contexts", "contexts")
    if agent.rule.hedged:
        for context in contexts:
            yield stack(step for _, _, step in agent_steps(agent, [(context, range(t))]))
        return
    engine = ChainEngine(agent.layout, agent.action_mask, agent.rule, agent, agent.engine.memory)
    for first in range(0, len(contexts), engine.together):
        group = contexts[first : first + engine.together]
        chain, policies = engine.new_chain(group), np.empty((len(group), t, *agent.layout.shape))
        for k in range(t):
            chain.advance(agent.history, k)
            for lane in range(len(group)):
                policies[lane, k] = agent.full(chain.policy(lane))
        for context, own in zip(group, policies, strict=True):
            yield _from_policies(agent, context, own)


def _from_policies(agent: OPO, context: Any, policies: Array) -> StackedSteps:
    steps, layout = len(policies), agent.layout
    models, which = _distinct(history_at(agent, context, steps))
    visits = np.empty((steps, *layout.shape))
    for model in {id(model.transitions): model for model in models}.values():
        mine = np.flatnonzero(np.array([m.transitions is model.transitions for m in models])[which])
        visits[mine] = past_sums(occupancies(model, policies[: mine[-1] + 1]))[mine]
    betas = agent.rule.bonus(0)
    b_loss, b_dynamics = bonus(visits, betas.beta_loss), bonus(visits, float(betas.beta_dynamics[0]))
    q, v = np.empty(policies.shape), np.empty(policies.shape[:2])
    for i, model in enumerate(models):
        mine = np.flatnonzero(which == i)
        b = b_loss[mine] + 2 * layout.horizon * b_dynamics[mine]
        q[mine], v[mine] = _values(model, policies[mine], b)
    return StackedSteps(models, which, policies, visits, b_loss, b_dynamics, q, v)


def _values(model: LayeredMDP, policies: Array, b: Array) -> tuple[Array, Array]:
    """Q = max{0, f - b + P V} and V = <policy, Q> for many steps."""
    layout, allowed, blocks = model.layout, allowed_pairs(model), _blocks(model)
    q, v = model.losses - b, np.empty(policies.shape[:2])
    for h in reversed(range(layout.horizon)):
        layer = layout.layer(h)
        if h < layout.horizon - 1:
            q[:, layer] += np.asarray(blocks[h] @ v[:, layout.layer(h + 1)].T).T.reshape(q[:, layer].shape)
        q[:, layer] = np.where(allowed[layer], np.maximum(0.0, q[:, layer]), 0.0)
        v[:, layer] = (policies[:, layer] * q[:, layer]).sum(axis=2)
    return q, v


def occupancies(model: LayeredMDP, policies: Array) -> Array:
    """q(s, a | pi, P) of many policies; shape (T, n_states, A)."""
    layout, blocks = model.layout, _blocks(model)
    q, d = np.empty(policies.shape), np.ones((len(policies), 1))
    for h in range(layout.horizon):
        layer = layout.layer(h)
        q[:, layer] = d[:, :, None] * policies[:, layer]
        if h < layout.horizon - 1:
            d = np.asarray(blocks[h].T @ q[:, layer].reshape(len(policies), -1).T).T
    return q


def past_sums(q: Array) -> Array:
    """sum_{i<t} q^i for each t."""
    sums = np.zeros_like(q)
    np.cumsum(q[:-1], axis=0, out=sums[1:])
    return sums


def _blocks(model: LayeredMDP) -> list[Any]:
    """The transitions of each layer as a matrix with one row per state-action pair."""
    return [block if sp.issparse(block) else block.reshape(-1, block.shape[-1]) for block in model.transitions.arrays()]


def constant_betas(agent: OPO, episodes: int) -> tuple[float, float]:
    """beta_loss and beta_dynamics of an agent, which must not change from step to step."""
    first, last = agent.rule.bonus(0), agent.rule.bonus(episodes - 1)
    if (first.beta_loss, float(first.beta_dynamics[0])) != (last.beta_loss, float(last.beta_dynamics[0])):
        raise OpoError(
            "agent has betas that grow with the episodes, since it was not given their number: build it as opo_fast.OPO(layout, "
            "loss_class, dynamics_class, episodes=T); agents.make does not pass the number of episodes to self-tuning OPO"
        )
    return first.beta_loss, float(first.beta_dynamics[0])
