"""Every bound that the paper states, as a number with its explicit constants.

Logarithms of sizes are taken apart, since T^4 H |F||P| / delta^2 itself may overflow. All bounds hold for any positive
parameters of the algorithm; with the theorem's they are the theorem's. Where a bound exceeds H T, which no policy exceeds, it
says nothing: at practical T all of them do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .._support.checks import as_integer, as_number, instance, shown
from ..algorithm.parameters import log_size, log_term, parameters
from ..algorithm.self_tuning import START_GAP
from ..errors import OpoError
from ..model.layout import Layout

__all__ = ["Bounds", "adahedge_bound", "bounds", "informative_from", "literature_rates", "lower_bound"]

MOST_EPISODES = 10**100


class Bounds(NamedTuple):
    """The bounds of the paper's statements, from the oracles to the regret.

    Attributes
    ----------
    squared, hellinger : float
        Corollaries on the oracles (section 2.3): expected sums of errors over the past of any episode, each with probability
        1 - delta / 8, as the lemmas below use them.
    inaccurate, under_explored, explored : float
        The three bonus sums, over the events A, not A and B, not A and not B (cases 1 to 3), in expectation over contexts.
    bonus_sum : float
        Their sum: the expected sum of bonuses, with probability 1 - delta / 4.
    bonus_lemma : float
        The same as the lemma (bonus bound) states it, with H + 2 H^2 rounded up to 3 H^2: 6 T H^3 log(4 T H |P| / delta) / gamma
        and 7 times `under_explored`.
    term_i, term_iii, term_iv : float
        Lemmas of section 4.1; term_i has twice the bonus sum in it.
    expected : float
        The first line of the theorem's proof, the tightest that the paper states: E[regret], with probability 1 - 3 delta / 4.
    expected_from_lemmas : float
        term_i + term_iii + term_iv. The theorem's first line has the bonus sum once, the lemma on term (i) has it twice.
    expected_balanced : float
        The line after it, whose factors were raised to balance the terms.
    regret : float
        The regret with probability 1 - delta: `expected_balanced` and the Azuma term 2H sqrt(2T log(8 / delta)).
    regret_tight : float
        The same from `expected`.
    regret_from_lemmas : float
        The same from `expected_from_lemmas`, which is what the lemmas of the paper prove.
    trivial : float
        H T, which no policy exceeds.
    """

    squared: float
    hellinger: float
    inaccurate: float
    under_explored: float
    explored: float
    bonus_sum: float
    bonus_lemma: float
    term_i: float
    term_iii: float
    term_iv: float
    expected: float
    expected_from_lemmas: float
    expected_balanced: float
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
        Above 0. Default: the theorem's.
    gamma, gamma_visits : float, optional
        The thresholds of the events A and B (section 4.2). Default: min{beta_loss, beta_dynamics} / (864 H^4), and half of the
        least beta. The paper needs 432 H^4 gamma <= gamma_visits <= min{beta_loss, beta_dynamics} / 2.
    term_iii : float, optional
        What bounds term (iii) in the place of H log|A| / eta + eta T H^3 / 2. For self-tuning OPO that was given this number of
        episodes: twice the mixability gaps that a run reports (`hedge_bound` of its diagnostics, in expectation over contexts),
        or `adahedge_bound` ahead of a run. Its other lower bound on Q only lowers term (i) and leaves term (iv) as it is while
        the truth is plausible, so what holds with probability 1 - delta does with 1 - 2 delta there.

    Raises
    ------
    OpoError
        A parameter out of range, or thresholds that the lemmas do not allow.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    sizes = {"loss_class_size": loss_class_size, "dynamics_class_size": dynamics_class_size}
    theirs = parameters(layout, t, **sizes, delta=delta)
    rate = theirs.eta if eta is None else as_number(eta, "eta", strict=True)
    b_l, b_p = (
        as_number(default if given is None else given, name, strict=True)
        for given, default, name in zip((beta_loss, beta_dynamics), theirs[1:], ("beta_loss", "beta_dynamics"), strict=True)
    )
    least, h = min(b_l, b_p), layout.horizon
    gamma_visits = as_number(least / 2 if gamma_visits is None else gamma_visits, "gamma_visits", strict=True)
    gamma = as_number(gamma_visits / (432 * h**4) if gamma is None else gamma, "gamma", strict=True)
    if not 432 * h**4 * gamma <= gamma_visits * (1 + 1e-12):
        raise OpoError(f"gamma is {gamma!r}: at most gamma_visits / (432 H^4) = {gamma_visits / (432 * h**4)!r} is allowed")
    if not gamma_visits <= least / 2 * (1 + 1e-12):
        raise OpoError(f"gamma_visits is {gamma_visits!r}: at most half the least beta, {least / 2!r}, is allowed")

    log_both = log_term(h, t, delta, log_size(**sizes))
    log_dynamics = math.log(t) + math.log(h) + log_size(1.0, dynamics_class_size) - math.log(delta)
    log_losses = 3 * math.log(t) + log_size(loss_class_size, 1.0) - math.log(delta)
    pairs = layout.n_states * layout.n_actions * math.log(t + 1)
    spread = (b_l + 2 * h * b_p) * pairs
    hellinger = 2 * h * (math.log(4) + log_dynamics)
    inaccurate = (h + 2 * h**2) / gamma * t * hellinger
    bonus_sum = inaccurate + 7 * spread
    bonus_lemma = 3 * h**2 / gamma * t * hellinger + 7 * spread
    errors = 112 * t * h**3 * log_both / b_l + 25 * t * h**4 * (math.log(8) + log_dynamics) / b_p
    # With a single action the theorem's eta is 0, and there is nothing to lose.
    own = h * math.log(layout.n_actions) / rate + rate / 2 * t * h**3 if rate else 0.0
    term_iii = own if term_iii is None else as_number(term_iii, "term_iii")
    term_i, term_iv = h + errors + 2 * bonus_sum, h * (h + 1) + errors
    top = 5184 * t * h**7 * log_both
    expected = h + h * (h + 1) + 2 * errors + bonus_lemma + term_iii
    from_lemmas = term_i + term_iii + term_iv
    inverse = 6 * t * h**3 * log_both / gamma
    balanced = top / b_l + 7 * b_l * pairs + top / b_p + 14 * h * b_p * pairs + inverse + term_iii + 2 * (h + 1) ** 2
    azuma = 2 * h * math.sqrt(2 * t * math.log(8 / delta))
    return Bounds(
        squared=68 * h * (math.log(16) + log_losses),
        hellinger=2 * h * (math.log(8) + log_dynamics),
        inaccurate=inaccurate,
        under_explored=spread,
        explored=6 * spread,
        bonus_sum=bonus_sum,
        bonus_lemma=bonus_lemma,
        term_i=term_i,
        term_iii=term_iii,
        term_iv=term_iv,
        expected=expected,
        expected_from_lemmas=from_lemmas,
        expected_balanced=balanced,
        regret=balanced + azuma,
        regret_tight=expected + azuma,
        regret_from_lemmas=from_lemmas + azuma,
        trivial=float(h) * t,
    )


def adahedge_bound(layout: Layout, episodes: int) -> float:
    """Term (iii) of self-tuning OPO: over the layers AdaHedge's worst case, H^2 sqrt(T log|A|) + H^2 (4/3 log|A| + 2) + 0.002 H.

    AdaHedge's regret is at most twice its sum of mixability gaps, which a run reports; for losses of range S that is at most
    S sqrt(T log K) + S (4/3 log K + 2) (De Rooij, Van Erven, Gruenwald and Koolen, JMLR 2014, Corollary 9). Q of the layer h has
    a range of at most H - h + 1, here H in each layer.

    Sums of gaps begin at Delta_0 = 0.001 instead of 0. The corollary's proof gives Delta_T^2 <= S^2 T log K / 4 + c Delta_T with
    c = S (2/3 log K + 1), now with Delta_0^2 on the right, so that Delta_T <= S sqrt(T log K) / 2 + Delta_0 + c.
    """
    instance(layout, "layout", Layout)
    t, h = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES), layout.horizon
    logs = math.log(layout.n_actions)
    return h**2 * (math.sqrt(t * logs) + 4 / 3 * logs + 2) + 2 * START_GAP * h


def informative_from(
    layout: Layout, *, loss_class_size: float, dynamics_class_size: float, delta: float = 0.05, statement: str = "regret_tight"
) -> float:
    """The number of episodes from which a bound at the theorem's parameters is below H T, found by halving on a logarithmic scale.

    Parameters
    ----------
    layout, loss_class_size, dynamics_class_size, delta
        As in `bounds`.
    statement : str
        One of the fields of `Bounds` but "trivial".

    Returns
    -------
    float
        At most 10^100, which stands for never.
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
    """The rate sqrt(T H |S||A| log(|F| / |S|) / log|A|) below which no algorithm's worst case stays, without its constant.

    As the paper cites it (Levy and Mansour 2022, for |F| and |P| of the same order); Theorem 1 differs from it by H^3.5 and
    logarithms.
    It is 0 for classes of at most |S| candidates, which are too small for its instance.
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
    """The rates of the paper's Table 1 without their constants and logarithms of T; NaN where an assumption's number is missing.

    Parameters
    ----------
    p_min : float, optional
        Minimum reachability, which RM-UCDD assumes; `opo_fast.agents.minimum_reachability` computes it.
    eluder : float, optional
        Eluder dimension of the dynamics class, which E-UC3RL assumes.
    """
    instance(layout, "layout", Layout)
    t = as_integer(episodes, "episodes", least=1, most=MOST_EPISODES)
    delta = as_number(delta, "delta", least=0.0, most=1.0, strict=True)
    h, s, a = layout.horizon, layout.n_states, layout.n_actions
    logs = t * (log_size(loss_class_size, dynamics_class_size) - math.log(delta))
    reach = math.nan if p_min is None else as_number(p_min, "p_min", most=1.0, strict=True)
    d = math.nan if eluder is None else as_number(eluder, "eluder")
    return {
        "rm-ucdd": math.sqrt(h**2 * s**3 * a * logs) / reach,
        "e-uc3rl": math.sqrt(d * h**6 * s * a * logs),
        "lolipop": math.sqrt(h**7 * s**4 * a**3 * logs),
        "opo": math.sqrt(h**8 * s * a * logs),
    }
