"""The command `opo-fast compare`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer
from rich.table import Table

from .. import agents as registry
from .. import envs
from .._support.files import as_folder
from .._support.text import figure, interval, printable, share
from .._support.threads import set_threads
from ..errors import OpoError
from ..runs.compare import Comparison, compare
from ..runs.plots import missing_matplotlib
from .options import Env, Horizon, Plot, Settings, Threads, cell, command, console, environment_options, safe, show_table

__all__ = ["app", "table"]

app = command()


@app.command()
def compare_agents(
    env: Env = "random-finite",
    agents: Annotated[
        str | None,
        typer.Option(help=f"Names with commas between: {', '.join(registry.names())}. Default: all that fit the environment."),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="Number of episodes of each run.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on; all agents see the same contexts and uniforms.")] = 5,
    horizon: Horizon = None,
    settings: Settings = None,
    threads: Threads = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="Folder for the runs and regret.png; runs that are there already are not played again. Default: runs/compare-ENV."
        ),
    ] = None,
    plot: Plot = True,
) -> None:
    """Let several agents learn the same environment on common random numbers, and show who lost how much.

    Each agent runs in its practical setting (factors on its theory's constants, which say nothing at practical T).
    Regrets are exact on the true model; brackets are 95 % bootstrap intervals over the seeds. Ctrl-C keeps the finished
    runs; the same command goes on after them.

    **growth T^b**: how the regret grows from a tenth of the run on; 1 is linear. **gap closed**: share of the gap between
    the uniform policy and the optimum, in the last tenth. **at cap**: bonuses at their cap there. **plans**: backward
    inductions of a run. **ms**: the agent's own processor time per episode.
    """
    stream = console()
    set_threads(threads)
    cmdp = envs.make(env, **environment_options(horizon, settings))
    names = registry.names(cmdp.layout) if agents is None else [name.strip() for name in agents.split(",") if name.strip()]
    if agents is None:
        names = [name for name in names if _fits(name, cmdp, episodes)]
    folder = out or pathlib.Path("runs") / f"compare-{pathlib.Path(env).stem}"
    found = compare(cmdp, names, episodes, seeds, folder=as_folder(folder, "--out"))
    if not any(found.results.values()):
        typer.echo("interrupted before the first run was finished", err=True)
        raise typer.Exit(130)
    show_table(stream, table(found, f"{safe(env)}: {episodes:,} episodes, {seeds} seeds"))
    if found.interrupted:
        stream.print("Interrupted: the same command goes on from here", style="yellow")
    if plot:
        missing = missing_matplotlib()
        if missing:
            typer.echo(f"no picture: {missing}", err=True)
        else:
            found.plot(folder / "regret.png")
    stream.print(f"[dim]{safe(folder)}[/dim]")


def _fits(name: str, cmdp: object, episodes: int) -> bool:
    """Whether an agent can be made for an environment (LOLIPOP and tables have limits); says so where not."""
    try:
        registry.make(name, cmdp, episodes=episodes)
    except OpoError as error:
        typer.echo(f"without {name}: {printable(error)}", err=True)
        return False
    return True


def table(found: Comparison, title: str) -> Table:
    """The summary of a comparison as a table."""
    result = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    result.add_column("agent", no_wrap=True)
    for column in ("regret", "growth T^b", "gap closed", "at cap", "plans", "ms"):
        result.add_column(column, justify="right", no_wrap=True)
    for line in found.summary():
        result.add_row(
            cell(line.agent),
            interval(line.regret, ".0f" if line.regret.mean >= 100 else ".1f"),
            figure(line.exponent.mean, ".2f"),
            share(line.gap_closed.mean, ".0%"),
            share(line.saturation, ".0%"),
            figure(line.planning_calls, ",.0f"),
            figure(line.milliseconds.mean, ".2f"),
        )
    return result
