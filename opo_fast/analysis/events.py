"""The events A and B of the proof along a run, the three bonus sums, and all statements of the paper with their probabilities.

Section 4.2 and appendix A.2 of the paper look at a fixed context c in episodes t >= 2, with sums over the past policies:

- A: sum_{i<t} E[ sum_h D_H^2(P^t, P*) ] > gamma, the dynamics are still inaccurate;
- B(h, s, a): 1 + sum_{i<t} q(s, a | pi^i, P*) <= gamma', the state-action pair is under-explored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_items, as_number, having, instance, shown
from .._support.progress import bar
from ..agents.opo import OPO
from ..algorithm.self_tuning import SelfTuningRule
from ..errors import OpoError
from ..model.contextual import ContextualMDP, context_key
from ..model.layered import LayeredMDP
from ..runs.decomposition import Truth, check_same_run, contexts_of, listed
from ..runs.result import SimulationResult
from ..runs.steps import allowed_pairs
from .bounds import Bounds, bounds, thresholds
from .stacked import StackedSteps, constant_betas, occupancies, past_sums, stacked_steps

__all__ = ["ContextEvents", "Frequency", "RunEvents", "Statement", "context_events", "event_frequencies", "run_events"]

Array = npt.NDArray[Any]
ROUNDING = 1e-9


class ContextEvents(NamedTuple):
    """The quantities of the proof at one context, as if it were played in every episode t = 1, ..., T.

    Attributes
    ----------
    true_visits, estimated_visits : ndarray, shape (T, n_states, A)
        sum_{i<t} q(s, a | pi^i, P*) and the same under P^t.
    squared, hellinger : ndarray, shape (T,)
        sum_{i<t} of the expected errors E_sq^t(pi^i, c) and E_H^t(pi^i, c) (section 2.3).
    inaccurate : ndarray of bool, shape (T,)
        Event A.
    under_explored : ndarray of bool, shape (T, n_states, A)
        Event B; False at masked pairs.
    bonuses : ndarray, shape (T, 3)
        The expected bonus along an episode under A, under not A and B, and under not A and not B; 0 in the first episode.
    factor : ndarray, shape (T,)
        The largest (1 + true visits) / (1 + estimated visits) over pairs with neither A nor B; NaN if there are none.
    capped : ndarray, shape (T,)
        The largest b_beta - (beta/2) / (1 + true visits) over both betas and the pairs with B; NaN if there are none.
    measure, measure_back : ndarray, shape (T,)
        The largest difference, left minus right side, over the pairs in the value change of measure and in its corollary.
    regret, term_i, term_iii, term_iv : ndarray, shape (T,)
    """

    true_visits: Array
    estimated_visits: Array
    squared: Array
    hellinger: Array
    inaccurate: Array
    under_explored: Array
    bonuses: Array
    factor: Array
    capped: Array
    measure: Array
    measure_back: Array
    regret: Array
    term_i: Array
    term_iii: Array
    term_iv: Array


def context_events(
    truth: LayeredMDP, steps: StackedSteps, *, beta_loss: float, beta_dynamics: float, gamma: float, gamma_visits: float
) -> ContextEvents:
    """The events at one context.

    Parameters
    ----------
    truth : LayeredMDP
        The true model of the context.
    steps : StackedSteps
        From `stacked_steps`, or from another implementation.
    beta_loss, beta_dynamics, gamma, gamma_visits : float
        Above 0. Whether gamma and gamma' satisfy the paper's conditions is not checked here.
    """
    instance(truth, "truth", LayeredMDP)
    instance(steps, "steps", StackedSteps)
    if steps.models[0].layout != truth.layout:
        raise OpoError(f"steps have {steps.models[0].layout!r}: the layout of truth, {truth.layout!r}, is needed")
    betas = as_number(beta_loss, "beta_loss", strict=True), as_number(beta_dynamics, "beta_dynamics", strict=True)
    gamma, gamma_visits = as_number(gamma, "gamma", strict=True), as_number(gamma_visits, "gamma_visits", strict=True)
    judge, h, allowed = Truth(truth), truth.layout.horizon, allowed_pairs(truth)
    q = occupancies(truth, steps.policies)
    past = past_sums(q)
    distances = np.array([judge.distances(model)[1] for model in steps.models])
    errors = np.array([np.square(model.losses - truth.losses) for model in steps.models])
    hellinger, squared = ((past * parts[steps.which]).sum(axis=(1, 2)) for parts in (distances, errors))
    inaccurate, under = hellinger > gamma, allowed & (1 + past <= gamma_visits)
    explored = allowed & ~under & ~inaccurate[:, None, None]
    b = q * steps.bonus
    cases = np.stack([(b * part).sum(axis=(1, 2)) for part in (inaccurate[:, None, None], ~inaccurate[:, None, None] & under, explored)], 1)
    cases[0] = 0.0
    capped = np.maximum(*(mine - beta / 2 / (1 + past) for mine, beta in zip((steps.bonus_loss, steps.bonus_dynamics), betas, strict=True)))
    total = hellinger[:, None, None]
    there = steps.visits - (3 * past + 9 * h**2 * total), past - (3 * steps.visits + (54 * h**2 + 162 * h**4) * total)
    value = (q * truth.losses).sum(axis=(1, 2))
    return ContextEvents(
        past,
        steps.visits,
        squared,
        hellinger,
        inaccurate,
        under,
        cases,
        _largest((1 + past) / (1 + steps.visits), explored),
        _largest(capped, under),
        _largest(there[0], np.broadcast_to(allowed, past.shape)),
        _largest(there[1], np.broadcast_to(allowed, past.shape)),
        value - judge.value,
        value - steps.v[:, 0],
        judge.omd(steps.q, steps.policies),
        judge.bellman(steps.q, np.array([judge.ahead(v) for v in steps.v])),
    )


def _largest(values: Array, where: Array) -> Array:
    """The largest entry of each step among the pairs `where`; NaN if there are none."""
    found = np.where(where, values, -np.inf).max(axis=(1, 2))
    return np.where(np.isneginf(found), np.nan, found)


class Statement(NamedTuple):
    """A statement of the paper about a run: left <= right, with at least a certain probability.

    Attributes
    ----------
    source : str
    left, right : float
    probability : float
        1 where it holds in every run.
    """

    source: str
    left: float
    right: float
    probability: float

    @property
    def holds(self) -> bool:
        """Whether it held in this run, up to rounding; a left side of -infinity (nothing to compare) holds, NaN does not."""
        return self.left <= self.right + ROUNDING * (1 + abs(self.right))


@dataclass(frozen=True, eq=False)
class RunEvents:
    """The events of a run at all contexts, and the statements of the paper about it.

    Attributes
    ----------
    contexts : tuple
    probabilities : ndarray, shape (n,)
    each : tuple of ContextEvents
    bounds : Bounds
        At the agent's parameters.
    delta, gamma, gamma_visits : float
    played : float
        The regret of the run at the contexts that were played.
    horizon : int
    pairs : int
        Number of allowed state-action pairs.
    implausible : float
        Bound on the probability that the truth leaves the plausible sets of self-tuning OPO, its delta; 0 without such sets.
    """

    contexts: tuple[Any, ...]
    probabilities: Array
    each: tuple[ContextEvents, ...]
    bounds: Bounds
    delta: float
    gamma: float
    gamma_visits: float
    played: float
    horizon: int
    pairs: int
    implausible: float = 0.0

    def expected(self, name: str) -> Array:
        """A column of `ContextEvents` in expectation over the contexts, with the episode as first axis."""
        parts = [getattr(events, name) for events in self.each]
        return np.asarray(sum(p * np.asarray(part, np.float64) for p, part in zip(self.probabilities, parts, strict=True)))

    def columns(self) -> dict[str, Array]:
        """For each episode, in expectation over the contexts: shape (T,) each.

        The errors of the fits, the probability of A and the mean share of the pairs with B, the three bonus sums, regret and terms.
        """
        found = {name: self.expected(name) for name in ("squared", "hellinger", "inaccurate")}
        found["under_explored"] = self.expected("under_explored").sum(axis=(1, 2)) / self.pairs
        found |= {f"bonus_case_{i + 1}": self.expected("bonuses")[:, i] for i in range(3)}
        return found | {name: self.expected(name) for name in ("regret", "term_i", "term_iii", "term_iv")}

    def worst(self, name: str) -> float:
        """The largest entry of a column over contexts and episodes t >= 2; -infinity if there is none."""
        found = np.concatenate([getattr(events, name)[1:] for events in self.each])
        return float(np.max(found, initial=-np.inf, where=~np.isnan(found)))

    def statements(self) -> dict[str, Statement]:
        """Every statement of the paper, with the run's numbers on its left side, in the order of the proof."""
        delta, bound, h = self.delta, self.bounds, self.horizon
        cases, hellinger = self.expected("bonuses").sum(axis=0), self.expected("hellinger")
        terms = {name: float(self.expected(name).sum()) for name in ("term_i", "term_iii", "term_iv", "regret")}
        markov = float(np.max([events.inaccurate - events.hellinger / self.gamma for events in self.each]))
        by_errors, with_bonuses = (h + 2 * h**2) / self.gamma * float(hellinger.sum()), h + bound.fit_errors + 2 * float(cases.sum())
        quarter, whole = 1 - delta / 4, 1 - delta - self.implausible
        optimistic, expected = quarter - self.implausible, 1 - 3 * delta / 4 - self.implausible
        say = Statement
        return {
            "squared": say("corollary, errors of the loss fits", float(self.expected("squared").max()), bound.squared, 1 - delta / 8),
            "hellinger": say("corollary, errors of the dynamics fits", float(hellinger.max()), bound.hellinger, 1 - delta / 8),
            "measure": say("lemma (value change of measure), per pair", self.worst("measure"), 0.0, 1.0),
            "measure back": say("corollary to it, per pair", self.worst("measure_back"), 0.0, 1.0),
            "markov": say("observation: indicator of A", markov, 0.0, 1.0),
            "capped": say("claim: bonuses under B, per pair", self.worst("capped"), 0.0, 1.0),
            "factor 6": say("lemma: visits under not A and not B, per pair", self.worst("factor"), 6.0, 1.0),
            "case 1": say("lemma (case 1), by the errors of the fits", float(cases[0]), by_errors, 1.0),
            "case 1, guaranteed": say("lemma (case 1), by the oracle's guarantee", float(cases[0]), bound.bonus_case_1, quarter),
            "case 2": say("lemma (case 2)", float(cases[1]), bound.bonus_case_2, 1.0),
            "case 3": say("lemma (case 3)", float(cases[2]), bound.bonus_case_3, 1.0),
            "bonus": say("lemma (bonus bound)", float(cases.sum()), bound.bonus_lemma, quarter),
            "term i": say("lemma (term i), with the bonuses of the run", terms["term_i"], with_bonuses, quarter),
            "term i, bonus": say("lemmas (term i) and (bonus bound)", terms["term_i"], bound.term_i, 1 - delta / 2),
            "term iii": say("lemma (term iii)", terms["term_iii"], bound.term_iii, 1.0),
            "term iv": say("lemma (term iv)", terms["term_iv"], bound.term_iv, optimistic),
            "expected": say("theorem, first line: E[regret]", terms["regret"], bound.expected, expected),
            "lemmas": say("sum of the lemmas: E[regret]", terms["regret"], bound.expected_from_lemmas, expected),
            "balanced": say("theorem, balanced line: E[regret]", terms["regret"], bound.expected_balanced, expected),
            "azuma": say("corollary: regret against E[regret]", abs(self.played - terms["regret"]), bound.azuma, quarter),
            "regret, first line": say("theorem, first line: regret", self.played, bound.regret_tight, whole),
            "regret, lemmas": say("sum of the lemmas: regret", self.played, bound.regret_from_lemmas, whole),
            "regret": say("theorem: regret", self.played, bound.regret, whole),
            "trivial": say("H T", self.played, bound.trivial, 1.0),
        }


def run_events(
    cmdp: ContextualMDP,
    agent: OPO,
    run: SimulationResult,
    *,
    delta: float = 0.05,
    gamma: float | None = None,
    gamma_visits: float | None = None,
    progress: bool | None = None,
) -> RunEvents:
    """The events A and B along a run of OPO at every context, and the paper's statements about it.

    Parameters
    ----------
    cmdp : ContextualMDP
        It must list its contexts and their probabilities.
    agent : OPO
        In its state at the end of the run. Self-tuning OPO must have been given the number of episodes, so that its betas are constant:
        ``opo_fast.OPO(layout, loss_class, dynamics_class, episodes=T)``. Term (iii) is then bounded by twice its mixability gaps, and the
        probability of statements that rest on its plausible sets is lower by their delta.
    run : SimulationResult
        The whole run of this agent in `cmdp`.
    delta, gamma, gamma_visits : float
        As in `bounds`.
    progress : bool, optional
        Show a bar. Default: on a terminal and in a notebook, once two seconds have passed.

    Returns
    -------
    RunEvents

    Raises
    ------
    OpoError
        The contexts are not listed, agent or environment are not those of the run, or the lemmas do not allow the thresholds.
    """
    having(cmdp, "cmdp", ("mdp", "layout"), "a ContextualMDP")
    instance(agent, "agent", OPO)
    instance(run, "run", SimulationResult)
    if run.first or run.episodes != agent.episode:
        raise OpoError(
            f"run has the episodes from {run.first + 1} to {run.first + run.episodes}: all {agent.episode} of the agent are needed"
        )
    pairs, t = listed(cmdp), run.episodes
    own = thresholds(cmdp.layout.horizon, *constant_betas(agent, t), gamma, gamma_visits)
    given: dict[str, Any] = {"eta": agent.eta, **own._asdict()}
    if agent.rule.hedged:
        given["term_iii"] = sum(p * agent.diagnostics(context, full=False).hedge_bound for context, p in pairs)
    stated = bounds(cmdp.layout, t, **agent.class_sizes, delta=delta, **given)
    contexts, places = [context for context, _ in pairs], _places(run, [context for context, _ in pairs])
    each = []
    with bar("events of the proof", len(pairs), progress) as show:
        for context, steps in zip(contexts, stacked_steps(agent, contexts, t), strict=True):
            each.append(context_events(cmdp.mdp(context), steps, **own._asdict()))
            show(len(each))
    check_same_run(run, np.array([each[place].regret[k] for k, place in enumerate(places)]))
    return RunEvents(
        tuple(contexts),
        np.array([p for _, p in pairs]),
        tuple(each),
        stated,
        delta,
        own.gamma,
        own.gamma_visits,
        float(run.regret.sum()),
        cmdp.layout.horizon,
        int(allowed_pairs(cmdp.mdp(contexts[0])).sum()),
        agent.rule.delta if isinstance(agent.rule, SelfTuningRule) and agent.rule.plausible else 0.0,
    )


def _places(run: SimulationResult, contexts: Sequence[Any]) -> list[int]:
    """The position in `contexts` of each episode's context."""
    place = {context_key(context): i for i, context in enumerate(contexts)}
    played = contexts_of(run)
    for t, context in enumerate(played):
        if context_key(context) not in place:
            raise OpoError(
                f"run: the context of episode {t + 1}, {shown(context)}, has no positive probability in cmdp: the environment of the run "
                "is needed"
            )
    return [place[context_key(context)] for context in played]


class Frequency(NamedTuple):
    """How often a statement held over runs of different seeds.

    Attributes
    ----------
    source : str
    held, runs : int
    probability : float
        The paper's lower bound on the probability of the statement.
    low, high : float
        95 % Clopper-Pearson interval of the frequency.
    tightest : float
        The largest difference, left minus right side; NaN if one of them is NaN.
    share : float
        The largest ratio of left to right side over the runs with a finite left side and a right side other than 0; NaN if there is no
        such run.
    """

    source: str
    held: int
    runs: int
    probability: float
    low: float
    high: float
    tightest: float
    share: float

    @property
    def consistent(self) -> bool:
        """Whether the runs are consistent with the paper: a statement with probability 1 held in each run, and otherwise the interval
        reaches the probability."""
        return self.held == self.runs if self.probability == 1.0 else self.high >= self.probability


def event_frequencies(runs: Iterable[dict[str, Statement]]) -> dict[str, Frequency]:
    """Frequencies of the statements over runs.

    Parameters
    ----------
    runs : iterable of dict
        The results of `RunEvents.statements`, one for each seed.
    """
    from scipy import stats

    found = as_items(runs, "runs", "dicts of statements", some=True)
    for i, one in enumerate(found):
        instance(one, f"runs[{i}]", dict, needed="what RunEvents.statements gives")
        if one.keys() != found[0].keys():
            raise OpoError(f"runs[{i}] has the statements {', '.join(one)}: those of runs[0], {', '.join(found[0])}, are needed")
        for name, statement in one.items():
            instance(statement, f"runs[{i}][{name!r}]", Statement, needed="what RunEvents.statements gives")
    result = {}
    for name, first in found[0].items():
        mine = [one[name] for one in found]
        held = sum(statement.holds for statement in mine)
        low, high = stats.binomtest(held, len(mine)).proportion_ci(0.95, method="exact")
        gap = float(np.max([s.left - s.right for s in mine]))
        shares = [s.left / s.right for s in mine if s.right and math.isfinite(s.left)]
        largest = max(shares, default=math.nan)
        result[name] = Frequency(first.source, held, len(mine), first.probability, float(low), float(high), gap, largest)
    return result
