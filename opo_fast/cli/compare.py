"""The command `opo-fast compare`."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import agents as registry
from .._support.files import as_folder
from .._support.text import figure, interval, printable, setting, share
from .._support.threads import set_threads
from ..errors import OpoError
from ..runs.compare import Comparison, compare
from .options import Env, Horizon, Plot, Settings, Threads, can_draw, cell, command, console, environment, safe, short, show_table, value_of

__all__ = ["app", "table"]

app = command()


@app.command()
def compare_agents(
    env: Env = "random-finite",
    agents: Annotated[
        str | None,
        typer.Option(
            help=f"Names separated by commas: {', '.join(registry.names())}. Default: all that can be used in the environment. "
            "NAME:KEY=VALUE:KEY=VALUE sets options of one agent, as in opo,opo:bonus_scale=2e-6:eta_scale=50."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="Number of episodes of each run.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on; all agents see the same contexts and random numbers.")] = 5,
    bonus_scale: Annotated[float | None, typer.Option(help="Factor on the theory's bonus, for all agents with a bonus.")] = None,
    eta_scale: Annotated[float | None, typer.Option(help="Factor on the theory's learning rate, for all agents with one.")] = None,
    horizon: Horizon = None,
    settings: Settings = None,
    threads: Threads = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder for the runs and regret.png; runs that are already there are not repeated. Default: runs/compare-ENV."),
    ] = None,
    plot: Plot = True,
    log: Annotated[bool, typer.Option("--log", help="Draw with logarithmic axes.")] = False,
) -> None:
    """Let several agents learn in the same environment on common random numbers, and compare their regret.

    Each agent uses its practical setting (factors on its theory's constants, which are far too large at practical T) unless you give
    another; the settings used are printed.
    Regrets are exact on the true model; brackets are 95 % bootstrap intervals over the seeds. Ctrl-C keeps the finished
    runs, and the same command continues after them.

    **growth T^b**: growth of the regret from a tenth of the run on; 1 is linear. **gap closed**: share of the gap between
    the uniform policy and the optimum that is closed in the last tenth. **at cap**: share of bonuses at their cap there. **plans**:
    number of backward inductions in a run. **ms**: the agent's own processor time per episode.
    """
    stream = console()
    set_threads(threads)
    cmdp = environment(env, horizon, settings)
    given = {"bonus_scale": bonus_scale, "eta_scale": eta_scale}
    chosen = _agents(agents, cmdp, {key: value for key, value in given.items() if value is not None})
    if agents is None:
        chosen = {label: (name, options) for label, (name, options) in chosen.items() if _fits(name, cmdp, episodes, options)}
    folder = out or pathlib.Path("runs") / f"compare-{short(env)}"
    names: dict[str, Any] = {label: name for label, (name, _) in chosen.items()}
    options = {label: own for label, (_, own) in chosen.items()}
    found = compare(cmdp, names, episodes, seeds, options=options, folder=as_folder(folder, "--out"))
    if not any(found.results.values()):
        typer.echo("interrupted before the first run was finished", err=True)
        raise typer.Exit(130)
    show_table(stream, table(found, f"{safe(env)}: {episodes:,} episodes, {seeds} seeds"))
    for label, (name, options) in chosen.items():
        used = ", ".join(f"{key} {setting(value)}" for key, value in {**registry.practical(name), **options}.items())
        stream.print(f"[dim]setting of {safe(label)}: {safe(used or ('self-tuning' if name == 'opo' else 'no settings'))}[/dim]")
    stream.print(
        "[dim]gap closed, at cap: in the last tenth of a run. growth T^b: growth of the regret. plans: backward inductions of a run. "
        "ms: the agent's processor time per episode, compiling included.[/dim]"
    )
    if found.interrupted:
        stream.print("Interrupted: the same command continues from here", style="yellow")
    drawn = plot and can_draw()
    if drawn:
        found.plot(folder / "regret.png", log=log)
    typer.echo(f"Written to {printable(folder)}: the runs{' and regret.png' if drawn else ''}")


def _agents(text: str | None, cmdp: Any, common: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The name and the options of each agent, by label."""
    labels = registry.names(cmdp.layout) if text is None else [label.strip() for label in text.split(",") if label.strip()]
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    for label in labels:
        name, *own = label.split(":")
        known = registry.info(name).options
        options = {key: value for key, value in common.items() if key in known}
        for part in own:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise OpoError(f"--agents has {label!r}: NAME:KEY=VALUE is needed, as in opo:bonus_scale=2e-6")
            options[key.replace("-", "_")] = value_of(value)
        chosen[label] = name, options
    return chosen


def _fits(name: str, cmdp: object, episodes: int, options: dict[str, Any]) -> bool:
    """Whether an agent can be made for an environment (LOLIPOP and tables have size limits); if not, say why."""
    try:
        registry.make(name, cmdp, episodes=episodes, **options)
    except OpoError as error:
        typer.echo(f"without {name}: {printable(error)}", err=True)
        return False
    return True


def table(found: Comparison, title: str) -> Table:
    """The summary of a comparison as a table."""
    result = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    result.add_column("agent", overflow="fold", min_width=12)
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
