"""The episode loop: an agent in a contextual MDP, with its exact regret."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, as_integer, as_real, frozen, having
from .._support.fields import Fields, agrees
from .._support.files import reading
from .._support.interrupts import interrupts
from .._support.memory import check_room
from .._support.progress import bar
from .._support.state import holds, read_state, write_state
from .._support.text import figure
from ..errors import OpoError
from ..model.contextual import ContextualMDP, context_key
from ..model.layered import LayeredMDP
from ..model.operations import Backend, check_backend
from ..model.streams import Streams
from ..oracles.log import Recorder
from .columns import COLUMNS, DIAGNOSTICS, INTEGERS, check_numbered, check_values, looks_at
from .contexts import LISTED, Seen
from .decomposition import check_terms, regret_decomposition
from .labels import Labels
from .lockstep import lockstep
from .result import SimulationResult
from .saver import Saver
from .worlds import world_of

__all__ = ["Simulation", "simulate"]

Array = npt.NDArray[Any]
_FORMAT = "opo_fast.Simulation"
WORTH_BLOCKS = 64
"""Episodes from which blocks of them save more than their kernels take to load."""


class Simulation:
    """A run that can be driven episode by episode, saved to a file and gone on with; `simulate` is the loop around it.

    It takes the arguments of `simulate`.

    Attributes
    ----------
    first : int
        Episodes that the agent had observed before: the run begins at that episode of every stream.
    episode : int
        Episodes of this run that were played.
    about : dict
        Plain values that `save` keeps with the run, such as how to build its environment.
    """

    def __init__(
        self, cmdp: ContextualMDP, agent: Any, episodes: int, seed: int = 0, *, backend: Backend = "numba", log: bool = False
    ) -> None:
        check_backend(backend)
        if isinstance(cmdp, LayeredMDP):
            raise OpoError("cmdp is a LayeredMDP, which has no contexts: FiniteContexts([model]) is a contextual MDP with one context")
        having(cmdp, "cmdp", ("sample_context", "layout"), "a ContextualMDP")
        having(agent, "agent", ("policy", "observe"), "an Agent")
        if hasattr(agent, "layout") and agent.layout != cmdp.layout:
            raise OpoError(f"agent has {agent.layout!r}: the layout of the environment, {cmdp.layout!r}, is needed")
        self.episodes = as_integer(episodes, "episodes", least=1)
        self.cmdp, self.agent, self.backend = cmdp, agent, backend
        self.agent_name = str(getattr(agent, "name", type(agent).__name__))
        self.streams = Streams(seed, cmdp.layout.horizon)
        self.first = as_integer(getattr(agent, "episode", 0), "agent.episode", least=0)
        self.episode = 0
        self.contexts: list[Any] = []
        check_room(len(COLUMNS) * self.episodes, f"episodes is {self.episodes}: the records of so many")
        self._columns: dict[str, Array] = {
            name: np.full(self.episodes, -1, np.int64) if name in INTEGERS else np.full(self.episodes, np.nan) for name in COLUMNS
        }
        self._world = world_of(cmdp, self.streams, backend)
        self._numbers: dict[Any, int] = {}
        self._seen: Seen | None = None  # contexts that are too many to be listed
        self._ahead: list[Any] = []
        self._models: list[Any] = []  # of the first contexts ahead, where they were asked for already; or the error that came
        self._recorder = Recorder(cmdp.layout) if as_bool(log, "log") else None
        self.seconds = 0.0
        self.about: dict[str, Any] = {}

    @property
    def columns(self) -> dict[str, Array]:
        """What was recorded, one entry per episode of the run; those of episodes to come are NaN or -1."""
        self._world.fill(self._columns)
        return self._columns

    @property
    def labels(self) -> Labels:
        """What the environment calls each of the contexts."""
        return Labels(self.cmdp, self.contexts)

    def context(self, episode: int) -> Any:
        """The context of an episode of this run; it depends on the seed, `first` and the episode alone."""
        context = self.cmdp.sample_context(self.streams.moved("contexts", self.first + episode))
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
        return self._ahead[0]

    def step(self) -> None:
        """Play one episode."""
        began = time.perf_counter()
        t, columns = self.episode, self._columns
        context = self._coming()
        self._world.enter(context, self._model())
        policy = self._world.check(self.agent.policy(context))
        self._world.hold(t, context, policy, columns)
        saturation = float(self.agent.saturation(context)) if hasattr(self.agent, "saturation") else np.nan
        if hasattr(self.agent, "diagnostics"):
            numbers = self.agent.diagnostics(context, full=looks_at(self.first + t))
            for name, number in zip(DIAGNOSTICS, numbers, strict=True):
                columns[name][t] = number
        trajectory = self._world.play(self.first + t, context, policy)
        self.agent.observe(trajectory)
        if self._recorder is not None:
            self._recorder.add(trajectory, policy, self._world.action_mask)
        number = self._number(context)
        columns["observed_loss"][t] = trajectory.losses.sum()
        columns["saturation"][t] = saturation
        columns["context_index"][t] = number
        if hasattr(self.agent, "held_out"):
            columns["held_out_squared_error"][t], columns["held_out_log_loss"][t] = self.agent.held_out
            self._world.played(t, trajectory, columns)
        fits = getattr(self.agent, "fits", (-1, -1))
        for name, fit in zip(("loss_fit", "dynamics_fit"), fits, strict=True):
            columns[name][t] = fit if isinstance(fit, (int, np.integer)) else -1
        # Not before: an episode that fails is played again at the same context.
        self.passed(1, time.perf_counter() - began)

    def passed(self, episodes: int, seconds: float) -> None:
        """Count episodes that were played and recorded."""
        del self._ahead[:episodes], self._models[:episodes]
        self.episode += episodes
        self.seconds += seconds

    def _model(self) -> Any:
        """The model of the coming episode, where it was asked for already."""
        found = self._models[0] if self._models else None
        if isinstance(found, Exception):
            # Who tries again asks again.
            self._models = []
            raise found
        return found

    def _number(self, context: Any) -> int:
        """The number of a context in order of first appearance."""
        n = len(self._numbers)
        key = context_key(context)
        number = self._numbers.setdefault(key, n)
        if number == n:
            if n < LISTED:
                self.contexts.append(context)
            else:
                self._seen = self._seen or Seen(self.contexts)
                self._seen.add(context, key)
        return number

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
            "first_episode": self.first,
            "environment": self._environment_name(),
            "agent_name": self.agent_name,
            "episode": self.episode,
            "seconds": self.seconds,
            "columns": {name: column[: self.episode].copy() for name, column in self.columns.items()},
            "agent": self.agent.state(),
        }
        if hasattr(self.agent, "chains") and 2 * len(self._numbers) <= self.episode:
            state["chains"] = self.agent.chains()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; it must come from a run of the same arguments, of as many episodes or fewer.

        Raises
        ------
        OpoError
            The state is that of another run, or does not fit the agent.
        """
        fields = Fields(state, "what a Simulation's state() gave")
        known = {"seed": self.streams.seed, "environment": self._environment_name(), "agent_name": self.agent_name}
        for name, mine in known.items():
            if not agrees(state.get(name), mine):
                raise OpoError(f"state has {name} {state.get(name)!r}: {mine!r}, as of this run, is needed")
        episode, seconds, first = fields.integer("episode"), fields.number("seconds"), fields.integer("first_episode")
        if episode > self.episodes:
            raise OpoError(f"episodes is {self.episodes}, of which {episode} are played already: at least {episode} is needed to go on")
        columns = _checked_columns(fields.inner("columns"), episode)
        try:
            check_values(columns, self.cmdp.layout.horizon, self._world.exact)
            check_numbered(columns["context_index"])
        except OpoError as error:
            raise fields.fault("columns", f"cannot be those of a run: {error}") from None
        if not (hasattr(self.agent, "state") and hasattr(self.agent, "restore")):
            raise OpoError(f"agent is a {type(self.agent).__name__} without state() and restore(state): its run cannot be gone on with")
        theirs = fields.inner("agent")
        if "episode" in theirs.state:
            theirs.exactly("episode", first + episode, "as many as the run has played")
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
        self.episode, self.seconds, self.first, self._ahead, self._models = episode, seconds, first, [], []
        self._numbers, self._seen, self.contexts = {}, None, []
        _, seen = np.unique(self.columns["context_index"][:episode], return_index=True)
        for t in seen:
            self._number(self.context(int(t)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is needed to go on to `path` as npz (no pickle), whole or not at all; see `state`."""
        if self._recorder is not None:
            raise OpoError("log is True: a run that keeps its trajectories cannot be saved on the way")
        state = self.state()
        # Chains whose contexts are objects of the user's own are built again instead.
        if not holds(state.get("chains")):
            del state["chains"]
        write_state(path, {"format": _FORMAT, "about": self.about, **state})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], cmdp: ContextualMDP, agent: Any, episodes: int | None = None, *, backend: Backend = "numba"
    ) -> Simulation:
        """The run that `save` wrote, in another process or another day: it goes on with the same bits.

        Parameters
        ----------
        path : path
        cmdp, agent
            Built with the same arguments; what `agent` has learned is replaced by what the file holds.
        episodes : int, optional
            T of the run, at least as many as were played. Default: as planned.
        backend : {"numba", "numpy"}

        Raises
        ------
        OpoError
            No such file, a damaged one, or one of another environment or agent: the setting that differs, with both values.
        """
        state = read_run(path)
        if episodes is None:
            episodes = as_integer(state.get("planned_episodes"), "planned_episodes", least=1)
        run = cls(cmdp, agent, episodes, as_integer(state.get("seed"), "seed", least=0, most=None), backend=backend)
        run.restore(state)
        run.about = Fields(state, "what Simulation.save wrote").inner("about").plain()
        return run

    def _environment_name(self) -> str:
        return str(getattr(self.cmdp, "name", type(self.cmdp).__name__))

    def regret_so_far(self) -> str:
        """The cumulative regret, or the mean of the observed losses where the regret is not known, for a bar."""
        if not self._world.exact:
            return f"loss {figure(float(self.columns['observed_loss'][: self.episode].mean()), '.3f')}"
        done = slice(0, self.episode)
        return f"regret {figure(float((self.columns['value'][done] - self.columns['optimal_value'][done]).sum()), '.1f')}"

    def result(self, *, interrupted: bool = False) -> SimulationResult:
        """What was recorded so far."""
        few = self._seen is None
        settings = {
            "environment": self._environment_name(),
            "agent": self.agent_name,
            "seed": self.streams.seed,
            "planned_episodes": self.episodes,
            "first_episode": self.first,
            "exact": self._world.exact,
            "layers": self.cmdp.layout.horizon,
            "interrupted": interrupted,
            "seconds": self.seconds,
            "labels": self.labels if few else [],
        }
        columns = {name: column[: self.episode].copy() for name, column in self.columns.items()}
        result = SimulationResult(columns, list(self.contexts) if few else [], settings, None if self._seen is None else self._seen.many())
        result.log = None if self._recorder is None else self._recorder.log()
        return result


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state that `Simulation.save` wrote."""
    what = "a run that Simulation.save wrote"
    state = read_state(path, what)
    with reading(path, what):
        if state.get("format") != _FORMAT:
            raise OpoError(f"its format is {state.get('format')!r}: {_FORMAT!r} is needed")
        return state


def _checked_columns(fields: Fields, episode: int) -> dict[str, Array]:
    """The columns of a state, those of `episode` finished episodes."""
    columns = {}
    for name in COLUMNS:
        if name in INTEGERS:
            columns[name] = fields.positions(name, (episode,), least=0 if name == "context_index" else -1)
        else:
            array = as_real(fields.value(name), fields.place(name))
            fields.check(name, array.shape == (episode,), f"has shape {array.shape}: ({episode},) is needed")
            columns[name] = array
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
    save: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    diagnostics: bool = False,
) -> SimulationResult:
    """Run `agent` for `episodes` episodes (paper, section 2.2) and record its exact regret.

    Parameters
    ----------
    cmdp : ContextualMDP
        Or an environment without ``mdp`` that has ``reset(context, rng)`` and ``step(action)`` (see `runs.worlds.SampledWorld`):
        values and regret are then NaN, and ``result.exact`` is False.
    agent : Agent
        One that has observed n episodes goes on at episode n of every stream: 100 episodes and 100 more, joined by
        ``first + second``, are the 200 of an unbroken run.
    episodes : int
        T, at least 1: the episodes of this call; with `resume` those of the whole run.
    seed : int
        Keys the streams of contexts, actions, transitions and losses. The same seed gives the same bits, and two agents
        with the same seed see the same contexts and uniforms. No global random state is touched.
    progress : bool, optional
        A bar. Default: on a terminal and in a notebook, once the run has taken two seconds.
    backend : {"numba", "numpy"}
        Of the true values and the rollouts; the agent has its own.
    log : bool
        Keep all trajectories, with the probabilities of the actions: ``result.log`` is then a `TrajectoryLog`.
    save : path, optional
        Save the run there every half minute, at its end and at Ctrl-C, for `resume` or `Simulation.load`.
    resume : path or mapping, optional
        What `save` wrote, or what `Simulation.state` gave: the run goes on there, to the same bits as one that was not
        interrupted. The agent must be built with the same arguments; what it has learned is replaced.
    diagnostics : bool
        Split the regret of each episode into the terms of the paper's proof once the run is at its end: ``result.terms`` is then what
        `opo_fast.analysis.regret_decomposition` gives, and None after Ctrl-C. Nothing else changes.

    Returns
    -------
    SimulationResult
        After Ctrl-C: of the episodes that were finished, with ``interrupted`` set. The current episode, or block of at most 64
        episodes, is finished and saved first, so that the agent stays usable. A second Ctrl-C, a second or more after the first,
        stops in the middle of an episode (but never while a file is written) and warns about what was not saved.

    Raises
    ------
    OpoError
        The agent or the environment does not fit; an error of either names the episode.
    """
    if log and (save is not None or resume is not None):
        raise OpoError("log is True: a run that keeps its trajectories can be neither saved on the way nor resumed")
    if as_bool(diagnostics, "diagnostics"):
        check_terms(cmdp, agent)
    run = Simulation(cmdp, agent, episodes, seed, backend=backend, log=log)
    if resume is not None:
        run.restore(dict(resume) if isinstance(resume, Mapping) else read_run(resume))
    result = play_out(run, progress=progress, save=save)
    if diagnostics and not result.interrupted:
        result.terms = regret_decomposition(cmdp, agent, result, progress=progress)
    return result


def play_out(run: Simulation, *, progress: bool | None = None, save: str | os.PathLike[str] | None = None) -> SimulationResult:
    """Play the episodes that a run has left; see `simulate`."""
    saver = Saver(run, save)
    together = lockstep([run]) if run.episodes - run.episode >= WORTH_BLOCKS else None
    # Only the first episode takes long without a sign: kernels are compiled then.
    with bar(run.agent_name, run.episodes, progress) as shown, interrupts() as interrupted:
        try:
            try:
                while run.episode < run.episodes and not interrupted():
                    if together is None:
                        run.step()
                    else:
                        together.step()
                    shown(run.episode, run.regret_so_far)
                    saver.save()
            except Exception as error:
                error.add_note(f"in episode {run.episode + 1} of {run.episodes}")
                raise
            saver.save(now=True)
        except KeyboardInterrupt:
            # In the middle of an episode what was saved before is whole, the agent perhaps not.
            saver.warn_of_loss()
    return run.result(interrupted=run.episode < run.episodes)
