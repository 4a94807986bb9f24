"""The regret of a run, split into the terms of the paper's proof.

The proof looks at one context at a time: the steps of an agent's chain at a context (`steps`) are compared with the context's true model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_bool, as_items, having
from .._support.progress import bar
from ..agents.base import BaseAgent
from ..agents.baselines import Greedy
from ..agents.chain_agent import ChainAgent
from ..agents.rmucdd import listed_contexts
from ..errors import OpoError
from ..model.contextual import ContextualMDP, context_key
from ..model.layered import LayeredMDP
from ..model.operations import evaluate, occupancy, solve
from ..model.reference import expected_next
from .result import SimulationResult
from .steps import Step, agent_steps, greedy_steps

__all__ = [
    "ModelErrors",
    "RegretTerms",
    "Truth",
    "check_same_run",
    "check_terms",
    "contexts_of",
    "listed",
    "regret_decomposition",
]

Array = npt.NDArray[Any]

MOST_TRUTHS = 64
"""True models that are kept at once. Chains run in packs, which need no more even if there are many contexts."""


class Truth:
    """The true model of a context, its optimum, and the quantities of the proof that compare a step with it."""

    def __init__(self, mdp: LayeredMDP) -> None:
        self.mdp, self.layout = mdp, mdp.layout
        self.blocks = mdp.transitions.arrays()
        optimum = solve(mdp)
        self.value, self.optimal = float(optimum.v[0]), optimum.policy
        self.reach = occupancy(mdp, self.optimal)
        self._distances: dict[int, tuple[Any, Array, Array]] = {}

    def ahead(self, v: Array) -> Array:
        """P* v for all state-action pairs."""
        layout, result = self.layout, np.zeros(self.layout.shape)
        for h, block in enumerate(self.blocks):
            result[layout.layer(h)] = expected_next(block, v[layout.layer(h + 1)], result[layout.layer(h)].shape)
        return result

    def omd(self, q: Array, policy: Array) -> Array:
        """sum_h Lambda^t_h of Q^t and pi^t (n_states, A), or of several along the first axis."""
        return np.asarray((self.reach.sum(axis=1) * (q * (policy - self.optimal)).sum(axis=-1)).sum(axis=-1))

    def bellman(self, q: Array, ahead: Array) -> Array:
        """sum_h Phi^t_h of Q^t and P* V^t (n_states, A), or of several along the first axis."""
        return np.asarray((self.reach * (q - self.mdp.losses - ahead)).sum(axis=(-2, -1)))

    def errors(self, step: Step, ahead: Array, occupied: Array) -> tuple[float, float, float, float]:
        """The entries of `ModelErrors`, in expectation under the occupancy `occupied`."""
        parts = (self.mdp.losses - step.model.losses, ahead - step.ahead, step.bonus, step.truncation)
        return tuple(float((occupied * part).sum()) for part in parts)  # type: ignore[return-value]

    def terms(self, step: Step) -> Array:
        """A row of `RegretTerms`: regret, terms (i) to (iv), model errors along pi^t and along pi*; shape (13,)."""
        value, ahead = float(evaluate(self.mdp, step.policy).v[0]), self.ahead(step.v)
        inner = self.omd(step.q, step.policy), self.bellman(step.q, ahead)
        terms = (value - self.value, value - step.v[0], step.v[0] - self.value, *inner)
        errors = self.errors(step, ahead, occupancy(self.mdp, step.policy)), self.errors(step, ahead, self.reach)
        return np.array([*terms, *errors[0], *errors[1]])

    def distances(self, model: LayeredMDP) -> tuple[Array, Array]:
        """L1 and squared Hellinger distance between P^t and P* for each state-action pair."""
        found = self._distances.get(id(model.transitions))
        if found is None or found[0] is not model.transitions:
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
            # Keeping the transitions prevents that their id is used again.
            found = self._distances[id(model.transitions)] = (model.transitions, absolute, squared)
        return found[1], found[2]


# -- the terms of the regret ---------------------------------------------------------------------------------------------


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
    cmdp: ContextualMDP, agent: Any, run: SimulationResult | Iterable[Any], *, expected: bool = False, progress: bool | None = None
) -> RegretTerms:
    """The terms into which the paper's proof splits the regret, for every episode of a run (section 4.1).

    They follow from the agent's fits and the contexts, so nothing needs to be recorded during the run. The engine runs the chain of each
    context once more, up to its last episode.

    regret = term_i + term_ii and term_ii = term_iii + term_iv are identities for any policy and any Q with V = <policy, Q>:

    - OPO, with given parameters, with the theory's constants, and self-tuning: all terms. For self-tuning OPO `truncation` is the amount by
      which Q exceeds the paper's f - b + P V; there, Q is raised to its lower bound over all plausible models, not only to 0.
    - E-UC3RL, RM-UCDD: all terms, with Q raised to 0. Their policy minimises Q, so term (iii) is at most 0. In the episodes in which
      RM-UCDD has to play each action there is a regret but no estimate, and the terms are NaN.
    - greedy, epsilon-greedy: Q and V of the played policy in the fitted model. Bonus and truncation are 0, and term (iii) of greedy is at
      most 0. These agents keep no history, so `run` must be the run's own result.
    - All others have no estimate V^t, so their terms are undefined, and the agent is refused.

    Parameters
    ----------
    cmdp : ContextualMDP
    agent : ChainAgent or Greedy
        In its state at the end of the run, or later.
    run : SimulationResult, or iterable of contexts
        The result of `simulate`, or the contexts of the agent's episodes, beginning with its first.
    expected : bool
        Compute the terms in expectation over the contexts of `cmdp`, as in the paper, instead of at the contexts that were played. `cmdp`
        must list its contexts with their probabilities; all contexts are evaluated in all episodes.
    progress : bool, optional
        Show a bar. Default: on a terminal and in a notebook, once two seconds have passed.

    Returns
    -------
    RegretTerms

    Raises
    ------
    OpoError
        The terms of the agent are undefined; it has played fewer episodes than `run`, or its policies do not have the values of `run`, so
        that another agent played it; or `expected` is set and `cmdp` does not list its contexts.
    """
    check_terms(cmdp, agent)
    contexts, first = contexts_of(run), run.first if isinstance(run, SimulationResult) else 0
    if first + len(contexts) > agent.episode:
        raise OpoError(
            f"run ends at episode {first + len(contexts)}, but this agent has only observed {agent.episode}: pass the agent that played it"
        )
    wanted, weights = _wanted(cmdp, contexts, first, as_bool(expected, "expected"))
    played = [context_key(context) for context in contexts]
    keys = [context_key(context) for context, _ in wanted]
    truths: dict[int, Truth] = {}
    rows, regret = np.zeros((len(contexts), 13)), np.full(len(contexts), np.nan)
    with bar("terms of the regret", sum(len(episodes) for _, episodes in wanted), progress) as show:
        for done, (which, t, step) in enumerate(run_steps(agent, run, wanted)):
            if which not in truths:
                truths = {which: Truth(cmdp.mdp(wanted[which][0])), **(truths if len(truths) < MOST_TRUTHS else {})}
            row = truths[which].terms(step)
            rows[t - first] += weights[which] * row
            if keys[which] == played[t - first]:
                regret[t - first] = row[0]
            show(done + 1)
    forced = max(0, (agent.rule.forced if isinstance(agent, ChainAgent) else 0) - first)
    rows[:forced, 1:] = np.nan
    for (context, episodes), weight in zip(wanted, weights, strict=True):
        for t in [t for t in episodes if t < first + forced]:
            mdp = cmdp.mdp(context)
            rows[t - first, 0] += weight * float(evaluate(mdp, agent.forced_policy(t)).v[0] - solve(mdp).v[0])
    check_same_run(run, regret, forced)
    total, i, ii, iii, iv, *errors = rows.T.copy()
    return RegretTerms(total, i, ii, iii, iv, ModelErrors(*errors[:4]), ModelErrors(*errors[4:]))


def run_steps(agent: Any, run: Any, wanted: Sequence[tuple[Any, Sequence[int]]]) -> Iterator[tuple[int, int, Step]]:
    """The steps of a run at given contexts and episodes, for all agents that have an estimate V^t."""
    return agent_steps(agent, wanted) if isinstance(agent, ChainAgent) else greedy_steps(agent, _fits(agent, run), wanted)


def listed(cmdp: Any) -> list[tuple[Any, float]]:
    """The contexts of positive probability, each with its probability."""
    contexts, chances = listed_contexts(cmdp), getattr(cmdp, "probabilities", None)
    if contexts is None or chances is None:
        raise OpoError("cmdp does not list its contexts with their probabilities: an expectation over them needs both")
    return [(context, float(p)) for context, p in zip(contexts, chances, strict=True) if p > 0]


def check_terms(cmdp: Any, agent: Any) -> None:
    """Refuse environments without models, and agents whose terms are undefined."""
    having(cmdp, "cmdp", ("mdp", "layout"), "a ContextualMDP")
    if not isinstance(agent, (ChainAgent, Greedy)):
        kind = "an agent without an optimistic estimate V^t" if isinstance(agent, BaseAgent) else f"a {type(agent).__name__}"
        raise OpoError(f"agent is {kind}, whose terms are undefined: opo, e-uc3rl, rm-ucdd, greedy or epsilon-greedy is needed")


def _wanted(cmdp: Any, contexts: Sequence[Any], first: int, expected: bool) -> tuple[list[tuple[Any, Sequence[int]]], list[float]]:
    """The contexts to evaluate, each with its episodes, and their weights."""
    if expected:
        pairs = listed(cmdp)
        return [(context, range(first, first + len(contexts))) for context, _ in pairs], [p for _, p in pairs]
    episodes: dict[Hashable, list[int]] = defaultdict(list)
    for t, context in enumerate(contexts):
        episodes[context_key(context)].append(first + t)
    return [(contexts[at[0] - first], at) for at in episodes.values()], [1.0] * len(episodes)


def _fits(agent: Greedy, run: Any) -> list[tuple[int, int]]:
    """The fits of each episode of a greedy planner's run: those after the episode before."""
    if not isinstance(run, SimulationResult):
        raise OpoError(f"run is a {type(run).__name__}: the SimulationResult is needed, as {agent.name} keeps no history of its fits")
    if run.first:
        raise OpoError(f"run begins at episode {run.first + 1}: {agent.name} keeps no history of its fits; join it to the run before (+)")
    found = list(zip(run.loss_fit.tolist(), run.dynamics_fit.tolist(), strict=True))
    if any(fit < 0 for pair in found for fit in pair):
        raise OpoError("run has no numbers of its fits: oracles whose fits are whole numbers are needed")
    return [agent.first_fits, *found[:-1]]


def contexts_of(run: Any) -> list[Any]:
    """The context of every episode of a run."""
    if not isinstance(run, SimulationResult):
        return as_items(run, "run", "contexts", some=True)
    if not run.contexts:
        raise OpoError(
            "run kept no contexts, since it has more than 10,000 of them or no episodes: pass the contexts of all episodes instead"
        )
    return [run.contexts[number] for number in run.context_index]


def check_same_run(run: Any, regret: Array, first: int = 0) -> None:
    """Refuse an agent whose policies do not have the regret that the run recorded, from its episode `first` on."""
    recorded = run.regret if isinstance(run, SimulationResult) else regret
    bad = np.flatnonzero(~(np.abs(recorded - regret)[first:] <= 1e-6))
    if bad.size:
        t = first + int(bad[0])
        raise OpoError(
            f"run: the regret of episode {t + 1} is {float(recorded[t])!r}, and {float(regret[t])!r} for this agent: "
            "the agent that played the run, new at its start, and the environment of the run are needed"
        )
