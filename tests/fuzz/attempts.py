"""One attempt for each seed: a valid input is mutated in one or two places and used, and the outcome is judged.

An outcome is good if the input is refused with an `OpoError` (the command line: with one line and an exit code), or if it is accepted and
works: policies are distributions, and numbers agree with the reference. Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import worlds
from mutate import mutated, mutated_bytes, mutated_text, pick

import opo_fast as of

Attempt = Callable[[np.random.Generator], str]


class Finding(AssertionError):
    """A wrong answer, or an error of the wrong kind."""


def twice(rng: np.random.Generator, value: Any) -> Any:
    """A value mutated in one place, sometimes in two."""
    changed = mutated(rng, value)
    return mutated(rng, changed) if rng.random() < 0.25 else changed


def check_policy(layout: of.Layout, mask: Any, policy: Any) -> None:
    policy = np.asarray(policy)
    if policy.shape != layout.shape or not (np.isfinite(policy).all() and (policy >= 0).all()):
        raise Finding(f"no policy came out: {policy!r}")
    if not np.allclose(policy.sum(axis=1), 1, atol=1e-6) or (mask is not None and policy[~mask].any()):
        raise Finding(f"no policy came out: rows sum to {policy.sum(axis=1)!r}")


def restored_state(rng: np.random.Generator) -> str:
    """Restore a mutated state into a new agent, which then goes on."""
    name = pick(rng, worlds.AGENTS)
    env, agent = worlds.trained(name)
    state = twice(rng, agent.state())
    _, fresh = worlds.make_agent(name)
    before = str(fresh.state())
    try:
        fresh.restore(state)
    except of.OpoError:
        if str(fresh.state()) != before:
            raise Finding(f"{name}: a refused state changed the agent") from None
        return "refused"
    used_after(name, lambda: go_on(env, fresh))
    return "accepted"


def used_after(name: str, use: Callable[[], Any]) -> None:
    """Turn errors after a state was accepted into findings, since they no longer say what is wrong with the state."""
    try:
        use()
    except of.OpoError as error:
        raise Finding(f"{name}: accepted, and then refused: {error}") from None


def go_on(env: Any, agent: Any, episodes: int = 2) -> None:
    """Play on with an agent whose state was accepted."""
    for context in env.contexts:
        check_policy(env.layout, env.action_mask, agent.policy(context))
    of.simulate(env, agent, episodes, seed=4)
    agent.state()


def restored_run(rng: np.random.Generator) -> str:
    """Restore a mutated state of a run, chains included, into a new run, which then goes on."""
    name = pick(rng, ["opo", "rm-ucdd", "e-uc3rl", "opo single", "opo tabular", "opo doubling", "lolipop"])
    env, state = worlds.run_state(name)
    state = dict(state)
    key = pick(rng, [key for key in ("chains", "chains", "columns", "episode", "seconds", "agent", "seed") if key in state])
    state[key] = twice(rng, state[key])
    if key == "chains" and rng.random() < 0.7:
        state[key] = worlds.run_state(name)[1][key]
        i = int(rng.integers(len(state[key]["chains"])))
        chains = list(state[key]["chains"])
        chains[i] = twice(rng, chains[i])
        state[key] = {**state[key], "chains": chains}
    _, agent = worlds.make_agent(name)
    run = of.runs.simulation.Simulation(env, agent, 40, 3)
    before = str(run.state())
    try:
        run.restore(state)
    except of.OpoError:
        if str(run.state()) != before:
            raise Finding(f"{name}: a refused state changed the run") from None
        return "refused"
    used_after(name, lambda: (go_on(env, agent), run.step(), run.result()))
    return "accepted"


# -- public calls ----------------------------------------------------------------------------------------------------------

SAME = {"occupancy", "evaluate", "solve", "exponential_weights", "policy_chain"}
"""Calls with a twin in plain NumPy."""


@functools.cache
def public_calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from public_calls import CALLS

    # Without calls that change the number of threads.
    calls = {name: (call, dict(arguments)) for name, (call, arguments) in CALLS.items() if name != "set_threads"}
    if "frozen_lake" in calls:
        # Gymnasium takes half a minute for a lake of 255 x 255 fields.
        del calls["frozen_lake"][1]["size"]
    return calls


def called(rng: np.random.Generator) -> str:
    """Call a public function with one or two mutated arguments."""
    calls = public_calls()
    name = pick(rng, list(calls))
    function, arguments = calls[name]
    given = dict(arguments)
    for _ in range(1 if rng.random() < 0.7 else 2):
        if given:
            argument = pick(rng, list(given))
            given[argument] = mutated(rng, given[argument])
    try:
        answer = function(**given)
    except of.OpoError:
        return "refused"
    if name in SAME:
        twin = function(**{**given, "backend": "numpy"})
        for one, other in zip(np.atleast_1d(answer) if isinstance(answer, np.ndarray) else answer, twin, strict=True):
            if not np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True):
                raise Finding(f"{name}: {one!r} where the reference has {other!r}")
    return "accepted"


CALLS: list[Attempt] = [called]

# -- files -----------------------------------------------------------------------------------------------------------------

TRA = "3 4 6\n0 0 1 0.5 go\n0 0 2 0.5 go\n0 1 2 1 stay\n1 0 0 1\n2 0 1 0.25\n2 0 2 0.75\n"
LAB = '0="init" 1="goal"\n0: 0\n2: 1\n'
STA = "(x,y)\n0:(0,true)\n1:(-1,false)\n2:(2,true)\n"
SREW = "3 2\n0 1.5\n2 -1\n"
TREW = "3 4 2\n0 0 1 3\n2 0 2 0.5\n"


@functools.cache
def valid_files() -> dict[str, tuple[bytes, Callable[[pathlib.Path], Any]]]:
    """For each kind of file its content, and a function that reads it and uses the result."""
    env = worlds.finite()
    folder = pathlib.Path(tempfile.mkdtemp())
    _, agent = worlds.trained("opo")
    _, tabular = worlds.trained("tabular-opo")
    mdp = env.mdp(0)
    sparse = of.LayeredMDP(mdp.layout, mdp.losses, [of.model.sparse.as_csr(x, "x") for x in _csr(mdp)])
    table = of.envs.TabularMDP(np.full((2, 2, 2), 0.5), np.array([[0.0, 1.0], [0.5, 0.5]]))
    result = of.simulate(env, worlds.make_agent("opo")[1], 4)
    things = {"agent": agent, "tabular": tabular, "model": mdp, "sparse": sparse, "table": table, "result": result, "log": worlds.log()}
    for name, thing in things.items():
        thing.save(folder / f"{name}.npz")
    worlds.log().save(folder / "log.parquet")
    of.simulate(*worlds.make_agent("opo"), 6, save=folder / "run.npz")

    def fresh(name: str) -> Callable[[pathlib.Path], Any]:
        def read(path: pathlib.Path) -> None:
            world, empty = worlds.make_agent(name)
            go_on(world, empty.load(path))

        return read

    def resumed(path: pathlib.Path) -> None:
        run = of.Simulation.load(path, *worlds.make_agent("opo"), 8)
        while run.episode < 8:
            run.step()
        run.result().summary()

    readers: dict[str, Callable[[pathlib.Path], Any]] = {
        "agent.npz": fresh("opo"),
        "tabular.npz": fresh("tabular-opo"),
        "model.npz": lambda path: of.solve(of.envs.from_file(path).mdp(0)),
        "sparse.npz": lambda path: of.solve(of.LayeredMDP.load(path)),
        "table.npz": lambda path: of.solve(of.envs.from_file(path, 3).mdp(0)),
        "result.npz": lambda path: of.SimulationResult.load(path).summary(),
        "run.npz": resumed,
        "log.npz": lambda path: list(of.oracles.TrajectoryLog.load(path)),
        "log.parquet": lambda path: list(of.oracles.TrajectoryLog.load(path)),
    }
    return {name: ((folder / name).read_bytes(), reader) for name, reader in readers.items()}


def _csr(mdp: of.LayeredMDP) -> list[Any]:
    import scipy.sparse as sp

    return [sp.csr_array(x.reshape(-1, x.shape[-1])) for x in mdp.transitions.arrays()]


def read_file(rng: np.random.Generator) -> str:
    """Read a file with wrong bytes, or an archive with changed members and without checksums."""
    name = pick(rng, list(valid_files()))
    content, reader = valid_files()[name]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_bytes(content)
        if name.endswith("npz") and rng.random() < 0.7:
            with np.load(path) as file:
                # As an older version wrote it: checksums would find every change.
                members = {key: file[key] for key in file.files if key != "checksums"}
            key = pick(rng, list(members))
            changed = mutated_text(rng, str(members[key])) if key == "meta" else mutated(rng, members[key])
            with contextlib.suppress(ValueError, TypeError, NotImplementedError):
                array = np.asarray(changed)
                np.savez(path, **{**members, key: array.astype("U9") if array.dtype.hasobject else array})
        else:
            path.write_bytes(mutated_bytes(rng, content))
        try:
            reader(path)
        except of.OpoError:
            return "refused"
    return "accepted"


def read_model_text(rng: np.random.Generator) -> str:
    """Read PRISM files with wrong words or lines."""
    texts = {"m.tra": TRA, "m.lab": LAB, "m.sta": STA, "m.srew": SREW, "m.trew": TREW}
    for _ in range(int(rng.integers(1, 3))):
        name = pick(rng, list(texts))
        texts[name] = mutated_text(rng, texts[name])
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (pathlib.Path(folder) / name).write_bytes(text.encode("latin-1", "replace"))
        try:
            env = of.envs.from_file(pathlib.Path(folder) / "m.tra", horizon=3)
        except of.OpoError:
            return "refused"
        of.solve(env.mdp(0))
    return "accepted"


FILES: list[Attempt] = [read_file, read_model_text]

# -- command lines ---------------------------------------------------------------------------------------------------------

LINES = [
    "run random-finite --agent opo -T 5 --seed 1 --horizon 3 --set n_states=3 --set n_contexts=2 --no-plot",
    "run combination-lock --agent uniform -T 3 --set horizon=3 --backend numpy --no-plot",
    "run m.tra --agent greedy -T 3 --horizon 3 --no-plot",
    "describe random-linear --horizon 3 --set dimension=2 --set n_contexts=2",
    "describe m.tra --horizon 4",
    "theory --horizon 4 --states 9 --actions 3 -T 100 --losses 5 --dynamics 6 --delta 0.1",
    "theory combination-lock -T 50 --bonus-scale 0.1",
    "compare random-finite --agents opo,uniform -T 4 --seeds 2 --set n_contexts=2",
    "run --resume r -T 9 --no-plot", "policy r --context 0 --csv p.csv", "envs random-finite",
    "compare combination-lock --agents tabular-opo:bonus_scale=0.1:eta_scale=2 -T 2 --seeds 1 --no-plot",
    "agents", "envs", "--version", "show result.npz", "study run study.toml", "study show none",
]  # fmt: skip


def command(rng: np.random.Generator) -> str:
    """Run a command line with wrong words; the program must end with an exit code and without a traceback."""
    from typer.testing import CliRunner

    from opo_fast.cli.commands import app

    words = pick(rng, LINES).split(" ")
    for _ in range(int(rng.integers(0, 3))):
        place, how = int(rng.integers(len(words))), rng.random()
        if how < 0.25:
            del words[place]
        elif how < 0.45:
            words.insert(place, pick(rng, pick(rng, LINES).split(" ")))
        else:
            head, equals, value = words[place].partition("=")
            words[place] = head + equals + mutated_text(rng, value) if equals else mutated_text(rng, words[place])
        if not words:
            break
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pathlib.Path("m.tra").write_text(TRA)
        result = CliRunner().invoke(app, [word.replace("\x00", "0") for word in words], env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, (SystemExit, of.OpoError)):
        raise Finding(f"{words}: {type(result.exception).__name__}: {result.exception}") from result.exception
    if result.exit_code not in (0, 1, 2):
        raise Finding(f"{words}: status {result.exit_code}")
    return "accepted" if result.exit_code == 0 else "refused"


COMMANDS: list[Attempt] = [command]


def attempt(kind: Attempt, seed: int) -> str:
    """Make one attempt without warnings; an undocumented error becomes a finding."""
    rng = np.random.default_rng([seed, sum(kind.__name__.encode())])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return kind(rng)
        except Finding:
            raise
        except of.OpoError as error:
            return f"refused later: {error}"
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error


STATES: list[Attempt] = [restored_state, restored_run]
ALL = [*CALLS, *FILES, *COMMANDS, *STATES]
