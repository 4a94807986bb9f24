"""Both sides of the paper's lemmas on a run: which of them hold, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number, instance
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.operations import evaluate, occupancy
from ..runs.decomposition import Truth
from ..runs.steps import Step, allowed_pairs
from .bounds import SMALLEST, OracleErrors

__all__ = ["LemmaCheck", "lemma_checks", "oracle_errors"]

Array = npt.NDArray[Any]


def oracle_errors(truth: LayeredMDP, steps: Iterable[Step]) -> OracleErrors:
    """Errors of the fits at one context in each episode, weighted by the occupancies of the earlier policies in the true model.

    Parameters
    ----------
    truth : LayeredMDP
    steps : iterable of Step
    """
    judge, rows = _judge(truth), []
    for step, _, past in _walk(judge, steps):
        rows.append(((past * np.square(step.model.losses - truth.losses)).sum(), (past * judge.distances(step.model)[1]).sum()))
    return OracleErrors(*np.array(rows).T)


def _judge(truth: Any) -> Truth:
    instance(truth, "truth", LayeredMDP)
    return Truth(truth)


def _walk(judge: Truth, steps: Iterable[Step]) -> Iterator[tuple[Step, Array, Array]]:
    """Each step with q(pi^t, P*) and sum_{i<t} q(pi^i, P*)."""
    if not isinstance(steps, Iterable):
        raise OpoError(f"steps is a {type(steps).__name__}: what optimistic_steps gives is needed")
    past, step = np.zeros(judge.layout.shape), None
    for t, step in enumerate(steps):
        instance(step, f"steps[{t}]", Step, needed="a Step of optimistic_steps")
        if step.model.layout != judge.layout:
            raise OpoError(f"steps[{t}] has {step.model.layout!r}: the layout of truth, {judge.layout!r}, is needed")
        if not np.array_equal(allowed_pairs(step.model), allowed_pairs(judge.mdp)):
            raise OpoError(f"steps[{t}] has another action mask than truth: the same is needed")
        q = occupancy(judge.mdp, step.policy)
        yield step, q, past
        past = past + q
    if step is None:
        raise OpoError("steps: at least one is needed, got none")


@dataclass(frozen=True, eq=False, repr=False)
class LemmaCheck:
    """Both sides of an inequality of the paper's proof on a run. Its repr shows them where they are tightest.

    Attributes
    ----------
    source : str
        The lemma, or the place in its proof.
    left, right : ndarray
        The two sides wherever they were compared; for comparisons per state-action pair only the tightest pair of each step.
    exact : bool
        Whether the lemma is an equality.
    """

    source: str
    left: Array
    right: Array
    exact: bool = False

    @property
    def slack(self) -> Array:
        """right - left, or -|right - left| for an equality; negative where the lemma is violated."""
        return -np.abs(self.right - self.left) if self.exact else self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the lemma holds everywhere, up to rounding."""
        return bool((self.slack >= -1e-9 * (1 + np.abs(self.left))).all())

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "VIOLATED"
        if not self.left.size:
            return f"{verdict:8}  nowhere to compare  {self.source}"
        at = int(self.slack.argmin())
        sign = "=" if self.exact else "<="
        return f"{verdict:8}  {self.left[at]:.6g} {sign} {self.right[at]:.6g} (tightest of {self.left.size})  {self.source}"


_SOURCES = {
    "value difference": "Lemma (extended value difference), V^t against V^{pi*}: terms (iii) and (iv)",
    "value difference, played": "Lemma (extended value difference), V^t against V^{pi^t}: term (i)",
    "online mirror descent": "Theorem (fundamental inequality of OMD), per state, against the best action",
    "term iii": "Lemma (bound of term iii), before eta is chosen",
    "optimism": "proof of the bound of term iv: xi <= rho, per pair",
    "term iv": "Lemma (bound of term iv), before the oracles' guarantees",
    "term i": "Lemma (bound of term i), before the oracles' guarantees",
    "change of measure": "Lemma (value change of measure), visits of a pair under P^t by those under P*",
    "change of measure, back": "Corollary to it, visits of a pair under P* by those under P^t",
    "bonus where under-explored": "Claim for event B, per pair",
    "visits where explored": "Lemma for events not A and not B, per pair",
    "bonus, inaccurate dynamics": "Lemma (case 1): event A",
    "bonus, under-explored": "Lemma (case 2): events not A and B",
    "bonus, explored": "Lemma (case 3): events not A and not B",
    "bonus": "Lemma (bonus bound), before the oracle's guarantee",
    "logarithmic sums": "Lemma (logarithmic sums), visits under P* of each pair",
}
_EXACT = ("value difference", "value difference, played")


def lemma_checks(truth: LayeredMDP, steps: Iterable[Step], *, eta: float, beta_loss: float, beta_dynamics: float) -> dict[str, LemmaCheck]:
    """Both sides of the key inequalities of the paper's proof, at one context (section 4 and appendix A).

    All hold for any fits, as long as Algorithm 1 ran with these parameters: the right sides contain the errors of the fits themselves (see
    `oracle_errors`), which the paper then bounds by the oracles' guarantees. Sums over episodes assume that the context is played in each
    of them, as the proof does before it averages over contexts.

    Parameters
    ----------
    truth : LayeredMDP
        The true model of the context.
    steps : iterable of Step
        From `optimistic_steps`, or from another implementation.
    eta, beta_loss, beta_dynamics : float
        The parameters with which the steps were computed, at least 1e-280.

    Returns
    -------
    dict of LemmaCheck
        In the order of the proof; ``print(*checks.values(), sep="\\n")`` shows them all.
    """
    judge, h = _judge(truth), truth.layout.horizon
    eta, b_l, b_p = (as_number(x, n, least=SMALLEST) for x, n in ((eta, "eta"), (beta_loss, "beta_loss"), (beta_dynamics, "beta_dynamics")))
    least, both, allowed = min(b_l, b_p), b_l + 2 * h * b_p, allowed_pairs(truth)
    gamma, gamma_visits = least / (864 * h**4), least / 2
    sides: dict[str, list[tuple[float, float]]] = {name: [] for name in _SOURCES}

    def worst(name: str, left: Array, right: Array, where: Array) -> None:
        """Keep the pair at which a step is closest to violating the lemma."""
        if where.any():
            mine, theirs = left[where], right[where]
            at = int((mine - theirs).argmax())
            sides[name].append((mine[at], theirs[at]))

    n = 0
    gained, least_q, second = np.zeros(truth.layout.n_states), np.zeros(truth.layout.shape), np.zeros(truth.layout.n_states)
    logs = np.zeros(truth.layout.shape)
    term_i = term_iii = term_iv = squared = hellinger = 0.0
    cases = np.zeros(3)
    for step, q, past in _walk(judge, steps):
        n += 1
        ahead, visits, b = judge.ahead(step.v), step.visits, step.bonus
        absolute, distance = judge.distances(step.model)
        loss = np.square(step.model.losses - truth.losses)
        total = float((past * distance).sum())
        squared, hellinger = squared + float((past * loss).sum()), hellinger + total

        bellman = step.q - truth.losses - ahead
        value, omd = float(evaluate(truth, step.policy).v[0]), float(judge.omd(step.q, step.policy))
        phi = float(judge.bellman(step.q, ahead))
        sides["value difference"].append((float(step.v[0]) - judge.value, omd + phi))
        sides["value difference, played"].append((float(step.v[0]) - value, float((q * bellman).sum())))
        term_i, term_iii, term_iv = term_i + value - float(step.v[0]), term_iii + omd, term_iv + phi

        gained += (step.policy * step.q).sum(axis=1)
        least_q += step.q
        second += (step.policy * step.q**2).sum(axis=1)
        logs += q / (1 + past)

        rho = (1 + visits * loss) / (2 * b_l) + h / b_p * (1 + visits * absolute**2 / 4)
        worst("optimism", bellman, rho, allowed)
        worst("change of measure", visits, 3 * past + 9 * h**2 * total, allowed)
        worst("change of measure, back", past, 3 * visits + (54 * h**2 + 162 * h**4) * total, allowed)

        inaccurate, under = total > gamma, allowed & (1 + past <= gamma_visits)
        for mine, beta in ((step.bonus_loss, b_l), (step.bonus_dynamics, b_p)):
            worst("bonus where under-explored", mine, beta / 2 / (1 + past), under)
        if not inaccurate:
            worst("visits where explored", (1 + past) / 6, 1 + visits, allowed & ~under)
        if n > 1:
            parts = float((q * b).sum()), float((q * b)[under].sum())
            cases += (parts[0], 0.0, 0.0) if inaccurate else (0.0, parts[1], parts[0] - parts[1])

    choices = allowed.sum(axis=1)
    regrets = gained - np.where(allowed, least_q, np.inf).min(axis=1)
    sides["online mirror descent"] = list(zip(regrets, np.log(choices) / eta + eta / 2 * second, strict=True))
    sides["term iii"].append((term_iii, h * math.log(choices.max()) / eta + eta * n * h**3 / 2))
    errors = n * h / (2 * b_l) + n * h**2 / b_p + 3 / (2 * b_l) * squared
    errors += (9 * h**2 / (2 * b_l) + 9 * h**3 / b_p + 3 * h / b_p) * hellinger
    sides["term iv"].append((term_iv, h * (h + 1) + errors))
    sides["term i"].append((term_i, h + errors + 2 * float(cases.sum())))
    spread = allowed.sum() * math.log(n + 1) * both
    bounds = np.array([(h + 2 * h**2) / gamma * hellinger, spread, 6 * spread])
    for name, left, right in zip(("bonus, inaccurate dynamics", "bonus, under-explored", "bonus, explored"), cases, bounds, strict=True):
        sides[name].append((left, right))
    sides["bonus"].append((float(cases.sum()), float(bounds.sum())))
    sides["logarithmic sums"] = [(x, 2 * math.log(n + 1)) for x in logs[allowed]]
    found = {}
    for name, pairs in sides.items():
        table = np.array(pairs, np.float64).reshape(-1, 2)
        found[name] = LemmaCheck(_SOURCES[name], table[:, 0].copy(), table[:, 1].copy(), name in _EXACT)
    return found
