"""Every bound that the paper states, as a number with its explicit constants.

Logarithms are computed factor by factor, since T^4 H |F||P| / delta^2 itself may overflow. All bounds hold for any positive parameters of
the algorithm; the theorem's parameters give the theorem's bounds. No regret exceeds H T, so a bound above that is vacuous; for practical T
all of them are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._support.checks import as_integer, as_number, instance, shown
from ..algorithm.parameters import log_size, log_term, parameters
from ..algorithm.self_tuning import START_GAP
from ..errors import OpoError
from ..model.layout import Layout

__all__ = [
    "MOST_EPISODES",
    "SMALLEST",
    "Bounds",
    "OracleErrors",
    "Thresholds",
    "adahedge_bound",
    "bounds",
    "informative_from",
    "literature_rates",
    "lower_bound",
    "oracle_guarantees",
    "thresholds",
]

MOST_EPISODES = 10**100
SMALLEST, SMALLEST_GAMMA = 1e-280, 1e-300
"""Smallest eta and betas, and smallest gamma: the proof divides by them, and smaller ones would overflow."""


class OracleErrors(NamedTuple):
    """Errors of the fits: at one context for each episode, (T,); or the bounds on their expectation over contexts.

    Attributes
    ----------
    squared, hellinger
        sum_{i<t} of E^t_sq(pi^i, c) and of E^t_H(pi^i, c) (Corollaries 4.2 and 4.3 in Levy et al. 2024).
    """

    squared: Any
    hellinger: Any


def oracle_guarantees(
    layout: Layout, episodes: int, *, loss_class_size: float, dynamics_class_size: float, delta: float = 0.05
) -> OracleErrors:
    """Bounds on the expected errors of the oracles, each with probability 1 - delta for all episodes (section 2.3).

    They bound the expectation over contexts of `oracle_errors`. Parameters as in `parameters`. `bounds` has them at delta / 8, as the
    lemmas use them.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    return _guarantees(layout.horizon, t, loss_class_size, dynamics_class_size, -math.log(delta))


def _guarantees(horizon: int, episodes: int, loss_class_size: float, dynamics_class_size: float, log_inverse: float) -> OracleErrors:
    """The corollaries on the oracles, each with probability 1 - exp(-log_inverse)."""
    log_losses, log_dynamics = log_size(loss_class_size, 1.0), log_size(1.0, dynamics_class_size)
    return OracleErrors(
        squared=68 * horizon * (math.log(2) + 3 * math.log(episodes) + log_losses + log_inverse),
        hellinger=2 * horizon * (math.log(episodes) + math.log(horizon) + log_dynamics + log_inverse),
    )


class Thresholds(NamedTuple):
    """The betas of Algorithm 1, and thresholds of the events A and B (section 4.2) that the lemmas allow for these betas."""

    beta_loss: float
    beta_dynamics: float
    gamma: float
    gamma_visits: float


def thresholds(
    horizon: int, beta_loss: float, beta_dynamics: float, gamma: float | None = None, gamma_visits: float | None = None
) -> Thresholds:
    """Betas and thresholds with 432 H^4 gamma <= gamma_visits <= min{beta_loss, beta_dynamics} / 2, as the paper needs them.

    Parameters
    ----------
    horizon : int
        H.
    beta_loss, beta_dynamics : float
        At least 1e-280.
    gamma, gamma_visits : float, optional
        The thresholds of A and of B, at least 1e-300 and 5e-281. Default: the largest.

    Raises
    ------
    OpoError
        A number is out of range, or the lemmas do not allow the thresholds.
    """
    beta_loss, beta_dynamics = as_number(beta_loss, "beta_loss", least=SMALLEST), as_number(beta_dynamics, "beta_dynamics", least=SMALLEST)
    most = min(beta_loss, beta_dynamics) / 2
    gamma_visits = as_number(most if gamma_visits is None else gamma_visits, "gamma_visits", least=SMALLEST / 2)
    if not gamma_visits <= most * (1 + 1e-12):
        raise OpoError(f"gamma_visits is {gamma_visits!r}: at most half the least beta, {most!r}, is allowed")
    most = gamma_visits / (432 * horizon**4)
    gamma = as_number(most if gamma is None else gamma, "gamma", least=SMALLEST_GAMMA)
    if not gamma <= most * (1 + 1e-12):
        raise OpoError(f"gamma is {gamma!r}: at most gamma_visits / (432 H^4) = {most!r} is allowed")
    return Thresholds(beta_loss, beta_dynamics, gamma, gamma_visits)


class Bounds(NamedTuple):
    """The bounds of the paper's statements, from the oracles to the regret.

    Attributes
    ----------
    squared, hellinger : float
        Corollaries on the oracles (section 2.3): expected sums of errors over the past of any episode, each with probability
        1 - delta / 8, as the lemmas below use them.
    bonus_case_1, bonus_case_2, bonus_case_3 : float
        The three bonus sums, under the events A, not A and B, not A and not B (cases 1 to 3), in expectation over contexts.
    bonus_sum : float
        Their sum: the expected sum of bonuses, with probability 1 - delta / 4.
    bonus_lemma : float
        The same in the form of the lemma (bonus bound), with H + 2 H^2 rounded up to 3 H^2: 6 T H^3 log(4 T H |P| / delta) / gamma plus
        7 times `bonus_case_2`.
    fit_errors : float
        What the errors of the fits add to term (i) and to term (iv): 112 T H^3 L / beta_l + 25 T H^4 log(8 T H |P| / delta) / beta_P.
    term_i, term_iii, term_iv : float
        Lemmas of section 4.1; term_i contains the bonus sum twice.
    expected : float
        The first line of the theorem's proof, the tightest that the paper states: E[regret], with probability 1 - 3 delta / 4.
    expected_from_lemmas : float
        term_i + term_iii + term_iv. The theorem's first line has the bonus sum once, the lemma on term (i) has it twice.
    expected_balanced : float
        The next line of that proof, in which factors are raised to balance the terms.
    azuma : float
        By how much the regret differs from its expectation over contexts: 2H sqrt(2T log(8 / delta)), with probability 1 - delta / 4.
    regret : float
        The regret, with probability 1 - delta: `expected_balanced` + `azuma`.
    regret_tight : float
        `expected` + `azuma`.
    regret_from_lemmas : float
        `expected_from_lemmas` + `azuma`, which is what the lemmas of the paper prove.
    trivial : float
        H T, which no regret exceeds.
    """

    squared: float
    hellinger: float
    bonus_case_1: float
    bonus_case_2: float
    bonus_case_3: float
    bonus_sum: float
    bonus_lemma: float
    fit_errors: float
    term_i: float
    term_iii: float
    term_iv: float
    expected: float
    expected_from_lemmas: float
    expected_balanced: float
    azuma: float
    regret: float
    regret_tight: float
    regret_from_lemmas: float
    trivial: float


def bounds(
    layout: Layout,
    episodes: int,
    *,
    loss_class_size: float,
    dynamics_class_size: float,
    delta: float = 0.05,
    eta: float | None = None,
    beta_loss: float | None = None,
    beta_dynamics: float | None = None,
    gamma: float | None = None,
    gamma_visits: float | None = None,
    term_iii: float | None = None,
) -> Bounds:
    """The explicit constants of every statement of the paper for given sizes and parameters.

    Parameters
    ----------
    layout : Layout
    episodes : int
        T.
    loss_class_size, dynamics_class_size : float
        |F| and |P|.
    delta : float
        Failure probability, in (0, 1).
    eta, beta_loss, beta_dynamics : float, optional
        At least 1e-280; with a single action, where eta has no effect, it may be 0. Default: the theorem's.
    gamma, gamma_visits : float, optional
        The thresholds of the events A and B (section 4.2). Default: min{beta_loss, beta_dynamics} / (864 H^4), and half of the
        smaller beta. The paper needs 432 H^4 gamma <= gamma_visits <= min{beta_loss, beta_dynamics} / 2.
    term_iii : float, optional
        A bound on term (iii) instead of H log|A| / eta + eta T H^3 / 2. For self-tuning OPO that was given this number of episodes: twice
        the mixability gaps that a run reports (`hedge_bound` of its diagnostics, in expectation over contexts), or `adahedge_bound`
        before a run. Self-tuning OPO also raises Q to its lower bound over the plausible models. That only lowers term (i), and it leaves
        the bound on term (iv) as it is while the truth is plausible; so what holds with probability 1 - delta then holds with
        1 - 2 delta.

    Raises
    ------
    OpoError
        A parameter is out of range, or the lemmas do not allow the thresholds.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    sizes = {"loss_class_size": loss_class_size, "dynamics_class_size": dynamics_class_size}
    theirs = parameters(layout, t, **sizes, delta=delta)
    h = layout.horizon
    # With a single action the theorem's eta is 0, and term (iii) is too.
    rate = theirs.eta if eta is None else as_number(eta, "eta", least=SMALLEST if layout.n_actions > 1 else 0.0)
    betas = theirs.beta_loss if beta_loss is None else beta_loss, theirs.beta_dynamics if beta_dynamics is None else beta_dynamics
    b_l, b_p, gamma, gamma_visits = thresholds(h, *betas, gamma, gamma_visits)

    log_both, log_inverse = log_term(h, t, delta, log_size(**sizes)), -math.log(delta)
    guarantees, hellinger = (_guarantees(h, t, **sizes, log_inverse=math.log(share) + log_inverse) for share in (8, 4))
    pairs = layout.n_states * layout.n_actions * math.log(t + 1)
    spread = (b_l + 2 * h * b_p) * pairs
    inaccurate = (h + 2 * h**2) / gamma * t * hellinger.hellinger
    bonus_sum = inaccurate + 7 * spread
    bonus_lemma = 3 * h**2 / gamma * t * hellinger.hellinger + 7 * spread
    # The dynamics' guarantee is 2 H log(8 T H |P| / delta).
    errors = 112 * t * h**3 * log_both / b_l + 12.5 * t * h**3 * guarantees.hellinger / b_p
    own = h * math.log(layout.n_actions) / rate + rate / 2 * t * h**3 if rate else 0.0
    term_iii = own if term_iii is None else as_number(term_iii, "term_iii")
    term_i, term_iv = h + errors + 2 * bonus_sum, h * (h + 1) + errors
    top = 5184 * t * h**7 * log_both
    expected = h + h * (h + 1) + 2 * errors + bonus_lemma + term_iii
    from_lemmas = term_i + term_iii + term_iv
    inverse = 6 * t * h**3 * log_both / gamma
    balanced = top / b_l + 7 * b_l * pairs + top / b_p + 14 * h * b_p * pairs + inverse + term_iii + 2 * (h + 1) ** 2
    azuma = 2 * h * math.sqrt(2 * t * (math.log(8) + log_inverse))
    return Bounds(
        squared=guarantees.squared,
        hellinger=guarantees.hellinger,
        bonus_case_1=inaccurate,
        bonus_case_2=spread,
        bonus_case_3=6 * spread,
        bonus_sum=bonus_sum,
        bonus_lemma=bonus_lemma,
        fit_errors=errors,
        term_i=term_i,
        term_iii=term_iii,
        term_iv=term_iv,
        expected=expected,
        expected_from_lemmas=from_lemmas,
        expected_balanced=balanced,
        azuma=azuma,
        regret=balanced + azuma,
        regret_tight=expected + azuma,
        regret_from_lemmas=from_lemmas + azuma,
        trivial=float(h) * t,
    )


def adahedge_bound(layout: Layout, episodes: int) -> float:
    """Bound on term (iii) of self-tuning OPO: AdaHedge's worst case over the layers, H^2 sqrt(T log|A|) + H^2 (4/3 log|A| + 2) + 0.002 H.

    AdaHedge's regret is at most twice its sum of mixability gaps, which a run reports; for losses of range S that is at most
    S sqrt(T log K) + S (4/3 log K + 2) (De Rooij, Van Erven, Gruenwald and Koolen, JMLR 2014, Corollary 9). Q in layer h has a range of at
    most H - h + 1; H is used for each layer.

    Here the sums of gaps begin at Delta_0 = 0.001 instead of 0. The corollary's proof gives Delta_T^2 <= S^2 T log K / 4 + c Delta_T with
    c = S (2/3 log K + 1); with Delta_0^2 added to the right side, Delta_T <= S sqrt(T log K) / 2 + Delta_0 + c.
    """
    instance(layout, "layout", Layout)
    t, h = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES), layout.horizon
    logs = math.log(layout.n_actions)
    return h**2 * (math.sqrt(t * logs) + 4 / 3 * logs + 2) + 2 * START_GAP * h


def informative_from(
    layout: Layout, *, loss_class_size: float, dynamics_class_size: float, delta: float = 0.05, statement: str = "regret_tight"
) -> float:
    """The number of episodes from which on a bound at the theorem's parameters is below H T, by bisection on a logarithmic scale.

    Parameters
    ----------
    layout, loss_class_size, dynamics_class_size, delta
        As in `bounds`.
    statement : str
        A field of `Bounds` other than "trivial".

    Returns
    -------
    float
        10^100 stands for never.
    """
    known = [name for name in Bounds._fields if name != "trivial"]
    if statement not in known:
        raise OpoError(f"statement is {shown(statement)}: one of {', '.join(known)} is needed")
    low, high = 0.0, math.log2(MOST_EPISODES)
    while high - low > 1e-3:
        middle = (low + high) / 2
        found = bounds(layout, int(2.0**middle), loss_class_size=loss_class_size, dynamics_class_size=dynamics_class_size, delta=delta)
        low, high = (low, middle) if getattr(found, statement) < found.trivial else (middle, high)
    return float(2.0**high)


def lower_bound(layout: Layout, episodes: int, *, loss_class_size: float, dynamics_class_size: float) -> float:
    """The lower bound sqrt(T H |S||A| log(|F| / |S|) / log|A|) on the worst-case regret of any algorithm, without its constant.

    As cited in the paper (Levy and Mansour 2022, for |F| and |P| of the same order); Theorem 1 differs from it by H^3.5 and logarithms.
    It is 0 for classes of at most |S| candidates, which are too small for the construction.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    size = max(as_number(loss_class_size, "loss_class_size", least=1.0), as_number(dynamics_class_size, "dynamics_class_size", least=1.0))
    logs = max(0.0, math.log(size) - math.log(layout.n_states)) / max(math.log(layout.n_actions), math.log(2))
    return math.sqrt(t * layout.horizon * layout.n_states * layout.n_actions * logs)


def literature_rates(
    layout: Layout,
    episodes: int,
    *,
    loss_class_size: float,
    dynamics_class_size: float,
    delta: float = 0.05,
    p_min: float | None = None,
    eluder: float | None = None,
) -> dict[str, float]:
    """The rates of the paper's Table 1, without constants and logarithms of T; NaN if the parameter of an assumption is not given.

    Parameters
    ----------
    p_min : float, optional
        Minimum reachability, in (0, 1], which RM-UCDD assumes; `opo_fast.agents.minimum_reachability` computes it.
    eluder : float, optional
        Eluder dimension of the dynamics class, which E-UC3RL assumes.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    h, s, a = layout.horizon, layout.n_states, layout.n_actions
    logs = t * (log_size(loss_class_size, dynamics_class_size) - math.log(delta))
    reach = math.nan if p_min is None else as_number(p_min, "p_min", least=SMALLEST, most=1.0)
    d = math.nan if eluder is None else as_number(eluder, "eluder")
    return {
        "rm-ucdd": math.sqrt(h**2 * s**3 * a * logs) / reach,
        "e-uc3rl": math.sqrt(d * h**6 * s * a * logs),
        "lolipop": math.sqrt(h**7 * s**4 * a**3 * logs),
        "opo": math.sqrt(h**8 * s * a * logs),
    }
