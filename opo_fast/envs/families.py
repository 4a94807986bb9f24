"""Contextual models from several tables, one per context; the toy-text environments of Gymnasium."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import MANY, as_integer, as_items, as_number, instance, shown
from ..errors import OpoError, install
from ..model.layered import LayeredMDP
from ..model.names import unrolled
from .adapters import from_gymnasium
from .environment import Environment, PerContext
from .rewards import RewardMap, rewards_to_losses
from .tables import TabularMDP

__all__ = ["cliff_walking", "family", "frozen_lake", "taxi"]

Array = npt.NDArray[Any]


def family(
    tables: Sequence[TabularMDP],
    horizon: int,
    *,
    labels: Sequence[str] | None = None,
    probabilities: npt.ArrayLike | None = None,
    action_names: Sequence[str] | None = None,
    name: str = "family",
    source: str = "",
) -> Environment:
    """A contextual MDP from one table per context, with classes of wrong candidates around the truth.

    Candidates of either class: every context is like context j, for each distinct j; each context is like the next
    one; action a acts like action a + 1, if no action is masked. The first loss candidate says that every
    step costs 1. The truth is in the middle of both classes.

    Parameters
    ----------
    tables : sequence of TabularMDP
        States, actions and masks must be the same in all. They share one map from rewards to losses, over the range of all.
    horizon : int
        Steps; there is an extra first layer if a start is a distribution.
    labels : sequence of str, optional
    probabilities : array_like, optional
        Probabilities of the contexts; uniform by default.
    action_names : sequence of str, optional
        Default: those of the first table.
    name, source : str

    Returns
    -------
    Environment
    """
    tables = as_items(tables, "tables", "TabularMDP", some=True)
    for c, table in enumerate(tables):
        instance(table, f"tables[{c}]", TabularMDP)
    first = tables[0]
    horizon = as_integer(horizon, "horizon", least=1, most=MANY)
    for c, table in enumerate(tables):
        if (table.n_states, table.n_actions) != (first.n_states, first.n_actions):
            raise OpoError(
                f"tables[{c}] has {table.n_states} states and {table.n_actions} actions: {first.n_states} and {first.n_actions}, "
                "those of tables[0], are needed"
            )
        if not _same(table.action_mask, first.action_mask):
            raise OpoError(f"tables[{c}] and tables[0] have different action masks: the same allowed actions in all contexts are needed")
    scale = RewardMap(min(table.reward_map.low for table in tables), max(table.reward_map.high for table in tables))
    starts = [table.start for table in tables]
    if not all(isinstance(start, int) for start in starts):
        starts = [np.eye(1, first.n_states, start)[0] if isinstance(start, int) else start for start in starts]
    blocks = _distinct([table.P for table in tables])
    costs = [rewards_to_losses(table.rewards, (scale.low, scale.high), table.action_mask).losses for table in tables]
    build = _Builder(starts, horizon, first.action_mask)
    n = len(tables)
    turned = [_turned(table, scale) for table in tables] if first.action_mask is None and first.n_actions > 1 else None

    losses = [("nothing pays", [np.ones(costs[0].shape)] * n), *_mistaken(costs)]
    dynamics = _mistaken(blocks)
    if turned:
        losses.append(("actions mixed up", [cost for _, cost in turned]))
        dynamics.append(("actions mixed up", [block for block, _ in turned]))
    true_loss, true_dynamics = (len(losses) + 1) // 2, (len(dynamics) + 1) // 2
    losses.insert(true_loss, ("truth", costs))
    dynamics.insert(true_dynamics, ("truth", blocks))
    models = [PerContext([build.dynamics(block, c) for c, block in enumerate(each)], title) for title, each in dynamics]
    truth = models[true_dynamics](0)
    return Environment(
        truth.layout,
        [PerContext([build.losses(cost, c) for c, cost in enumerate(each)], title) for title, each in losses],
        models,
        true_loss=true_loss,
        true_dynamics=true_dynamics,
        contexts=range(n),
        probabilities=probabilities,
        labels=labels,
        action_mask=truth.action_mask,
        reward_map=scale,
        steps=horizon,
        state_names=unrolled(first.state_names, truth.layout, starts[0]),
        action_names=first.action_names if action_names is None else action_names,
        start_layer=truth.layout.horizon > horizon,
        name=name,
        source=source,
    )


def _mistaken(items: list[Any]) -> list[tuple[str, list[Any]]]:
    """Candidates that confuse the contexts; none if all contexts are equal."""
    several = _differing(items)
    if len(several) == 1:
        return []
    result = [(f"always like context {j}", [items[j]] * len(items)) for j in several]
    return [*result, ("like the next context", items[1:] + items[:1])]


class _Builder:
    """Layered losses and transitions from stationary ones; each distinct pair of transitions and start is built once."""

    def __init__(self, starts: list[Any], horizon: int, mask: Array | None) -> None:
        self.starts, self.horizon, self.mask = starts, horizon, mask
        self._built: dict[tuple[int, bytes], tuple[Any, Any]] = {}

    def dynamics(self, P: Any, c: int) -> Any:
        start = self.starts[c]
        key = id(P), np.asarray(start).tobytes()
        if key not in self._built:
            n = P.shape[1] if sp.issparse(P) else P.shape[0]
            zeros = np.zeros((n, (P.shape[0] // n) if sp.issparse(P) else P.shape[1]))
            self._built[key] = (LayeredMDP.stationary(P, zeros, self.horizon, start, self.mask).transitions, P)
        return self._built[key][0]

    def losses(self, cost: Array, c: int) -> Array:
        start = self.starts[c]
        if isinstance(start, int):
            return np.concatenate([cost[start : start + 1]] + [cost] * (self.horizon - 1))
        return np.concatenate([np.zeros((1, cost.shape[1]))] + [cost] * self.horizon)


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if sp.issparse(a) and sp.issparse(b):
        return bool(a.shape == b.shape and a.nnz == b.nnz and (a != b).nnz == 0)
    return bool(a is b or (not sp.issparse(a) and not sp.issparse(b) and np.array_equal(a, b)))


def _distinct(items: list[Any]) -> list[Any]:
    """The items, with duplicates replaced by the first of them."""
    result: list[Any] = []
    for item in items:
        result.append(next((known for known in result if _same(known, item)), item))
    return result


def _differing(items: list[Any]) -> list[int]:
    """Position of the first of each group of equal items."""
    return [i for i, item in enumerate(items) if not any(_same(item, items[j]) for j in range(i))]


def _turned(table: TabularMDP, scale: RewardMap) -> tuple[Any, Array]:
    """Transitions and losses in which action a acts like action a + 1."""
    n, a = table.n_states, table.n_actions
    losses = np.roll(scale.losses(table.rewards), -1, axis=1)
    if isinstance(table.P, np.ndarray):
        return np.roll(table.P, -1, axis=1), losses
    rows = np.arange(n * a).reshape(n, a)
    return sp.csr_array(table.P[np.roll(rows, -1, axis=1).ravel()]), losses


def frozen_lake(
    horizon: int = 20,
    *,
    success_rates: Sequence[float] = (0.5, 0.7, 0.9, 1.0),
    map_name: str = "4x4",
    maps: int = 0,
    size: int = 4,
    reward_schedules: Sequence[tuple[float, float, float]] = ((1.0, 0.0, 0.0),),
    seed: int = 0,
) -> Environment:
    """Gymnasium's FrozenLake; the context is the success rate of a move, the map, and the rewards.

    Parameters
    ----------
    horizon : int
        Steps.
    success_rates : sequence of float
        Probabilities that a move goes in its direction; otherwise it goes to either side.
    map_name : {"4x4", "8x8"}
    maps : int
        Number of random maps of this `size`; 0: the named map.
    reward_schedules : sequence of (goal, hole, ice)
    seed : int
        Seed of the random maps.

    Notes
    -----
    Measured at the defaults with ``OPO(bonus_scale=2e-8, eta_scale=50)``: 97 % of the gap between the uniform policy and the
    optimum is closed in the last tenth of 1,500 episodes, 98 % in the last tenth of 2,000 (five seeds).
    """
    gym_lake = _toy_text("frozen_lake")
    count, size, seed = (
        as_integer(maps, "maps", least=0, most=MANY),
        as_integer(size, "size", least=2, most=1000),
        as_integer(seed, "seed", least=0, most=None),
    )
    rates = [
        as_number(rate, f"success_rates[{i}]", most=1.0)
        for i, rate in enumerate(as_items(success_rates, "success_rates", "probabilities", some=True))
    ]
    schedules = [
        tuple(as_number(reward, f"reward_schedules[{i}]", least=-np.inf) for reward in as_items(each, f"reward_schedules[{i}]", "rewards"))
        for i, each in enumerate(as_items(reward_schedules, "reward_schedules", "(goal, hole, ice)", some=True))
    ]
    if any(len(schedule) != 3 for schedule in schedules):
        raise OpoError(f"reward_schedules is {shown(reward_schedules)}: rewards (goal, hole, ice), three each, are needed")
    if not maps and map_name not in gym_lake.MAPS:
        raise OpoError(f"map_name is {shown(map_name)}: one of {', '.join(gym_lake.MAPS)} is needed")
    descs = [gym_lake.generate_random_map(size=size, p=0.8, seed=seed + i) for i in range(count)]
    tables, labels = [], []
    for m, desc in enumerate(descs or [None]):
        for schedule in schedules:
            for rate in rates:
                options: dict[str, Any] = {"success_rate": rate, "reward_schedule": schedule}
                options.update({"map_name": map_name} if desc is None else {"desc": desc})
                tables.append(from_gymnasium("FrozenLake-v1", **options))
                labels.append(
                    f"success rate {rate:g}" + (f", map {m}" if count else "") + (f", rewards {schedule}" if len(schedules) > 1 else "")
                )
    return family(
        tables, horizon, labels=labels, action_names=("left", "down", "right", "up"), name="frozen-lake", source="Gymnasium FrozenLake-v1"
    )


def taxi(horizon: int = 20, *, rain: Sequence[float] = (1.0,)) -> Environment:
    """Gymnasium's Taxi; the context is where the passenger waits and wants to go, and the weather. The taxi starts anywhere.

    Since the start is a distribution, there is an extra first layer.

    Parameters
    ----------
    horizon : int
        Steps; the optimum needs up to 18.
    rain : sequence of float
        Probabilities that a move goes in its direction, otherwise to either side (Gymnasium's ``rainy_probability``); 1: dry.
        Every trip is combined with every weather.

    Notes
    -----
    Measured at the defaults with ``OPO(bonus_scale=2e-8, eta_scale=50)``: 99.5 % of the gap between the uniform policy and the
    optimum is closed in the last tenth of 300 episodes (three seeds).
    """
    chances = [as_number(chance, f"rain[{i}]", most=1.0) for i, chance in enumerate(as_items(rain, "rain", "probabilities", some=True))]
    tables, labels = [], []
    stops, action_names = ("red", "green", "yellow", "blue"), ("south", "north", "east", "west", "pick up", "drop off")
    index = np.arange(500)
    passenger, destination = index // 4 % 5, index % 4
    for chance in chances:
        weather: dict[str, Any] = {"is_rainy": True, "rainy_probability": chance} if chance < 1.0 else {}
        table = from_gymnasium("Taxi-v4", **weather)
        for p, d in itertools.permutations(range(4), 2):
            here = np.append((passenger == p) & (destination == d), False) & (table.start > 0)
            span = (table.reward_map.low, table.reward_map.high)
            tables.append(
                TabularMDP(
                    table.P,
                    table.rewards,
                    here / here.sum(),
                    reward_range=span,
                    action_names=action_names,
                    name="taxi",
                    source=table.source,
                )
            )
            labels.append(f"{stops[p]} to {stops[d]}" + (f", rain {chance:g}" if len(chances) > 1 else ""))
    return family(
        tables,
        horizon,
        labels=labels,
        action_names=action_names,
        name="taxi",
        source="Gymnasium Taxi-v4",
    )


def cliff_walking(horizon: int = 20) -> Environment:
    """Gymnasium's CliffWalking; the context is dry or slippery ground.

    Parameters
    ----------
    horizon : int
        Steps; on dry ground the optimum needs 13.
    """
    tables = [from_gymnasium("CliffWalking-v1"), from_gymnasium("CliffWalkingSlippery-v1")]
    return family(
        tables,
        horizon,
        labels=["dry", "slippery"],
        action_names=("up", "right", "down", "left"),
        name="cliff-walking",
        source="Gymnasium CliffWalking-v1",
    )


def _toy_text(module: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"gymnasium.envs.toy_text.{module}")
    except ImportError:
        raise OpoError(f"Gymnasium environments need the package gymnasium: {install('gym')}") from None
