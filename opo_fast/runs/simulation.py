"""The episode loop: an agent in a contextual MDP, with its exact regret."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_real, frozen, truth, whole
from .._support.fields import Fields, agrees
from .._support.interrupts import interrupts
from .._support.lru import LRU
from .._support.memory import check_room
from .._support.numbers import log_loss
from .._support.progress import bar
from .._support.text import figure
from ..errors import OpoError
from ..model.contextual import ContextualMDP, Trajectory, check_trajectory, context_key
from ..model.layered import LayeredMDP
from ..model.operations import Backend, check_backend, check_policy, evaluate, play, solve
from ..model.streams import Streams
from ..oracles.log import Recorder
from .result import COLUMNS, DIAGNOSTICS, ERRORS, WHOLE, SimulationResult

__all__ = ["Simulation", "simulate"]

Array = npt.NDArray[Any]


def _label(cmdp: Any, context: Any) -> str:
    """What the environment calls a context."""
    if hasattr(cmdp, "label"):
        return str(cmdp.label(context))
    labels = getattr(cmdp, "labels", ())
    return str(labels[context]) if isinstance(context, int) and 0 <= context < len(labels) else str(context)


class _Truth:
    """The true models' values, computed once per context while they stay in the cache."""

    def __init__(self, cmdp: ContextualMDP, backend: Backend) -> None:
        self.cmdp, self.backend = cmdp, backend
        self._values: LRU[tuple[float, float]] = LRU(1 << 24)

    def values(self, key: Any, mdp: LayeredMDP) -> tuple[float, float]:
        """V(s_1) of the optimum and of the uniform policy."""
        found = self._values.get(key)
        if found is None:
            best = float(solve(mdp, backend=self.backend).v[0])
            uniform = float(evaluate(mdp, mdp.uniform_policy(), backend=self.backend).v[0])
            found = (best, uniform)
            self._values.put(key, found, 256)
        return found


LOOKS = 100
"""In about so many episodes of a run all pairs are looked at for its diagnostics."""


class Simulation:
    """A run that can be driven episode by episode; `simulate` is the loop around it.

    Parameters
    ----------
    As those of `simulate`.
    """

    def __init__(
        self, cmdp: ContextualMDP, agent: Any, episodes: int, seed: int = 0, *, backend: Backend = "numba", log: bool = False
    ) -> None:
        check_backend(backend)
        for name in ("sample_context", "mdp", "layout"):
            if not hasattr(cmdp, name):
                raise OpoError(f"cmdp is a {type(cmdp).__name__} without {name}: a ContextualMDP is needed")
        for name in ("policy", "observe"):
            if not hasattr(agent, name):
                raise OpoError(f"agent is a {type(agent).__name__} without {name}: an Agent is needed")
        if hasattr(agent, "layout") and agent.layout != cmdp.layout:
            raise OpoError(f"agent has {agent.layout!r}: the layout of the environment, {cmdp.layout!r}, is needed")
        self.episodes = whole(episodes, "episodes", least=1)
        self.cmdp, self.agent, self.backend = cmdp, agent, backend
        self.agent_name = str(getattr(agent, "name", type(agent).__name__))
        self.streams = Streams(seed, cmdp.layout.horizon)
        self.episode = 0
        self.contexts: list[Any] = []
        self.labels: list[str] = []
        check_room(len(COLUMNS) * self.episodes, f"episodes is {self.episodes}: the records of so many")
        self.columns: dict[str, Array] = {
            name: np.full(self.episodes, -1, np.int64) if name in WHOLE else np.full(self.episodes, np.nan) for name in COLUMNS
        }
        self._truth = _Truth(cmdp, backend)
        self._numbers: dict[Any, int] = {}
        self._ahead: list[Any] = []
        self._recorder = Recorder(cmdp.layout) if truth(log, "log") else None
        self._sample_losses: Callable[[Array, Array], Array] | None = getattr(cmdp, "sample_losses", None)
        self.seconds = 0.0

    def context(self, episode: int) -> Any:
        """The context of an episode; it depends on the seed and the episode alone."""
        context = self.cmdp.sample_context(self.streams.generator("contexts", episode))
        # An environment may write all its contexts into one array.
        return frozen(context.copy()) if isinstance(context, np.ndarray) else context

    def _coming(self) -> Any:
        """The next context; the agent is told of those after it, which do not depend on what it learns."""
        window = getattr(self.agent, "lookahead", 0)
        if not self._ahead:
            count = min(max(1, window), self.episodes - self.episode)
            self._ahead = [self.context(self.episode + i) for i in range(count)]
            if window > 1:
                self.agent.prefetch(self._ahead)
        return self._ahead.pop(0)

    def step(self) -> None:
        """Play one episode."""
        began = time.perf_counter()
        t, columns = self.episode, self.columns
        context = self._coming()
        key = context_key(context)
        mdp = self.cmdp.mdp(context)
        policy = check_policy(mdp, self.agent.policy(context))
        value = float(evaluate(mdp, policy, backend=self.backend).v[0])
        saturation = float(self.agent.saturation(context)) if hasattr(self.agent, "saturation") else np.nan
        if hasattr(self.agent, "diagnostics"):
            # A look at all pairs costs as much as a step of a chain.
            full = t % max(1, self.episodes // LOOKS) == 0 or t == self.episodes - 1
            for name, number in zip(DIAGNOSTICS, self.agent.diagnostics(context, full=full), strict=True):
                columns[name][t] = number
        u_action, u_next, u_loss = (self.streams.uniforms(name, t) for name in ("actions", "transitions", "losses"))
        trajectory = play(mdp, policy, u_action, u_next, u_loss, context, self._sample_losses, self.backend)
        if self._sample_losses is not None:
            check_trajectory(mdp.layout, mdp.action_mask, trajectory)
        self.agent.observe(trajectory)
        if self._recorder is not None:
            self._recorder.add(trajectory, policy, mdp.action_mask)
        number = self._number(context)
        best, uniform = self._truth.values(key, mdp)
        columns["value"][t], columns["optimal_value"][t], columns["uniform_value"][t] = value, best, uniform
        columns["observed_loss"][t] = trajectory.losses.sum()
        columns["saturation"][t] = saturation
        columns["context_index"][t] = number
        if hasattr(self.agent, "held_out"):
            self._record_errors(t, mdp, trajectory)
        fits = getattr(self.agent, "fits", (-1, -1))
        for name, fit in zip(("loss_fit", "dynamics_fit"), fits, strict=True):
            columns[name][t] = fit if isinstance(fit, (int, np.integer)) else -1
        self.episode += 1
        self.seconds += time.perf_counter() - began

    def _record_errors(self, t: int, mdp: LayeredMDP, trajectory: Trajectory) -> None:
        """Errors along a trajectory of the fits before it, and of the truth."""
        means, along = mdp.losses[trajectory.states[:-1], trajectory.actions], mdp.transitions.along(trajectory.states, trajectory.actions)
        truth = float(np.square(means - trajectory.losses).sum()), log_loss(along)
        for name, error in zip(ERRORS, (*self.agent.held_out, *truth), strict=True):
            self.columns[name][t] = error

    def _number(self, context: Any) -> int:
        """The number of a context in order of first appearance."""
        key = context_key(context)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            if len(self._numbers) <= 10_000:
                self.contexts.append(context)
                self.labels.append(_label(self.cmdp, context))
        return self._numbers[key]

    def state(self) -> dict[str, Any]:
        """All that a run of the same arguments needs to go on with the same bits: arrays and plain values.

        The streams are counter-based, so the seed and the episode are all that is kept of them. Chains are a cache, but
        building them again costs as much as the run did, so an agent's ``chains()`` are part of it where contexts return.

        Raises
        ------
        OpoError
            The agent has no ``state()`` and ``restore(state)``.
        """
        if not (hasattr(self.agent, "state") and hasattr(self.agent, "restore")):
            raise OpoError(f"agent is a {type(self.agent).__name__} without state() and restore(state): its run cannot be saved on the way")
        state = {
            "seed": self.streams.seed,
            "planned_episodes": self.episodes,
            "episode": self.episode,
            "seconds": self.seconds,
            "columns": {name: column[: self.episode].copy() for name, column in self.columns.items()},
            "agent": self.agent.state(),
        }
        if hasattr(self.agent, "chains") and 2 * len(self._numbers) <= self.episode:
            state["chains"] = self.agent.chains()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; it must come from a run of the same arguments.

        Raises
        ------
        OpoError
            The state is that of another run, or does not fit the agent.
        """
        fields = Fields(state, "what a Simulation's state() gave")
        for name, mine in (("seed", self.streams.seed), ("planned_episodes", self.episodes)):
            if not agrees(state.get(name), mine):
                raise OpoError(f"state has {name} {state.get(name)!r}: {mine!r}, as of this run, is needed")
        episode, seconds = fields.whole("episode", most=self.episodes), fields.number("seconds")
        columns = _checked_columns(fields.inner("columns"), episode)
        if not (hasattr(self.agent, "state") and hasattr(self.agent, "restore")):
            raise OpoError(f"agent is a {type(self.agent).__name__} without state() and restore(state): its run cannot be gone on with")
        theirs = fields.inner("agent")
        if "episode" in theirs.state:
            theirs.exactly("episode", episode, "as many as the run has played")
        before = self.agent.state()
        try:
            self.agent.restore(theirs.state)
            if "chains" in state and hasattr(self.agent, "restore_chains"):
                self.agent.restore_chains(state["chains"])
        except BaseException:
            self.agent.restore(before)
            raise
        for name, column in self.columns.items():
            column[:episode] = columns[name]
        self.episode, self.seconds, self._ahead = episode, seconds, []
        self._numbers, self.contexts, self.labels = {}, [], []
        _, first = np.unique(self.columns["context_index"][:episode], return_index=True)
        for t in first:
            self._number(self.context(int(t)))

    def regret_so_far(self) -> str:
        """The cumulative regret, for a bar."""
        done = slice(0, self.episode)
        return f"regret {figure(float((self.columns['value'][done] - self.columns['optimal_value'][done]).sum()), '.1f')}"

    def result(self, *, interrupted: bool = False) -> SimulationResult:
        """What was recorded so far."""
        few = len(self._numbers) <= 10_000
        settings = {
            "environment": str(getattr(self.cmdp, "name", type(self.cmdp).__name__)),
            "agent": self.agent_name,
            "seed": self.streams.seed,
            "planned_episodes": self.episodes,
            "interrupted": interrupted,
            "seconds": self.seconds,
            "labels": list(self.labels) if few else [],
        }
        columns = {name: column[: self.episode].copy() for name, column in self.columns.items()}
        result = SimulationResult(columns, list(self.contexts) if few else [], settings)
        result.log = None if self._recorder is None else self._recorder.log()
        return result


def _checked_columns(fields: Fields, episode: int) -> dict[str, Array]:
    """The columns of a state, those of `episode` finished episodes."""
    columns = {}
    for name in COLUMNS:
        if name in WHOLE:
            columns[name] = fields.positions(name, (episode,), least=0 if name == "context_index" else -1)
        else:
            array = as_real(fields.value(name), fields.place(name))
            fields.check(name, array.shape == (episode,), f"has shape {array.shape}: ({episode},) is needed")
            columns[name] = array
    _, first = np.unique(columns["context_index"], return_index=True)
    numbered = np.array_equal(columns["context_index"][first], np.arange(first.size)) and bool((np.diff(first) > 0).all())
    fields.check("context_index", numbered, "does not number contexts in order of first appearance")
    return columns


def simulate(
    cmdp: ContextualMDP,
    agent: Any,
    episodes: int,
    seed: int = 0,
    *,
    progress: bool | None = None,
    backend: Backend = "numba",
    log: bool = False,
) -> SimulationResult:
    """Run `agent` for `episodes` episodes (paper, section 2.2) and record its exact regret.

    Parameters
    ----------
    cmdp : ContextualMDP
    agent : Agent
    episodes : int
        T, at least 1.
    seed : int
        Keys the streams of contexts, actions, transitions and losses. The same seed gives the same bits, and two agents
        with the same seed see the same contexts and uniforms. No global random state is touched.
    progress : bool, optional
        A bar on standard error. Default: on a terminal, once the run has taken two seconds.
    backend : {"numba", "numpy"}
        Of the true values and the rollouts; the agent has its own.
    log : bool
        Keep all trajectories, with the probabilities of the actions: ``result.log`` is then a `TrajectoryLog`.

    Returns
    -------
    SimulationResult
        After Ctrl-C: of the episodes that were finished, with ``interrupted`` set. The episode under way is finished
        first, so that the agent can go on being used; a second Ctrl-C stops in the middle of it.

    Raises
    ------
    OpoError
        The agent or the environment does not fit; an error of either names the episode.
    """
    run = Simulation(cmdp, agent, episodes, seed, backend=backend, log=log)
    # Only the first episode takes long without a sign: kernels are compiled then.
    with bar(run.agent_name, run.episodes, progress) as shown, interrupts() as interrupted:
        try:
            while run.episode < run.episodes and not interrupted():
                run.step()
                shown(run.episode, run.regret_so_far)
        except KeyboardInterrupt:
            return run.result(interrupted=True)
        except Exception as error:
            error.add_note(f"in episode {run.episode + 1} of {run.episodes}")
            raise
    return run.result(interrupted=run.episode < run.episodes)
