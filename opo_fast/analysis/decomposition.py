"""The regret of a run of OPO, split into the terms of the paper's proof.

The proof looks at one context at a time. `optimistic_steps` goes through Algorithm 1's inner loop at a context with all that it
computes on the way; `regret_decomposition` compares it with the true model of each context that was played.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import having, instance, items, real, whole
from .._support.progress import bar
from ..agents.opo import OPO
from ..errors import OpoError
from ..model.contextual import ContextualMDP, context_key
from ..model.layered import LayeredMDP
from ..model.operations import bonus, evaluate, occupancy, solve
from ..runs.result import SimulationResult

__all__ = ["ModelErrors", "RegretTerms", "Step", "history_at", "optimistic_steps", "regret_decomposition"]

Array = npt.NDArray[Any]


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
    there = len(agent.history)
    models: dict[Hashable, LayeredMDP] = {}
    dynamics: dict[Hashable, LayeredMDP] = {}
    listed = []
    for k in range(there if episodes is None else whole(episodes, "episodes", least=1, most=there)):
        fits = agent.history[k][:2]
        if fits not in models:
            # Of one fit the same transitions object, so that no pair of a policy and a dynamics is looked at twice.
            known = dynamics.get(fits[1])
            model = agent.model(fits, context) if known is None else known.with_losses(agent.loss_oracle.losses(fits[0], context))
            models[fits] = dynamics[fits[1]] = model
        listed.append(models[fits])
    return listed


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
    models = items(history, "history", "models", some=True)
    known: set[int] = set()
    for k, model in enumerate(models):
        instance(model, f"history[{k}]", LayeredMDP)
        if id(model) in known:
            continue
        known.add(id(model))
        if model.layout != models[0].layout or not np.array_equal(allowed_pairs(model), allowed_pairs(models[0])):
            raise OpoError(f"history[{k}] has another layout or action mask than history[0]: {model!r}, {models[0]!r}")
    return _steps(models, real(eta, "eta"), real(beta_loss, "beta_loss"), real(beta_dynamics, "beta_dynamics"))


def _steps(models: Sequence[LayeredMDP], eta: float, beta_loss: float, beta_dynamics: float) -> Iterator[Step]:
    layout, allowed = models[0].layout, allowed_pairs(models[0])
    policy, sum_q = models[0].uniform_policy(), np.zeros(layout.shape)
    past: list[Array] = []
    sums: dict[int, tuple[Array, int]] = {}
    blocks: dict[int, list[Any]] = {}
    for model in models:
        key = id(model.transitions)
        visits, counted = sums.get(key, (np.zeros(layout.shape), 0))
        for earlier in past[counted:]:
            visits = visits + occupancy(model, earlier)
        sums[key] = visits, len(past)
        if key not in blocks:
            blocks[key] = model.transitions.arrays()
        b_loss, b_dynamics = bonus(visits, beta_loss), bonus(visits, beta_dynamics)
        optimistic = model.losses - (b_loss + 2 * layout.horizon * b_dynamics)
        q, ahead, v = np.zeros(layout.shape), np.zeros(layout.shape), np.zeros(layout.n_states)
        for h in reversed(range(layout.horizon)):
            layer = layout.layer(h)
            if h < layout.horizon - 1:
                ahead[layer] = expected_next(blocks[key][h], v[layout.layer(h + 1)], ahead[layer].shape)
            q[layer] = np.where(allowed[layer], np.maximum(0.0, optimistic[layer] + ahead[layer]), 0.0)
            v[layer] = (policy[layer] * q[layer]).sum(axis=1)
        truncation = np.where(allowed, q - (optimistic + ahead), 0.0)
        yield Step(model, policy, visits, b_loss, b_dynamics, q, v, ahead, truncation)
        past.append(policy)
        # The softmax of the sum is the product of exponentials without its underflow.
        sum_q += q
        gaps = np.where(allowed, sum_q, np.inf)
        weights = np.exp(-eta * np.where(allowed, gaps - gaps.min(axis=1, keepdims=True), 0.0)) * allowed
        policy = weights / weights.sum(axis=1, keepdims=True)


def allowed_pairs(model: LayeredMDP) -> Array:
    mask: Array = np.ones(model.layout.shape, bool) if model.action_mask is None else model.action_mask
    return mask


def expected_next(block: Any, v_next: Array, shape: tuple[int, ...]) -> Array:
    """sum_{s'} P(s'|s,a) v_next(s') for all pairs of a layer, dense or sparse."""
    return np.asarray(block @ v_next).reshape(shape)


class Truth:
    """The true model of a context, its optimum, and what the proof compares with a step."""

    def __init__(self, mdp: LayeredMDP) -> None:
        self.mdp, self.layout = mdp, mdp.layout
        self.blocks = mdp.transitions.arrays()
        optimum = solve(mdp)
        self.value, self.optimal = float(optimum.v[0]), optimum.policy
        self.reach = occupancy(mdp, self.optimal)
        self._distances: dict[int, tuple[Any, Array, Array]] = {}

    def ahead(self, v: Array) -> Array:
        """P* v for all pairs."""
        layout, result = self.layout, np.zeros(self.layout.shape)
        for h, block in enumerate(self.blocks):
            result[layout.layer(h)] = expected_next(block, v[layout.layer(h + 1)], result[layout.layer(h)].shape)
        return result

    def omd(self, step: Step) -> float:
        """sum_h Lambda^t_h."""
        return float((self.reach.sum(axis=1) * (step.q * (step.policy - self.optimal)).sum(axis=1)).sum())

    def errors(self, step: Step, ahead: Array, occupied: Array) -> tuple[float, float, float, float]:
        """The entries of `ModelErrors`."""
        parts = (self.mdp.losses - step.model.losses, ahead - step.ahead, step.bonus, step.truncation)
        return tuple(float((occupied * part).sum()) for part in parts)  # type: ignore[return-value]

    def distances(self, model: LayeredMDP) -> tuple[Array, Array]:
        """L1 and squared Hellinger distance of each pair's next states, P^t against P*."""
        found = self._distances.get(id(model.transitions))
        if found is None:
            absolute, squared = np.zeros(self.layout.shape), np.zeros(self.layout.shape)
            for h, (mine, theirs) in enumerate(zip(self.blocks, model.transitions.arrays(), strict=True)):
                layer = self.layout.layer(h)
                shape = absolute[layer].shape
                if sp.issparse(mine) != sp.issparse(theirs):
                    mine, theirs = (sp.csr_array(x if sp.issparse(x) else x.reshape(-1, x.shape[-1])) for x in (mine, theirs))
                mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
                roots = (mine.sqrt() - theirs.sqrt()) if sp.issparse(mine) else np.sqrt(mine) - np.sqrt(theirs)
                absolute[layer] = np.asarray(abs(mine - theirs).sum(axis=-1)).reshape(shape)
                squared[layer] = np.asarray((roots * roots).sum(axis=-1)).reshape(shape)
            # The transitions are kept as well, so that no other can have their id.
            found = self._distances[id(model.transitions)] = (model.transitions, absolute, squared)
        return found[1], found[2]


# -- the regret's terms --------------------------------------------------------------------------------------------------


class ModelErrors(NamedTuple):
    """Parts of the expected sum along an episode of l* + P* V^t - Q^t, which is loss + dynamics + bonus - truncation.

    Attributes
    ----------
    loss, dynamics : ndarray, shape (T,)
        Of l* - f^t and of (P* - P^t) V^t.
    bonus : ndarray, shape (T,)
        Of b^t.
    truncation : ndarray, shape (T,)
        Of what max{0, .} adds to Q^t.
    """

    loss: Array
    dynamics: Array
    bonus: Array
    truncation: Array

    @property
    def total(self) -> Array:
        """loss + dynamics + bonus - truncation, shape (T,)."""
        return self.loss + self.dynamics + self.bonus - self.truncation


class RegretTerms(NamedTuple):
    """The regret of each episode and its terms (paper, section 4.1), each of shape (T,); the paper's terms are their sums.

    Attributes
    ----------
    regret : ndarray
        V^{pi^t} - V^{pi*} at s_1 in the true model of the episode's context: term_i + term_ii.
    term_i : ndarray
        V^{pi^t} - V^t, the approximation error: how much worse the policy is than the optimistic estimate V^t says.
    term_ii : ndarray
        V^t - V^{pi*}, the optimistic term: term_iii + term_iv.
    term_iii : ndarray
        sum_h Lambda^t_h, what online mirror descent on Q^t still loses against pi*.
    term_iv : ndarray
        sum_h Phi^t_h, the Bellman error of Q^t along pi*; not above 0 where the bonuses outweigh the errors of the fits.
    played : ModelErrors
        Expectations under pi^t and P*; their `total` is term_i.
    optimal : ModelErrors
        Expectations under pi* and P*; their `total` is -term_iv.
    """

    regret: Array
    term_i: Array
    term_ii: Array
    term_iii: Array
    term_iv: Array
    played: ModelErrors
    optimal: ModelErrors


def regret_decomposition(
    cmdp: ContextualMDP, agent: OPO, run: SimulationResult | Iterable[Any], *, progress: bool | None = None
) -> RegretTerms:
    """The terms into which the paper's proof splits the regret, for every episode of a run of OPO (section 4.1).

    Everything follows from the agent's fits and the contexts, so nothing needs to be recorded during the run. A policy chain
    is gone through in NumPy once for each context that was played, up to its last episode.

    Parameters
    ----------
    cmdp : ContextualMDP
    agent : OPO
        As the run left it, or later.
    run : SimulationResult, or iterable of contexts
        What `simulate` gave for an agent that was new; or the contexts of the agent's episodes, from the first one on.
    progress : bool, optional
        A bar on standard error. Default: on a terminal, once two seconds have passed.

    Returns
    -------
    RegretTerms

    Raises
    ------
    OpoError
        The agent has played fewer episodes, or the run is another agent's: its values are not those of this agent's policies.
    """
    having(cmdp, "cmdp", ("mdp", "layout"), "a ContextualMDP")
    instance(agent, "agent", OPO)
    contexts = _contexts(run)
    if len(contexts) > agent.episode:
        raise OpoError(f"run has {len(contexts)} episodes: the agent that played them is needed, this one has observed {agent.episode}")
    played: dict[Hashable, list[int]] = defaultdict(list)
    for t, context in enumerate(contexts):
        played[context_key(context)].append(t)
    rows = np.empty((len(contexts), 13))
    if agent.eta is None or agent.beta_loss is None or agent.beta_dynamics is None:
        raise OpoError('agent tunes itself: its steps are not those of Algorithm 1 (use tuning="theory", or parameters by hand)')
    given = {"eta": agent.eta, "beta_loss": agent.beta_loss, "beta_dynamics": agent.beta_dynamics}
    done = 0
    with bar("terms of the regret", sum(episodes[-1] + 1 for episodes in played.values()), progress) as show:
        for episodes in played.values():
            context, wanted = contexts[episodes[0]], set(episodes)
            truth = Truth(cmdp.mdp(context))
            for t, step in enumerate(optimistic_steps(history_at(agent, context, episodes[-1] + 1), **given)):
                if t in wanted:
                    value, ahead = float(evaluate(truth.mdp, step.policy).v[0]), truth.ahead(step.v)
                    bellman = float((truth.reach * (step.q - truth.mdp.losses - ahead)).sum())
                    terms = (value - truth.value, value - step.v[0], step.v[0] - truth.value, truth.omd(step), bellman)
                    mine = truth.errors(step, ahead, occupancy(truth.mdp, step.policy))
                    rows[t] = *terms, *mine, *truth.errors(step, ahead, truth.reach)
                done += 1
                show(done)
    regret, i, ii, iii, iv, *errors = rows.T.copy()
    _same_run(run, regret)
    return RegretTerms(regret, i, ii, iii, iv, ModelErrors(*errors[:4]), ModelErrors(*errors[4:]))


def _contexts(run: Any) -> list[Any]:
    """The context of every episode of a run."""
    if not isinstance(run, SimulationResult):
        return items(run, "run", "contexts", some=True)
    if not run.contexts:
        raise OpoError("run kept no contexts, as there are more than 10,000 of them or no episodes: give the episodes' contexts themselves")
    return [run.contexts[number] for number in run.context_index]


def _same_run(run: Any, regret: Array) -> None:
    """Refuse an agent that did not play the run."""
    recorded = run.regret if isinstance(run, SimulationResult) else regret
    bad = np.flatnonzero(~(np.abs(recorded - regret) <= 1e-6))
    if bad.size:
        t = int(bad[0])
        raise OpoError(
            f"run: the regret of episode {t + 1} is {float(recorded[t])!r}, and {float(regret[t])!r} for this agent: "
            "the agent that played the run, new at its start, is needed"
        )
