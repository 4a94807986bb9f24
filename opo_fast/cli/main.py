"""The command line: `opo-fast run`, `show`, `envs`, `describe`, `theory`, and the commands of other modules."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import math
import pathlib
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from .. import __version__, agents, envs
from .._support.checks import MANY, whole
from .._support.files import as_folder
from .._support.threads import get_threads, set_threads
from ..analysis.theory import parameters, regret_bound
from ..errors import OpoError
from ..model.layout import Layout
from ..runs.result import SimulationResult
from ..runs.simulation import simulate

__all__ = ["app", "main"]

LATER = {"compare": "opo_fast.cli.compare", "study": "opo_fast.cli.study"}
"""Commands that live in modules of their own, which are imported when the command (or the list of commands) is asked for.
Such a module has a `typer.Typer` named ``app``; with a single command in it, that command is the whole."""
SHOWN = 12
"""Contexts that a table shows."""


class _Group(TyperGroup):
    """Finds the commands of `LATER`, and ends every refusal of the package as one line and exit code 2.

    Warnings are a line too, each once.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in LATER if _is_there(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LATER or not _is_there(cmd_name):
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(LATER[cmd_name]).app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            if "valid integer" in error.message:
                error.message = "a whole number, such as 1000, is needed"
            raise
        except OpoError as error:
            message = " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
        except MemoryError as error:
            message = f"out of memory: {error}"
        except BrokenPipeError:
            raise
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        typer.echo("opo-fast: " + " ".join(message.split()), err=True)
        raise typer.Exit(2)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    shown = set()

    def show(message: Warning | str, *rest: Any, **options: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            typer.echo("opo-fast: warning: " + " ".join(str(message).split()), err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(LATER[name]) is not None
    except ModuleNotFoundError:
        return False


app = typer.Typer(
    name="opo-fast",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of `opo-fast`."""
    app()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opo-fast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")] = False,
) -> None:
    """OPO-CMDP and its competitors on contextual Markov decision processes. Start with: opo-fast run"""


def _practical(key: str) -> str:
    return f"Default: the practical setting ({agents.practical('opo')[key]:g} for opo on most environments)."


Env = Annotated[str, typer.Argument(metavar="ENV", help="Environment; `opo-fast envs` lists them.")]
Horizon = Annotated[int | None, typer.Option(help="Steps of an episode. Default: the environment's own.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another option of the environment, e.g. loss=death; may be repeated."),
]
Delta = Annotated[float, typer.Option(help="Failure probability of the theory's parameters, between 0 and 1.")]
Plot = Annotated[bool, typer.Option("--plot/--no-plot", help="Draw the regret curve (needs matplotlib, extra 'plot').")]


@app.command()
def run(
    env: Env = "icu-sepsis",
    agent: Annotated[str, typer.Option(help="Learner: " + ", ".join(agents.names()) + ".")] = "opo",
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="Number of episodes T.")] = 2000,
    horizon: Horizon = None,
    seed: Annotated[int, typer.Option(help="Same seed, same result to the last bit; agents with one seed see the same contexts.")] = 0,
    bonus_scale: Annotated[
        float | None,
        typer.Option(help=f"Factor on the theory's exploration bonuses; 1 is the theory. See above. {_practical('bonus_scale')}"),
    ] = None,
    eta_scale: Annotated[float | None, typer.Option(help=f"Factor on the theory's learning rate. {_practical('eta_scale')}")] = None,
    settings: Settings = None,
    backend: Annotated[
        Literal["numba", "numpy"], typer.Option(help="numpy: the literal algorithm, for checks at small sizes and few episodes.")
    ] = "numba",
    threads: Annotated[int | None, typer.Option(help="Threads; never changes a result. Default: all processors.")] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder for result.npz and regret.png. Default: runs/ENV-AGENT-seedN, numbered where it exists already."),
    ] = None,
    plot: Plot = True,
) -> None:
    """Let an agent learn an environment from its own episodes, and show how well it did.

    Without arguments: OPO-CMDP on ICU-Sepsis, a decision model of sepsis treatment estimated from real patients, in about a
    minute on 2 cores. Values are expected sums of losses over an episode (lower is better), exact on the true model; the
    regret compares with the optimal policy of each context. Ctrl-C keeps what was done.

    **The practical setting.** With the theory's constants every bonus stays at its cap at any practical T, and the
    policy uniform. The defaults of --bonus-scale and --eta-scale learn on ICU-Sepsis and on combination locks;
    environments whose actions differ by less have a smaller --bonus-scale of their own for opo, and `opo-fast agents` lists
    the settings of all agents. Turn --bonus-scale down (by 10, then by 100) where the table shows bonuses at their cap to
    the end, or where actions differ by less than about 0.05, as with --set loss=death; turn it up where learning stops
    early at a poor policy.
    """
    console = Console()
    set_threads(None if threads is None else whole(threads, "threads", least=1))
    whole(seed, "seed", least=0, most=None)
    cmdp = envs.make(env, **_options(horizon, settings))
    entry = agents.registry.info(agent)
    if agent == "opo" and bonus_scale is None and env in envs.names():
        bonus_scale = envs.info(env).bonus_scale
    options: dict[str, Any] = {"bonus_scale": bonus_scale, "eta_scale": eta_scale}
    if "backend" in entry.options:
        options["backend"] = backend
    learner = agents.make(agent, cmdp, episodes=episodes, seed=seed, **options)
    used = {**entry.practical, **{key: value for key, value in options.items() if value is not None and key in entry.options}}
    folder, is_new = _folder(out, f"{pathlib.Path(env).stem}-{agent}-seed{seed}")
    contexts = "endless contexts" if cmdp.contexts is None else _count(len(cmdp.contexts), "context")
    console.print(
        f"[bold]{agent}[/bold] on [bold]{escape(env)}[/bold]: {contexts}, horizon {cmdp.steps}, {cmdp.layout.n_states:,} states, "
        f"{cmdp.layout.n_actions} actions, {episodes:,} episodes, seed {seed}, {_count(get_threads(), 'thread')}"
        + "".join(f", {key.replace('_', ' ')} {used[key]:g}" for key in ("bonus_scale", "eta_scale") if key in used),
        highlight=False,
    )
    try:
        result = simulate(cmdp, learner, episodes, seed, backend=backend)
        result.settings.update(agent=agent, environment=env, version=__version__, horizon=horizon, set=settings or [], options=used)
        if result.episodes:
            result.save(folder / "result.npz")
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    if not result.episodes:
        typer.echo("interrupted before the first episode was finished: nothing to save", err=True)
        raise typer.Exit(130)
    _report(console, result)
    if cmdp.reward_map is not None:
        total = result.summary()[-1]
        rewards = [f"{name} {_number(float(cmdp.reward_value(getattr(total, name))))}" for name in ("learned", "uniform", "optimum")]
        console.print(f"In the environment's own reward: {', '.join(rewards)}", highlight=False)
    written = ["result.npz"]
    if plot:
        try:
            result.plot(folder / "regret.png")
            written.append("regret.png")
        except OpoError as error:
            typer.echo(f"no picture: {error}", err=True)
    typer.echo(f"Written to {folder}: {', '.join(written)}")
    if result.interrupted:
        raise typer.Exit(130)


@app.command()
def show(
    path: Annotated[pathlib.Path, typer.Argument(help="A folder that `opo-fast run` wrote, or its result.npz.")],
    plot: Annotated[pathlib.Path | None, typer.Option(help="Draw the regret curve into this file.")] = None,
) -> None:
    """Show the table of a run again."""
    result = SimulationResult.load(path / "result.npz" if path.is_dir() else path)
    _report(Console(), result)
    if plot is not None:
        result.plot(plot)
        typer.echo(f"Written to {plot}")


@app.command("envs")
def list_envs() -> None:
    """List the environments."""
    table = Table("environment", "what it is", box=None, pad_edge=False)
    for name in envs.names():
        table.add_row(name, escape(envs.about(name)))
    Console().print(table)


@app.command("agents")
def list_agents() -> None:
    """List the agents."""
    table = Table("agent", "what it is", "practical setting", box=None, pad_edge=False)
    for name in agents.names():
        entry = agents.registry.info(name)
        setting = ", ".join(f"{key} {value:g}" for key, value in entry.practical.items())
        table.add_row(name, escape(entry.summary) + (" (one state, H = 1)" if entry.bandit else ""), setting)
    Console().print(table)


@app.command()
def describe(env: Env = "icu-sepsis", horizon: Horizon = None, settings: Settings = None) -> None:
    """Say what an environment is made of: layers, contexts and their values, model classes."""
    console = Console(highlight=False)
    cmdp = envs.make(env, **_options(horizon, settings))
    facts = envs.describe(cmdp, SHOWN)
    console.print(f"[bold]{escape(env)}[/bold]: {escape(envs.about(env))}", soft_wrap=True)
    pairs = f"{facts['allowed_pairs']:,} allowed pairs of state and action"
    console.print(f"{cmdp.layout.horizon} layers, {facts['n_states']:,} states, {facts['n_actions']} actions, {pairs}")
    console.print(f"Transitions ({facts['storage']}): {facts['transitions']:,}; {facts['bytes'] / 1e6:.2f} MB stored")
    columns = ["context", "prob.", "uniform", "optimum", "gap"] + (["reward of\nuniform", "reward of\noptimum"] if cmdp.reward_map else [])
    table = _table("Values V(s_1): expected sum of losses", columns)
    for row in facts["contexts"]:
        numbers = [row["uniform"], row["optimum"], row["uniform"] - row["optimum"]]
        numbers += [row["reward_uniform"], row["reward_optimum"]] if cmdp.reward_map else []
        chance = "-" if row["probability"] is None else f"{row['probability']:.3f}"
        table.add_row(escape(row["label"]), chance, *map(_number, numbers))
    console.print(table)
    if facts["n_contexts"] is None:
        console.print("The contexts are endless; these are some.")
    elif facts["n_contexts"] > SHOWN:
        console.print(f"These are the first {SHOWN} of {facts['n_contexts']:,} contexts.")
    for kind in ("loss", "dynamics"):
        names = facts[f"{kind}_class"]
        listed = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        console.print(f"{kind.capitalize()} class of {_count(len(names), 'candidate')}: {listed}")


@app.command()
def theory(
    env: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="Take all sizes but T from this environment.", show_default=False)
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="H, number of layers. Default: 5, or the environment's own.")] = None,
    states: Annotated[int | None, typer.Option(help="|S|, number of states of all layers. Default: 20.")] = None,
    actions: Annotated[int | None, typer.Option(help="|A|. Default: 4.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="T.")] = 1000,
    losses: Annotated[
        float | None, typer.Option(help="|F|, size of the loss class (of a cover, if it is not finite). Default: 10.")
    ] = None,
    dynamics: Annotated[float | None, typer.Option(help="|P|, size of the dynamics class. Default: 10.")] = None,
    delta: Delta = 0.05,
    bonus_scale: Annotated[float, typer.Option(help="Factor on both betas.")] = 1.0,
    eta_scale: Annotated[float, typer.Option(help="Factor on eta.")] = 1.0,
    settings: Settings = None,
) -> None:
    """Show the parameters of Algorithm 1 and the regret bound of the main theorem for given sizes."""
    console = Console(highlight=False)
    given = {"states": states, "actions": actions, "losses": losses, "dynamics": dynamics}
    if env is not None:
        twice = [f"--{name}" for name, value in given.items() if value is not None]
        if twice:
            raise OpoError(f"{twice[0]} is given beside the environment {env!r}, which has its own: one of the two is needed")
        cmdp = envs.make(env, **_options(horizon, settings))
        layout, n_losses, n_dynamics = cmdp.layout, cmdp.loss_class.size, cmdp.dynamics_class.size
    else:
        if settings:
            raise OpoError(f"--set is {settings[0]!r}, which is an option of an environment: name one, or leave it out")
        defaults = {"states": 20, "actions": 4, "losses": 10.0, "dynamics": 10.0}
        size = {name: defaults[name] if value is None else value for name, value in given.items()}
        layout = _layers(whole(5 if horizon is None else horizon, "horizon", least=1, most=MANY), int(size["states"]), int(size["actions"]))
        n_losses, n_dynamics = size["losses"], size["dynamics"]
    sizes: dict[str, float] = {"loss_class_size": n_losses, "dynamics_class_size": n_dynamics, "delta": delta}
    used = parameters(layout, episodes, **sizes, bonus_scale=bonus_scale, eta_scale=eta_scale)
    bound, trivial = regret_bound(layout, episodes, **sizes), layout.horizon * episodes
    shape = f"H = {layout.horizon}, |S| = {layout.n_states:,}, |A| = {layout.n_actions}"
    console.print(f"{shape}, T = {episodes:,}, |F| = {n_losses:g}, |P| = {n_dynamics:g}, delta = {delta:g}")
    table = Table("", "", "", box=None, show_header=False, pad_edge=False)
    table.add_row("eta", f"{used.eta:.6g}", "learning rate")
    table.add_row("beta_loss", f"{used.beta_loss:.6g}", _leaves(used.beta_loss, episodes))
    table.add_row("beta_dynamics", f"{used.beta_dynamics:.6g}", _leaves(used.beta_dynamics, episodes))
    table.add_row("bound", f"{bound:.6g}", f"on the regret, with probability {1 - delta:g}, at scales of 1")
    table.add_row("H T", f"{trivial:.6g}", "what no policy can exceed")
    console.print(table)
    if max(used.beta_loss, used.beta_dynamics) / 2 >= episodes:
        console.print("A bonus stays at its cap throughout, so Q is 0 everywhere and the policy stays uniform: see --bonus-scale.")
    if bound >= trivial:
        start = _telling(layout, sizes)
        console.print(f"The bound is vacuous: it exceeds H T. It falls below H T from about T = {start:.1e} on.")
    else:
        console.print(f"The bound is {bound / trivial:.3g} times H T.")


def _leaves(beta: float, episodes: int) -> str:
    """When the bonus min{1, (beta/2) / (1+N)} leaves its cap."""
    if beta <= 2:
        return "its bonus is never at its cap"
    within = "never within T episodes" if beta / 2 >= episodes else "at the earliest after as many episodes"
    return f"its bonus leaves its cap at {beta / 2 - 1:,.4g} visits: {within}"


def _telling(layout: Layout, sizes: dict[str, float]) -> float:
    """The T from which the bound is below H T, by doubling and halving on a logarithmic scale."""
    low, high = 0.0, 200.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        episodes = int(2.0**middle)
        low, high = (low, middle) if regret_bound(layout, episodes, **sizes) < layout.horizon * episodes else (middle, high)
    return float(2.0**high)


def _layers(horizon: int, states: int, actions: int) -> Layout:
    """A layout of these sizes; the theory asks for nothing else of it."""
    whole(states, "states", least=horizon, most=1 if horizon == 1 else None)
    share, more = divmod(states - 1, max(1, horizon - 1))
    return Layout([1, *(share + (h < more) for h in range(horizon - 1))], actions)


def _options(horizon: int | None, settings: list[str] | None) -> dict[str, Any]:
    """What `envs.make` takes beside the name."""
    options: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise OpoError(f"--set is {setting!r}: KEY=VALUE is needed, as in --set loss=death")
        try:
            value: Any = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        options[key.replace("-", "_")] = value
    return options


def _folder(out: pathlib.Path | None, name: str) -> tuple[pathlib.Path, bool]:
    """A folder for a run that holds none yet, and whether it is new."""
    if out is not None:
        if any((out / file).exists() for file in ("result.npz", "regret.png")):
            raise OpoError(f"--out is {str(out)!r}, which holds a result already: name another folder, or remove it")
        is_new = not out.is_dir()
        as_folder(out, "--out")
        return out, is_new
    runs = pathlib.Path("runs")
    runs.mkdir(exist_ok=True)
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            return folder, True
        except FileExistsError:
            number += 1


def _report(console: Console, result: SimulationResult) -> None:
    tail = max(1, round(0.1 * result.episodes))
    title = f"Values: means over the last {tail:,} of {result.episodes:,} episodes (sum of losses; lower is better)"
    table = _table(title, ["context", "episodes", "learned", "uniform", "optimum", "regret", "gap closed"])
    *lines, total = result.summary()
    for line in lines[:SHOWN]:
        table.add_row(*_cells(line))
    if len(lines) > SHOWN:
        table.add_row(f"... {len(lines) - SHOWN} more", *[""] * 6)
    table.add_section()
    table.add_row(*_cells(total), style="bold")
    console.print(table)
    seconds = result.settings["seconds"]
    console.print(f"{seconds:.1f} s, {1e3 * seconds / result.episodes:.2f} ms an episode", highlight=False)
    if not np.isnan(result.saturation).all():
        last = float(np.nanmean(result.saturation[-tail:]))
        console.print(
            f"Bonuses at their cap: {result.saturation[0]:.0%} in the first episode, {last:.1%} in the last {tail:,}", highlight=False
        )
        if last > 0.5 and result.episodes >= 20:
            console.print("Most bonuses are at their cap, so the policy is close to uniform: turn --bonus-scale down", style="yellow")
    if result.interrupted:
        planned = result.settings["planned_episodes"]
        console.print(f"Interrupted: {result.episodes:,} of {planned:,} episodes were played", style="yellow", highlight=False)


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="")
    for column in columns:
        table.add_column(column, justify="left" if column == "context" else "right", no_wrap=column != "context")
    return table


def _cells(line: Any) -> list[str]:
    share = "-" if math.isnan(line.gap_closed) else f"{line.gap_closed:.1%}"
    return [escape(line.label), f"{line.episodes:,}", *map(_number, (line.learned, line.uniform, line.optimum, line.regret)), share]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value + 0.0:.4f}" if abs(value) < 100 else f"{value:.1f}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
