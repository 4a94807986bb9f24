"""The regret of a run, split into the terms of the paper's proof.

The proof looks at one context at a time: what an agent computed at a context (`steps`) is compared with the true model of the context.
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

    def terms(self, step: Step) -> Array:
        """A row of `RegretTerms`: regret, terms (i) to (iv), model errors along pi^t and along pi*; shape (13,)."""
        value, ahead = float(evaluate(self.mdp, step.policy).v[0]), self.ahead(step.v)
        bellman = float((self.reach * (step.q - self.mdp.losses - ahead)).sum())
        terms = (value - self.value, value - step.v[0], step.v[0] - self.value, self.omd(step), bellman)
        errors = self.errors(step, ahead, occupancy(self.mdp, step.policy)), self.errors(step, ahead, self.reach)
        return np.array([*terms, *errors[0], *errors[1]])

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
    cmdp: ContextualMDP, agent: Any, run: SimulationResult | Iterable[Any], *, expected: bool = False, progress: bool | None = None
) -> RegretTerms:
    """The terms into which the paper's proof splits the regret, for every episode of a run (section 4.1).

    Everything follows from the agent's fits and the contexts, so nothing needs to be recorded during the run. The engine goes through
    the chain of each context once more, up to its last episode.

    That regret = term_i + term_ii and term_ii = term_iii + term_iv are identities for any policy and any Q with V = <policy, Q>:

    - OPO by hand, at the theory's constants and self-tuning: all terms. Of self-tuning OPO `truncation` is by how much Q is above the
      paper's f - b + P V, which the bound over all that is plausible raises too.
    - E-UC3RL, RM-UCDD: all terms, with Q raised to 0. Their policy minimises Q, so term (iii) is at most 0. The episodes in which
      RM-UCDD is forced to play each action have a regret and no estimate: their terms are NaN.
    - greedy, epsilon-greedy: Q and V of the played policy in the fitted model; bonus and truncation are 0, and term (iii) of greedy
      at most 0. They keep no history, so the run's own result is needed.
    - all others have no estimate V^t, and the terms are undefined: refused.

    Parameters
    ----------
    cmdp : ContextualMDP
    agent : ChainAgent or Greedy
        As the run left it, or later.
    run : SimulationResult, or iterable of contexts
        What `simulate` gave; or the contexts of the agent's episodes, from its first one on.
    expected : bool
        In expectation over the contexts of `cmdp`, as the paper's terms are, instead of at the contexts that were played. They must be
        listed, with their probabilities; the work is that of all contexts in all episodes.
    progress : bool, optional
        A bar. Default: on a terminal and in a notebook, once two seconds have passed.

    Returns
    -------
    RegretTerms

    Raises
    ------
    OpoError
        An agent whose terms are undefined; it has played fewer episodes, or the run is another agent's: its values are not those of
        this agent's policies; contexts that are not listed.
    """
    check_terms(cmdp, agent)
    contexts, first = contexts_of(run), run.first if isinstance(run, SimulationResult) else 0
    if first + len(contexts) > agent.episode:
        raise OpoError(
            f"run ends at episode {first + len(contexts)}: the agent that played it is needed, this one has observed {agent.episode}"
        )
    wanted, weights = _wanted(cmdp, contexts, first, as_bool(expected, "expected"))
    played = [context_key(context) for context in contexts]
    keys = [context_key(context) for context, _ in wanted]
    truths: dict[int, Truth] = {}
    rows, regret = np.zeros((len(contexts), 13)), np.full(len(contexts), np.nan)
    with bar("terms of the regret", sum(len(episodes) for _, episodes in wanted), progress) as show:
        for done, (which, t, step) in enumerate(run_steps(agent, run, wanted)):
            if which not in truths:
                # Chains run in packs; of many contexts no more truths are kept than a pack needs.
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


MOST_TRUTHS = 64


def run_steps(agent: Any, run: Any, wanted: Sequence[tuple[Any, Sequence[int]]]) -> Iterator[tuple[int, int, Step]]:
    """The steps of a run at given contexts and episodes, whatever its agent."""
    return agent_steps(agent, wanted) if isinstance(agent, ChainAgent) else greedy_steps(agent, _fits(agent, run), wanted)


def listed(cmdp: Any) -> list[tuple[Any, float]]:
    """The contexts of positive probability, each with it, or an error."""
    contexts, chances = listed_contexts(cmdp), getattr(cmdp, "probabilities", None)
    if contexts is None or chances is None:
        raise OpoError("cmdp does not list its contexts with their probabilities: an expectation over them needs both")
    return [(context, float(p)) for context, p in zip(contexts, chances, strict=True) if p > 0]


def check_terms(cmdp: Any, agent: Any) -> None:
    """Refuse an environment without models, and an agent whose terms are undefined."""
    having(cmdp, "cmdp", ("mdp", "layout"), "a ContextualMDP")
    if not isinstance(agent, (ChainAgent, Greedy)):
        kind = "an agent without an optimistic estimate V^t" if isinstance(agent, BaseAgent) else f"a {type(agent).__name__}"
        raise OpoError(f"agent is {kind}, whose terms are undefined: opo, e-uc3rl, rm-ucdd, greedy or epsilon-greedy is needed")


def _wanted(cmdp: Any, contexts: Sequence[Any], first: int, expected: bool) -> tuple[list[tuple[Any, Sequence[int]]], list[float]]:
    """Which contexts are looked at in which episodes, and their weights."""
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
        raise OpoError("run kept no contexts, as there are more than 10,000 of them or no episodes: give the episodes' contexts themselves")
    return [run.contexts[number] for number in run.context_index]


def check_same_run(run: Any, regret: Array, first: int = 0) -> None:
    """Refuse an agent that did not play the run, from its episode `first` on; in expectation, of contexts that are listed alone."""
    recorded = run.regret if isinstance(run, SimulationResult) else regret
    bad = np.flatnonzero(~(np.abs(recorded - regret)[first:] <= 1e-6))
    if bad.size:
        t = first + int(bad[0])
        raise OpoError(
            f"run: the regret of episode {t + 1} is {float(recorded[t])!r}, and {float(regret[t])!r} for this agent: "
            "the agent that played the run, new at its start, and the environment of the run are needed"
        )
