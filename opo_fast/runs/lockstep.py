"""Runs of one or several seeds, played in blocks of episodes: each operation is done once for all episodes of a block.

Each run keeps its own agent and oracles, so it can be saved, resumed or played alone at any episode. A block gives the same bits as
`Simulation.step`, episode by episode. It assumes that its episodes change no fit, and ends with the first one that does. An episode
that needs special treatment is left to `Simulation.step`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import tolerance_of
from .._support.numbers import log_losses
from ..agents.baselines import BonusFreeOPO
from ..agents.euc3rl import EUC3RL
from ..agents.opo import OPO, PATIENCE
from ..algorithm.history import Fits
from ..kernels._simd import LANES
from ..kernels.models import play_models
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.layered import LayeredMDP
from ..model.operations import bernoulli
from ..oracles.together import OraclesTogether, alike
from .ahead import ChainsAhead, Place
from .columns import COLUMNS, DIAGNOSTICS, ERRORS, looks_at
from .tables import ContextTables, models_side_by_side, start_values
from .worlds import ModelWorld

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Lockstep", "lockstep"]

Array = npt.NDArray[Any]

SLOW, LONGEST = 0.02, 0.5
"""From `SLOW` seconds an episode on, blocks are shortened to at most `LONGEST` seconds, because Ctrl-C waits for the end of a block."""
BLOCK = 64
"""Maximum number of episodes in a block, over all runs; rounded down to whole packs of contexts for each run."""
BLOCK_TRANSITIONS = 1 << 14
"""Maximum number of transitions in all models of a block: blocks of larger models have fewer episodes."""


def lockstep(runs: Sequence[Simulation]) -> Lockstep | None:
    """A `Lockstep` for these runs; None if they differ in more than their seeds, or if blocks would save no time."""
    first = runs[0].agent
    settings = None
    for run in runs:
        agent = run.agent
        if type(agent) not in (OPO, BonusFreeOPO, EUC3RL) or agent.backend != "numba" or not agent.engine.packed:
            return None
        if agent.action_mask is not None or type(run._world) is not ModelWorld or run.backend != "numba" or run._recorder is not None:
            return None
        settings = settings or agent.settings()
        if run.cmdp is not runs[0].cmdp or (run.first, run.episode, run.episodes) != (runs[0].first, runs[0].episode, runs[0].episodes):
            return None
        if agent.settings() != settings or agent.episode != first.episode or agent.planned != first.planned:
            return None
        # A method was replaced on the object, as wrappers and recorders do.
        if any(callable(getattr(type(one), name, None)) for one in (run, agent) for name in vars(one)):
            return None
    oracles = [run.agent.loss_oracle for run in runs], [run.agent.dynamics_oracle for run in runs]
    if not all(map(alike, oracles)):
        return None
    tables = ContextTables(first.loss_oracle, first.dynamics_oracle, len(runs))
    return Lockstep(runs, tables) if tables.most >= len(runs) * first.lookahead else None


class _Block(NamedTuple):
    """The next k episodes of each of the B runs, and the results of their chains.

    Attributes
    ----------
    first, size : int
        The first episode, counted from that of the run, and k.
    contexts : list of B lists of k contexts
    mdps : list of B * k models
    lines : ndarray of int64, shape (B, k)
        Those of the contexts in the tables.
    places : list of B lists of k `Place`
    policies : ndarray, shape (B, k, n_rows)
    gaps : ndarray, shape (B, k, n_states)
    saturation : ndarray, shape (B, k)
    """

    first: int
    size: int
    contexts: list[list[Any]]
    mdps: list[LayeredMDP]
    lines: Array
    places: list[list[Place]]
    policies: Array
    gaps: Array
    saturation: Array


class Lockstep:
    """Runs that differ in their seeds alone, or one run.

    Parameters
    ----------
    runs : sequence of Simulation
        All at the same episode.
    tables : ContextTables
    """

    def __init__(self, runs: Sequence[Simulation], tables: ContextTables) -> None:
        self.runs, self.tables, self.agents = list(runs), tables, [run.agent for run in runs]
        self.layout, self.cmdp = tables.layout, runs[0].cmdp
        horizon = self.layout.horizon
        self.losses = OraclesTogether([agent.loss_oracle for agent in self.agents])
        self.dynamics = OraclesTogether([agent.dynamics_oracle for agent in self.agents])
        self.plausible = self.agents[0].plausible
        self.columns = {name: np.stack([run.columns[name] for run in runs]) for name in COLUMNS}
        for i, run in enumerate(runs):
            run._columns = {name: column[i] for name, column in self.columns.items()}
        self._ahead: list[tuple[Any, list[Hashable]]] = [([], []) for _ in runs]
        self._chains = [ChainsAhead(agent, tables) for agent in self.agents]
        self._on, self._most, self._changed = True, 1, False
        block = min(BLOCK, BLOCK_TRANSITIONS // max(1, tables.size), tables.most)
        self._window = max(1, block // (len(runs) * LANES)) * LANES
        # Losses that the environment draws are drawn in the order of the episodes, and once.
        self._sampler, self._joint = (getattr(self.cmdp, name, None) for name in ("sample_losses", "joint_losses"))
        # The transition of row r of layer h to state s has the index _base[h] + r * _n_next[h] + s.
        sizes = np.array(self.layout.layer_sizes, np.int64)
        firsts = self.layout.offsets[:-2] * self.layout.n_actions
        self._n_next = sizes[1:]
        self._base = self.layout.dense_block[:-1] - firsts * self._n_next - self.layout.offsets[1:-1] if horizon > 1 else firsts
        self._look()

    def step(self) -> None:
        """Play the coming episodes of every run, at least one."""
        began = time.perf_counter()
        count = self._step() if self._on else 0
        if not count:
            for run in self.runs:
                run.step()
            self._look()
            return
        took = time.perf_counter() - began
        # After a block that ended with a changed fit, the next one is shorter.
        most = 2 * count if self._changed else max(self._most, 2 * count)
        self._most = most if took < SLOW * count else max(1, min(most, int(LONGEST * count / took)))
        for run in self.runs:
            run.passed(count, took / len(self.runs))

    def _look(self) -> None:
        """Read the state of oracles and agents after episodes that the runs played by themselves."""
        for oracles in (self.losses, self.dynamics):
            oracles.look()
        self._before, self._now = self._state(), self._state()
        histories = [agent.history for agent in self.agents]
        if self.plausible and len(histories[0]) > 1:
            for i, (agent, history) in enumerate(zip(self.agents, histories, strict=True)):
                fits = history[agent.steps - 1] if agent.steps else history[0]
                counts = agent.loss_oracle.plausible_count(fits.loss_version), agent.dynamics_oracle.plausible_count(fits.dynamics_version)
                self._before[1][:, i] = counts

    def _state(self) -> tuple[Array, Array]:
        """Fits and versions of all runs, (4, B), and the sizes of their plausible sets, (2, B)."""
        both = self.losses, self.dynamics
        fits = [oracles.fit for oracles in both] + [oracles.version for oracles in both]
        return np.array(fits), np.array([oracles.count for oracles in both])

    # -- a block -----------------------------------------------------------------------------------------------------------

    def _step(self) -> int:
        """Play the next block and return its number of episodes; 0 means that nothing was played and nothing visible has changed."""
        if self.agents[0].steps == 0:
            return 0
        if not self._look_ahead():
            self._on = False
            return 0
        size = self._size()
        if not size:
            return 0
        block, count = self._block(size), 0
        try:
            count = self._play_block(block)
        finally:
            for chains in self._chains:
                chains.settle(keep=count == block.size)
        return count

    def _size(self) -> int:
        """Maximum number of episodes of the next block; 0 if an agent may emit a warning after the next episode."""
        agent = self.agents[0]
        size = min([self._most, *(len(run._ahead) for run in self.runs)])
        speaks = [agent.planned]
        if isinstance(agent, OPO) and agent.tuning == "theory":
            speaks.append(PATIENCE - 1)
        for episode in speaks:
            if episode is not None and episode >= agent.episode:
                size = min(size, episode - agent.episode)
        return size if self._sampler is None and self._joint is None else min(size, 1)

    def _look_ahead(self) -> bool:
        """Draw contexts for runs that have none left, as `Simulation._coming` does, and enter them and their models into the tables."""
        for i, run in enumerate(self.runs):
            if not run._ahead:
                count = min(max(run.agent.lookahead, self._window), run.episodes - run.episode)
                run._ahead = [run.context(run.episode + j) for j in range(count)]
            if self._ahead[i][0] is not run._ahead:
                self._ahead[i] = run._ahead, []
        missing = [i for i, (_, keys) in enumerate(self._ahead) if not keys]
        if not missing:
            return True
        try:
            for i in missing:
                self._ahead[i] = self.runs[i]._ahead, [context_key(context) for context in self.runs[i]._ahead]
        except Exception:
            return False
        if not all(self._ask(self.runs[i]) for i in missing):
            return False
        needed = {key for _, keys in self._ahead for key in keys}
        contexts = [context for i in missing for context in self._ahead[i][0]]
        mdps = [mdp for i in missing for mdp in self.runs[i]._models]
        return self.tables.find(contexts, [key for i in missing for key in self._ahead[i][1]], mdps, needed)

    def _ask(self, run: Simulation) -> bool:
        """Ask for the models of the contexts ahead; False unless all of them are unmasked float64 models of the layout."""
        run._models = []
        for context in run._ahead:
            try:
                run._models.append(self.cmdp.mdp(context))
            except Exception as error:
                # The episode of this context raises it when it is played.
                run._models.append(error)
                return False
        return all(
            type(mdp) is LayeredMDP
            and (mdp.layout is self.layout or mdp.layout == self.layout)
            and mdp.action_mask is None
            and mdp.transitions.dtype == np.float64
            for mdp in run._models
        )

    def _block(self, size: int) -> _Block:
        """Prepare the next block of at most `size` episodes: its chains are at the step of the first episode."""
        run, n = self.runs[0], len(self.runs)
        places, ahead = [], list[list[Hashable]]()
        for one, chains, (_, keys) in zip(self.runs, self._chains, self._ahead, strict=True):
            first = len(keys) - len(one._ahead)
            ahead.append(keys[first:])
            places.append(chains.places(one._ahead, ahead[-1], first, size))
            size = len(places[-1])
        if any(place.chain.last is not None for some in places for place in some):
            # Diagnostics over all pairs are only known before the chains advance, so such an episode has to be the first of a block.
            size = min([size, *(j for j in range(1, size) if looks_at(run.first + run.episode + j))])
        return _Block(
            run.episode,
            size,
            [one._ahead[:size] for one in self.runs],
            [mdp for one in self.runs for mdp in one._models[:size]],
            np.array([[self.tables.lines[key] for key in keys[:size]] for keys in ahead]),
            [some[:size] for some in places],
            np.empty((n, size, self.tables.n_rows)),
            np.empty((n, size, self.layout.n_states)),
            np.empty((n, size)),
        )

    # -- the episodes of a block -------------------------------------------------------------------------------------------

    def _play_block(self, block: _Block) -> int:
        """Play a block, and let the agents learn from its episodes up to the first that changes a fit; returns as `_step` does."""
        tables, every = self.tables, np.arange(len(self.runs))
        looked = self._look_at(block)
        for i, chains in enumerate(self._chains):
            chains.take(block.places[i], block.policies[i], block.gaps[i], block.saturation[i])
        table = models_side_by_side(block.mdps)
        policies = block.policies.reshape(block.lines.size, -1)
        values = start_values(block.mdps, table, policies, tolerance=tolerance_of(np.float64))
        if values is None:
            return 0
        states, chosen, means, along, losses = self._play(block, table)
        lines = block.lines.reshape(-1)
        square = tables.losses[lines[:, None], :, chosen]
        # In the order in which the oracles add: step by step over an episode's losses, NumPy's sum over its transitions.
        loss_gains = np.square(square - losses[:, :, None]).sum(axis=1)
        cells = self._base + chosen[:, :-1] * self._n_next + states[:, 1:-1]
        with np.errstate(divide="ignore"):
            p = np.ascontiguousarray(tables.dynamics[lines[:, None], :, cells].transpose(0, 2, 1))
            gains = np.log(p).sum(axis=2)
        if not ((p >= 0.0) & (p <= 1.0 + 1e-6)).all():
            return 0
        shape = block.lines.shape
        by_run = loss_gains.reshape(*shape, -1), gains.reshape(*shape, -1)
        before, diagnostics = self._now[0], self._diagnostics(block, looked)
        errors = (
            by_run[0][every, :, before[0]],
            np.abs(by_run[1][every, :, before[1]]),
            np.square(means - losses).sum(axis=1),
            log_losses(along),
        )
        count = self._learn(block, *by_run)
        if not count:
            return 0
        for agent, *held_out in zip(self.agents, *(error[:, count - 1].tolist() for error in errors[:2]), strict=True):
            agent.held_out = tuple(held_out)
        found = {
            "value": values,
            "optimal_value": tables.best[block.lines],
            "uniform_value": tables.uniform[block.lines],
            "observed_loss": losses.sum(axis=1),
            "saturation": block.saturation,
            **dict(zip(ERRORS, errors, strict=True)),
            **diagnostics,
        }
        self._write(block.first, count, {name: np.reshape(column, shape)[:, :count] for name, column in found.items()}, before)
        return count

    def _write(self, t: int, count: int, found: dict[str, Array], before: Array) -> None:
        """Fill the columns of episodes t, ..., t + count - 1. Only the last of them may have changed the fits from `before`."""
        for name, column in found.items():
            self.columns[name][:, t : t + count] = column
        for name, fit, after in zip(("loss_fit", "dynamics_fit"), before, self._now[0], strict=False):
            self.columns[name][:, t : t + count - 1] = fit[:, None]
            self.columns[name][:, t + count - 1] = after
        numbers = self.columns["context_index"]
        for i, run in enumerate(self.runs):
            numbers[i, t : t + count] = [run._number(context) for context in run._ahead[:count]]

    def _look_at(self, block: _Block) -> Array | None:
        """Diagnostics over all pairs at the first episode, (B, 6), taken before the chains advance; None if none are due."""
        if not looks_at(self.runs[0].first + block.first) or all(some[0].chain.last is None for some in block.places):
            return None
        return np.array([agent.diagnostics(some[0], full=True) for agent, some in zip(self.agents, block.contexts, strict=True)])

    def _diagnostics(self, block: _Block, looked: Array | None) -> dict[str, Array]:
        """The columns that `Simulation.step` takes from the agents' ``diagnostics``, each of shape (B, k)."""
        shape = block.lines.shape
        columns: dict[str, Array] = {}
        if self.agents[0].rule.hedged:
            columns["hedge_bound"] = 2 * np.maximum.reduceat(block.gaps, self.layout.offsets[:-1], axis=2).sum(axis=2)
        if self.plausible:
            counts = np.repeat(self._now[1][:, :, None], block.size, axis=2)
            if not self.agents[0].rule.newest:
                # OPO's last step used the fits from before the newest episode.
                counts[:, :, 0] = self._before[1]
            columns.update(truncated=np.zeros(shape), truncated_played=np.zeros(shape), plausible_losses=counts[0])
            vacuous = [[1.0 if place.chain.last is None else np.nan for place in some] for some in block.places]
            columns.update(plausible_dynamics=counts[1], vacuous_bonuses=np.array(vacuous))
        if looked is not None:
            for name, column in zip(DIAGNOSTICS, looked.T, strict=True):
                columns.setdefault(name, np.full(shape, np.nan))[:, 0] = column
        return columns

    def _play(self, block: _Block, table: tuple[Any, ...]) -> tuple[Array, Array, Array, Array, Array]:
        """The episodes of all runs: states, rows, their mean losses, the probabilities of the transitions, observed losses."""
        k, horizon = block.lines.size, self.layout.horizon
        episodes = [(run.streams, run.first + block.first, block.size) for run in self.runs]
        names = "actions", "transitions", "losses"
        u_action, u_next, u_loss = (np.concatenate([streams.several(name, *which) for streams, *which in episodes]) for name in names)
        states, chosen = np.empty((k, horizon + 1), np.int64), np.empty((k, horizon), np.int64)
        means, along = np.empty((k, horizon)), np.empty((k, horizon - 1))
        play_models(*table, block.policies.reshape(k, -1), u_action, u_next, states, chosen, means, along)
        if self._sampler is None and self._joint is None:
            return states, chosen, means, along, bernoulli(means, u_loss)
        losses = np.empty((k, horizon))
        actions = chosen % self.layout.n_actions
        for i, (context,) in enumerate(block.contexts):
            path, u = (states[i].copy(), actions[i].copy()), u_loss[i].copy()
            given = (self._sampler or bernoulli)(means[i].copy(), u) if self._joint is None else self._joint(context, *path, u)
            losses[i] = check_trajectory(self.layout, None, Trajectory(context, *path, given)).losses
        return states, chosen, means, along, losses

    def _learn(self, block: _Block, loss_gains: Array, gains: Array) -> int:
        """Let the agents learn as their ``observe`` does, up to the first episode that changes a fit; returns the number of episodes."""
        both = (self.losses, loss_gains), (self.dynamics, gains)
        (loss_scores, changed), (scores, also) = (oracles.coming(gained) for oracles, gained in both)
        if np.isneginf(scores).all(axis=2).any():
            return 0
        changes = np.flatnonzero((changed | also).any(axis=0)).tolist()
        same = changes[0] if changes else block.size
        count, self._changed = same + bool(changes), bool(changes)
        contexts = [[some[j] for some in block.contexts] for j in range(count)]
        for (oracles, gained), after in zip(both, (loss_scores, scores), strict=True):
            if same:
                oracles.take(after[:, same - 1], contexts[:same])
            if changes:
                oracles.add(gained[:, same], contexts[same])
        before, self._before = self._now[0], self._now
        if changes:
            self._now = self._state()
        differs = (before != self._now[0]).any(axis=0)
        for i, agent in enumerate(self.agents):
            agent.note(block.contexts[i][:count])
            agent.episode += count
            if not differs[i]:
                agent.history.length += count
                continue
            agent.history.length += same
            loss, fit, *versions = self._now[0][:, i].tolist()
            agent.fits = loss, fit
            if self.plausible:
                agent.versions = tuple(versions)
            agent.history.append(Fits(*agent.fits, *agent.versions))
        return count
