"""Runs of several seeds side by side: what an episode asks of each is asked of all in one operation.

The runs stay what they are, with agents and oracles of their own, so that any of them can be saved, resumed or played alone at any
episode. An episode in lockstep does what `Simulation.step` does in each run, to the same bits; where something is out of the
ordinary, it leaves the episode to `Simulation.step`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import tolerance_of
from .._support.numbers import log_losses
from .._support.threads import run_together
from ..agents.baselines import BonusFreeOPO
from ..agents.euc3rl import EUC3RL
from ..agents.opo import OPO, PATIENCE
from ..algorithm.chain import Chain
from ..algorithm.history import Fits
from ..algorithm.prepared import PreparedSteps, SharedHistory, prepared_steps
from ..kernels.models import backward_models, play_models
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.operations import bernoulli
from ..oracles.together import OraclesTogether, alike
from .columns import COLUMNS, DIAGNOSTICS, ERRORS
from .simulation import Simulation, looks_at
from .tables import ContextTables
from .worlds import ModelWorld

__all__ = ["Lockstep", "lockstep"]

Array = npt.NDArray[Any]

UNIFORMS = 256
"""Episodes whose uniforms are laid side by side at a time."""


def lockstep(runs: Sequence[Simulation]) -> Lockstep | None:
    """The runs in lockstep, or None where they differ in more than their seeds or are of a kind that gains nothing."""
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
    oracles = [run.agent.loss_oracle for run in runs], [run.agent.dynamics_oracle for run in runs]
    if len(runs) < 2 or not all(map(alike, oracles)):
        return None
    tables = ContextTables(runs[0].cmdp, first.loss_oracle, first.dynamics_oracle, len(runs) * (first.lookahead + 1))
    return Lockstep(runs, tables) if tables.fits_in else None


class Lockstep:
    """Runs that differ in their seeds alone.

    Parameters
    ----------
    runs : sequence of Simulation
        All at the same episode.
    tables : ContextTables
    """

    def __init__(self, runs: Sequence[Simulation], tables: ContextTables) -> None:
        self.runs, self.tables, self.agents = list(runs), tables, [run.agent for run in runs]
        self.layout = tables.layout
        n, horizon = len(runs), self.layout.horizon
        self.losses = OraclesTogether([agent.loss_oracle for agent in self.agents])
        self.dynamics = OraclesTogether([agent.dynamics_oracle for agent in self.agents])
        self.plausible = self.agents[0].plausible
        self.columns = {name: np.stack([run.columns[name] for run in runs]) for name in COLUMNS}
        for i, run in enumerate(runs):
            run._columns = {name: column[i] for name, column in self.columns.items()}
        self._ahead: list[tuple[Any, list[Hashable]]] = [([], []) for _ in runs]
        self._prepared: dict[int, PreparedSteps] = {}
        self._shared = [SharedHistory(agent, agent.history) if self.plausible else None for agent in self.agents]
        self._on = True
        self._uniforms: tuple[int, Array] = (-1, np.empty(0))
        self._policies = np.empty((n, tables.n_rows))
        self._gaps = np.empty((n, self.layout.n_states))
        self._q, self._v = np.empty((n, tables.n_rows)), np.empty((n, self.layout.n_states))
        self._saturation, self._vacuous = np.empty(n), np.empty(n)
        # Where the transitions of a row begin among all, layer by layer, less the row's number times its next states.
        sizes = np.array(self.layout.layer_sizes, np.int64)
        firsts = self.layout.offsets[:-2] * self.layout.n_actions
        self._n_next = sizes[1:]
        self._base = self.layout.dense_block[:-1] - firsts * self._n_next - self.layout.offsets[1:-1] if horizon > 1 else firsts
        self._look()

    def step(self) -> None:
        """Play one episode of every run."""
        began = time.perf_counter()
        if not (self._on and self._ordinary() and self._step()):
            for run in self.runs:
                run.step()
            self._look()
            return
        took = (time.perf_counter() - began) / len(self.runs)
        for run in self.runs:
            run.episode += 1
            run.seconds += took

    def _look(self) -> None:
        """Take over what the runs have done on their own."""
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

    def _ordinary(self) -> bool:
        """Whether no agent has anything to say of its own after the coming episode."""
        agent = self.agents[0]
        warns = agent.episode == agent.planned or (isinstance(agent, OPO) and agent.tuning == "theory" and agent.episode + 1 == PATIENCE)
        return agent.steps > 0 and not warns

    # -- one episode -------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """The coming episode of all runs; False where it was not played, and nothing has changed that could be seen."""
        run, tables = self.runs[0], self.tables
        t, episode = run.episode, run.first + run.episode
        if not self._look_ahead():
            self._on = False
            return False
        contexts = [run._ahead[0] for run in self.runs]
        keys = [keys[-len(run._ahead)] for run, (_, keys) in zip(self.runs, self._ahead, strict=True)]
        lines = np.array([tables.lines[key] for key in keys])
        self._advance(contexts, keys)
        values = self._values(lines)
        if values is None:
            return False
        diagnostics = self._diagnostics(contexts, full=looks_at(episode))
        states, chosen, means, along, losses = self._play(lines, contexts, episode)
        square = tables.losses[lines[:, None], chosen]
        # As the oracles add: over the steps of an episode one after the other, and over its transitions in a row.
        loss_gains = np.square(square - losses[:, :, None]).sum(axis=1)
        cells = self._base + chosen[:, :-1] * self._n_next + states[:, 1:-1]
        with np.errstate(divide="ignore"):
            p = np.ascontiguousarray(tables.dynamics[lines[:, None], cells].transpose(0, 2, 1))
            gains = np.log(p).sum(axis=2)
        if not ((p >= 0.0) & (p <= 1.0 + 1e-6)).all() or self.dynamics.impossible(gains):
            return False
        every = np.arange(len(self.runs))
        errors = (
            loss_gains[every, self._now[0][0]],
            np.abs(gains[every, self._now[0][1]]),
            np.square(means - losses).sum(axis=1),
            log_losses(along),
        )
        numbers = [run._number(context) for run, context in zip(self.runs, contexts, strict=True)]
        self._learn(loss_gains, gains, contexts)
        for agent, *held_out in zip(self.agents, *(error.tolist() for error in errors[:2]), strict=True):
            agent.held_out = tuple(held_out)
        found = {
            "value": values,
            "optimal_value": tables.best[lines],
            "uniform_value": tables.uniform[lines],
            "observed_loss": losses.sum(axis=1),
            "saturation": self._saturation,
            "context_index": numbers,
            "loss_fit": self.losses.fit,
            "dynamics_fit": self.dynamics.fit,
            **dict(zip(ERRORS, errors, strict=True)),
            **diagnostics,
        }
        for name, column in found.items():
            self.columns[name][:, t] = column
        for run in self.runs:
            run._ahead.pop(0)
        return True

    def _look_ahead(self) -> bool:
        """Draw the coming contexts where none are left, as `Simulation._coming` does, and take them in."""
        fresh = []
        for i, run in enumerate(self.runs):
            if not run._ahead:
                count = min(max(1, run.agent.lookahead), run.episodes - run.episode)
                run._ahead = [run.context(run.episode + j) for j in range(count)]
                fresh.append(i)
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
        needed = {key for _, keys in self._ahead for key in keys}
        contexts = [context for i in missing for context in self._ahead[i][0]]
        if not self.tables.find(contexts, [key for i in missing for key in self._ahead[i][1]], needed):
            return False
        # Chains of contexts that do not return are let go.
        if len(self._prepared) > 4 * len(self.runs):
            self._prepared.clear()
        for i in fresh:
            agent, shared = self.agents[i], self._shared[i]
            if agent.lookahead > 1:
                agent.engine.prefetch(self.runs[i]._ahead, agent.history, agent.steps, Chain.advance if shared is None else shared.advance)
        return True

    def _advance(self, contexts: Sequence[Any], keys: Sequence[Hashable]) -> None:
        """Bring the chains of these contexts to the coming step, and take from them what the episode needs."""
        for i, (agent, key) in enumerate(zip(self.agents, keys, strict=True)):
            n, held = agent.steps, agent.engine.held(key)
            ready = None if held is None else self._prepared.get(id(held[0]))
            if held is not None and ready is not None and ready.advance(n):
                chain, lane = held
                self._saturation[i] = ready.saturation(lane)
            else:
                chain, lane = agent.engine.chain(contexts[i], agent.history, n)
                self._saturation[i] = chain.saturation(lane)
                again = prepared_steps(chain, agent.history)
                if again is not None:
                    self._prepared[id(chain)] = again
                else:
                    self._prepared.pop(id(chain), None)
            self._policies[i] = chain.policy(lane)
            self._vacuous[i] = 1.0 if chain.last is None else np.nan
            if chain.hedge is not None:
                self._gaps[i] = chain.hedge.gap[lane : chain.hedge.size : chain.lanes]

    def _values(self, lines: Array) -> Array | None:
        """V(s_1) of the policies, or None where one of them is none."""
        table = self._table(lines)
        after = np.arange(len(lines)), table[-1], 1, 0, self._policies, tolerance_of(np.float64), self._q, self._v
        return None if run_together(backward_models, table[:-1], after, 1) else self._v[:, 0]

    def _table(self, lines: Array) -> tuple[Any, ...]:
        mdp = self.tables.mdps[int(lines[0])]
        assert mdp is not None
        t = mdp.transitions
        return self.tables.models[lines], t.data, t.indptr, t.indices, t.block, mdp.row_losses, t.layout.offsets, t.rows, t.width

    def _diagnostics(self, contexts: Sequence[Any], *, full: bool) -> dict[str, Any]:
        """The columns of `Simulation.step` that the agents' ``diagnostics`` give."""
        if full:
            found = [agent.diagnostics(context, full=True) for agent, context in zip(self.agents, contexts, strict=True)]
            return dict(zip(DIAGNOSTICS, np.array(found).T, strict=True))
        columns: dict[str, Any] = {}
        if self.agents[0].rule.hedged:
            columns["hedge_bound"] = 2 * np.maximum.reduceat(self._gaps, self.layout.offsets[:-1], axis=1).sum(axis=1)
        if self.plausible:
            # OPO's last step stands under the fits from before the newest episode.
            counts = (self._now if self.agents[0].rule.newest else self._before)[1]
            columns.update(truncated=0.0, truncated_played=0.0, plausible_losses=counts[0], plausible_dynamics=counts[1])
            columns["vacuous_bonuses"] = self._vacuous
        return columns

    def _play(self, lines: Array, contexts: Sequence[Any], episode: int) -> tuple[Array, Array, Array, Array, Array]:
        """An episode of each run: states, rows, their mean losses, the probabilities of the transitions, observed losses."""
        n, horizon = len(lines), self.layout.horizon
        u_action, u_next, u_loss = self._drawn(episode)
        states, chosen = np.empty((n, horizon + 1), np.int64), np.empty((n, horizon), np.int64)
        means, along = np.empty((n, horizon)), np.empty((n, horizon - 1))
        play_models(*self._table(lines)[:-1], self._policies, u_action, u_next, states, chosen, means, along)
        cmdp = self.tables.cmdp
        sampler, joint = getattr(cmdp, "sample_losses", None), getattr(cmdp, "joint_losses", None)
        if sampler is None and joint is None:
            return states, chosen, means, along, bernoulli(means, u_loss)
        losses = np.empty((n, horizon))
        actions = chosen % self.layout.n_actions
        for i, context in enumerate(contexts):
            path = states[i].copy(), actions[i].copy()
            given = (sampler or bernoulli)(means[i].copy(), u_loss[i].copy()) if joint is None else joint(context, *path, u_loss[i].copy())
            losses[i] = check_trajectory(self.layout, None, Trajectory(context, *path, given)).losses
        return states, chosen, means, along, losses

    def _drawn(self, episode: int) -> Array:
        """The uniforms of actions, transitions and losses in one episode, (3, B, H)."""
        block, at = divmod(episode, UNIFORMS)
        if self._uniforms[0] != block:
            episodes = range(block * UNIFORMS, (block + 1) * UNIFORMS)
            names = "actions", "transitions", "losses"
            drawn = [[[run.streams.uniforms(name, t) for t in episodes] for run in self.runs] for name in names]
            self._uniforms = block, np.ascontiguousarray(np.array(drawn).transpose(2, 0, 1, 3))
        drawn_at: Array = self._uniforms[1][at]
        return drawn_at

    def _learn(self, loss_gains: Array, gains: Array, contexts: Sequence[Any]) -> None:
        """Let the agents learn from the episode, as their ``observe`` does."""
        self.losses.add(loss_gains, contexts)
        self.dynamics.add(gains, contexts)
        before, self._before, self._now = self._now[0], self._now, self._state()
        changed = (before != self._now[0]).any(axis=0)
        for i, agent in enumerate(self.agents):
            agent.note([contexts[i]])
            agent.episode += 1
            if changed[i]:
                loss, fit, *versions = self._now[0][:, i].tolist()
                agent.fits = loss, fit
                if self.plausible:
                    agent.versions = tuple(versions)
                agent.history.append(Fits(*agent.fits, *agent.versions))
            else:
                agent.history.length += 1
