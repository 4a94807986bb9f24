"""Common parts of OPO-CMDP and its relatives: the history of fits, and one policy chain per context."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, instance
from .._support.fields import Fields, as_fit
from ..algorithm.engine import ChainEngine
from ..algorithm.history import Fits, History
from ..algorithm.rules import ChainRule, reference_chain
from ..algorithm.self_tuning import Plausible, SelfTuningRule, self_tuning_chain
from ..model.contextual import Trajectory
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.operations import Backend
from .base import SOURCE, State, checked_fit
from .diagnostics import Diagnostics, diagnose
from .oracle_agent import OracleAgent

__all__ = ["MEMORY", "ChainAgent"]

Array = npt.NDArray[Any]

MEMORY = 1 << 29
"""Default byte budget of an agent's chains."""


class ChainAgent(OracleAgent):
    """An agent whose policy at a context is a chain over the past fits.

    Parameters
    ----------
    layout, loss_class, dynamics_class
        See `OracleAgent`.
    rule : ChainRule
        The rule of a chain step.
    action_mask : array_like of bool (n_states, A), optional
    backend : {"numba", "numpy"}
        "numpy" runs Algorithm 1 literally, from the first step in every episode: for checks at small sizes.
    memory : int
        Byte budget of the chains and of what the oracles cache, of which the chains always keep half; it never changes a result.
    """

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        rule: ChainRule,
        *,
        action_mask: npt.ArrayLike | None = None,
        backend: Backend = "numba",
        memory: int = MEMORY,
    ) -> None:
        instance(rule, "rule", ChainRule)
        self.rule = rule
        self.versions: tuple[Hashable, Hashable] = (None, None)
        super().__init__(layout, loss_class, dynamics_class, action_mask=action_mask, backend=backend)
        self.history = History()
        self.engine = ChainEngine(layout, self.action_mask, rule, self, as_integer(memory, "memory", least=0))
        if not self.rule.forced:
            self.history.append(Fits(*self.fits, *self.versions))

    @property
    def plausible(self) -> bool:
        """Whether the chains use plausible sets of the oracles."""
        return isinstance(self.rule, SelfTuningRule) and self.rule.plausible

    def _refit(self) -> None:
        if not self.plausible:
            super()._refit()
            return
        (loss_fit, loss_version), (fit, version) = self.loss_oracle.plausible(), self.dynamics_oracle.plausible()
        self.fits, self.versions = (loss_fit, fit), (loss_version, version)

    def warm_start(self, trajectories: Any, *, progress: bool | None = None) -> None:
        """See `OracleAgent.warm_start`."""
        super().warm_start(trajectories, progress=progress)
        if not self.rule.forced:
            self.history = History()
            self.history.append(Fits(*self.fits, *self.versions))
            # Existing chains may have used the models without data.
            self.engine = ChainEngine(self.layout, self.action_mask, self.rule, self, self.engine.memory)

    @property
    def planning_calls(self) -> int:
        """Steps of policy chains so far, over all contexts."""
        return self.engine.planned

    @planning_calls.setter
    def planning_calls(self, value: int) -> None:
        self.engine.planned = value

    @property
    def steps(self) -> int:
        """Number of chain steps behind the policy of the next episode."""
        return self.rule.steps(self.episode)

    def policy(self, context: Any) -> Array:
        """pi^t at `context`, shape (n_states, A), where t is the next episode. A pure query."""
        if self.episode < self.rule.forced:
            return self.forced_policy()
        if self.backend == "numpy":
            return self._literal_policy(context)
        chain, lane = self.engine.chain(context, self.history, self.steps)
        return self.full(chain.policy(lane))

    def forced_policy(self, episode: int | None = None) -> Array:
        """The policy of a forced episode, counted from 0: the t-th allowed action in every state in episode t.

        Default: the next episode.
        """
        episode = self.episode if episode is None else episode
        if self.action_mask is None:
            choice = np.full(self.layout.n_states, episode)
        else:
            order = np.argsort(~self.action_mask, axis=1, kind="stable")
            choice = order[np.arange(self.layout.n_states), episode % self.action_mask.sum(axis=1)]
        policy: Array = np.eye(self.layout.n_actions)[choice]
        return policy

    def full(self, rows: Array) -> Array:
        """Spread one number per allowed pair over a new (n_states, A) array; 0 elsewhere."""
        if self.action_mask is None:
            return rows.reshape(self.layout.shape).copy()
        full = np.zeros(self.layout.shape)
        full[self.action_mask] = rows
        return full

    def _literal_policy(self, context: Any) -> Array:
        if isinstance(self.rule, SelfTuningRule):
            history = [self.plausible_at(self.history[k], context) for k in range(self.steps)]
            return self_tuning_chain(history, self.rule).policy if history else self.uniform()
        parts: dict[Any, Any] = {}
        models = []
        for k in range(self.steps):
            loss_fit, fit = self.history[k][:2]
            if ("P", fit) not in parts:
                parts["P", fit] = self.transitions(fit, context)
            models.append(LayeredMDP(self.layout, self.loss_oracle.losses(loss_fit, context), parts["P", fit]))
        return reference_chain(models, self.rule) if models else self.uniform()

    def plausible_at(self, fits: Fits, context: Any) -> Plausible:
        """The plausible models at a context at a step of the history, for the plain NumPy form of the self-tuning chain."""
        model = LayeredMDP(self.layout, self.loss_oracle.losses(fits.loss, context), self.transitions(fits.dynamics, context))
        if not self.plausible:
            return Plausible(model)
        lower, listed = self.loss_oracle.lower(fits.loss_version, context), self.candidates(fits.dynamics_version)
        if listed is None:
            return Plausible(model, lower, np.asarray(self.dynamics_oracle.radius(fits.dynamics_version, context)))
        return Plausible(model, lower, [self.transitions(fit, context) for fit in listed])

    def prefetch(self, contexts: Sequence[Any]) -> None:
        """Advance the chains of these contexts together. A hint that never changes a result."""
        if self.backend == "numba" and self.episode >= self.rule.forced:
            self.engine.prefetch(as_items(contexts, "contexts", "contexts"), self.history, self.steps)

    @property
    def lookahead(self) -> int:
        """The number of upcoming contexts that a call of `prefetch` can use."""
        return self.engine.lookahead if self.backend == "numba" else 0

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to both oracles and fit again; a bad trajectory changes nothing."""
        super().observe(trajectory)
        if self.episode >= self.rule.forced:
            self.history.append(Fits(*self.fits, *self.versions))

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`; includes the rule."""
        rule = {
            name: np.asarray(value).tolist() if isinstance(value, (np.ndarray, tuple)) else value for name, value in vars(self.rule).items()
        }
        return {**super().settings(), "rule": rule}

    def _state(self) -> State:
        history = self.history
        # Fits of most oracles are integers: arrays are fast to write and read, however many runs of equal fits there are.
        width = 4 if self.plausible else 2
        runs: Any = [run[:width] for run in history.runs]
        numbered = all(isinstance(fit, int) for run in runs for fit in run)
        runs = np.array(runs, np.int64).reshape(len(runs), width) if numbered else [list(run) for run in runs]
        return {
            "history.length": history.length,
            "history.starts": np.array(history.starts, np.int64),
            "history.runs": runs,
            **super()._state(),
        }

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self.history = self._restored_history(Fields(state, SOURCE))
        # Chains are a cache: they are rebuilt with the same bits.
        planned = self.engine.planned
        self.engine = ChainEngine(self.layout, self.action_mask, self.rule, self, self.engine.memory)
        self.engine.planned = planned

    def _restored_history(self, fields: Fields) -> History:
        """The history of a state whose oracles have already been restored."""
        history = History()
        wanted = max(0, fields.integer("episode") - self.rule.forced + 1)
        history.length = fields.exactly("history.length", wanted, "one step for each episode after the forced ones, and the first models")
        runs = fields.listed("history.runs")
        history.starts = fields.positions("history.starts", (len(runs),), most=max(0, wanted - 1)).tolist()
        rising = all(a < b for a, b in pairwise(history.starts))
        fields.check("history.starts", rising and history.starts[:1] == [0][:wanted], "does not rise from 0")
        for run in runs:
            width = 4 if self.plausible else 2
            good = isinstance(run, (list, tuple)) and len(run) == width
            fields.check(
                "history.runs", good, f"holds {run!r}: {width} entries are needed, the fits of a step and the versions of their sets"
            )
            oracles = (self.loss_oracle, self.dynamics_oracle)
            fits = [checked_fit(oracle, value, fields.place("history.runs")) for oracle, value in zip(oracles, run, strict=False)]
            history.runs.append(Fits(*fits, *map(as_fit, run[2:])))
        newest = [Fits(*self.fits, *self.versions)][:wanted]
        fields.check("history.runs", history.runs[-1:] == newest, lambda: f"ends with {history.runs[-1:]}: {newest} is needed, of all data")
        return history

    def chains(self) -> dict[str, Any]:
        """The policy chains, for `restore_chains`: not needed to continue, but they take as long to rebuild as to build."""
        return self.engine.state()

    def restore_chains(self, chains: dict[str, Any]) -> None:
        """Restore the `chains` of the agent whose state was restored; without them they are rebuilt when needed."""
        self.engine.restore(chains, self.history, self.steps)

    def saturation(self, context: Any) -> float:
        """Share of the pairs whose bonus was at its cap in the last step of the chain at `context`; 1 before the first step."""
        if self.episode < self.rule.forced:
            return 1.0
        if self.backend == "numpy":
            return float("nan")
        chain, lane = self.engine.chain(context, self.history, self.steps)
        return chain.saturation(lane)

    def diagnostics(self, context: Any, *, full: bool = True) -> Diagnostics:
        """Numbers that show whether bonuses are too large or no longer needed, in the last step of the chain at `context`.

        Without `full`, those that need a pass over all pairs are left out.
        """
        if self.steps == 0 or self.episode < self.rule.forced or self.backend == "numpy":
            return Diagnostics()
        chain, lane = self.engine.chain(context, self.history, self.steps)
        return diagnose(self, chain, lane, context, full=full)

    def value(self, context: Any) -> float:
        """The optimistic estimate of V(s_1) in the last step of the chain at `context`; 0 before the first step."""
        if self.steps == 0 or self.episode < self.rule.forced:
            return 0.0
        if self.backend == "numpy":
            return float("nan")
        chain, lane = self.engine.chain(context, self.history, self.steps)
        return chain.value(lane)
