"""Resource gathering: a 5 x 5 grid with gold, a gem and two enemies (Barrett and Narayanan, ICML 2008)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from .._support.checks import MANY, as_integer, as_items, as_number, pair_of
from ..errors import OpoError
from .environment import Environment
from .families import family
from .tables import TabularMDP

__all__ = ["gathering_table", "resource_gathering"]

SIDE = 5
HOME, GOLD, GEM = (3, 1), (3, 5), (5, 4)
ENEMIES = ((4, 5), (3, 4))
MOVES = {"right": (1, 0), "left": (-1, 0), "up": (0, 1), "down": (0, -1)}


def gathering_table(attack: float = 0.1, gold: float = 1.0, gem: float = 0.0, attacked: float = 0.0) -> TabularMDP:
    """The grid as a table: 94 reachable states (place, gold carried, gem carried, just attacked), moves off the grid masked.

    The robot starts at home, picks up what it walks onto and brings it home. On an enemy's cell it is attacked with
    probability `attack`: it then loses everything and is back at home. This is the model resource-gathering of the
    Quantitative Verification Benchmark Set, without its counters of collected amounts.

    Parameters
    ----------
    attack : float
        Probability of an attack.
    gold, gem, attacked : float
        Rewards of bringing home gold or the gem, and of each attack; they are paid in the step in which it happens.

    Returns
    -------
    TabularMDP
    """
    attack = as_number(attack, "attack", most=1.0)
    rewards_of = [as_number(value, name, least=-np.inf) for value, name in ((gold, "gold"), (gem, "gem"), (attacked, "attacked"))]
    first = (*HOME, False, False, False)
    number, queue = {first: 0}, [first]
    rows, columns, p, reward = [], [], [], {}
    for state in queue:
        x, y, has_gold, has_gem, _ = state
        for a, (dx, dy) in enumerate(MOVES.values()):
            place = (x + dx, y + dy)
            if not (1 <= place[0] <= SIDE and 1 <= place[1] <= SIDE):
                continue
            risk = attack if place in ENEMIES else 0.0
            home = place == HOME
            moved = (*place, (has_gold and not home) or place == GOLD, (has_gem and not home) or place == GEM, False)
            paid = (rewards_of[0] * has_gold + rewards_of[1] * has_gem) if home else 0.0
            reward[number[state], a] = (1.0 - risk) * paid + risk * rewards_of[2]
            for chance, following in ((1.0 - risk, moved), (risk, (*HOME, False, False, True))):
                if following not in number and (chance > 0 or place in ENEMIES):
                    number[following] = len(number)
                    queue.append(following)
                if chance > 0:
                    rows.append(number[state] * len(MOVES) + a)
                    columns.append(number[following])
                    p.append(chance)
    n = len(number)
    P = sp.csr_array((p, (rows, columns)), shape=(n * len(MOVES), n))
    mask, rewards = np.zeros((n, len(MOVES)), bool), np.zeros((n, len(MOVES)))
    for (s, a), value in reward.items():
        mask[s, a], rewards[s, a] = True, value
    span = [0.0, rewards_of[0], rewards_of[1], rewards_of[0] + rewards_of[1], rewards_of[2]]
    names = [f"({x},{y})" + " gold" * has_gold + " gem" * has_gem + " attacked" * hit for x, y, has_gold, has_gem, hit in number]
    return TabularMDP(
        P,
        rewards,
        0,
        mask,
        reward_range=(min(span), max(span)),
        state_names=names,
        action_names=list(MOVES),
        name="resource-gathering",
        source="Quantitative Verification Benchmark Set (CC-BY 4.0)",
    )


def resource_gathering(
    horizon: int = 20,
    *,
    attacks: Sequence[float] = (0.05, 0.1, 0.3),
    wanted: Sequence[tuple[float, float]] = ((1.0, 0.2), (0.2, 1.0)),
    penalty: float = 0.5,
) -> Environment:
    """Resource gathering; the context is the enemies' strength and which ore is wanted.

    The candidates of both classes mix up the contexts: dynamics that use one attack probability for every context or permute
    the contexts, losses that use one pair of prices for every context or permute them.

    Parameters
    ----------
    horizon : int
        Steps.
    attacks : sequence of float
        Attack probabilities of the contexts.
    wanted : sequence of (gold, gem)
        Rewards of the two ores in the contexts; every attack probability is combined with every pair.
    penalty : float
        Cost of an attack.
    """
    horizon = as_integer(horizon, "horizon", least=1, most=MANY)
    penalty = as_number(penalty, "penalty")
    pairs = [pair_of(pair, f"wanted[{i}]", "(gold, gem)") for i, pair in enumerate(as_items(wanted, "wanted", "pairs (gold, gem)"))]
    settings = [(as_number(attack, "attacks"), *pair) for attack in as_items(attacks, "attacks", "probabilities") for pair in pairs]
    if not settings:
        raise OpoError("attacks and wanted: at least one entry each is needed")
    tables = [gathering_table(attack, gold, gem, -penalty) for attack, gold, gem in settings]
    return family(
        tables,
        horizon,
        labels=[f"attack {attack:g}, gold {gold:g}, gem {gem:g}" for attack, gold, gem in settings],
        name="resource-gathering",
        source=tables[0].source,
    )
