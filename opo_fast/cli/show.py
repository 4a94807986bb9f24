"""The command `opo-fast show`."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated

import typer

from .._support.text import printable, setting
from ..runs.result import SimulationResult
from .options import command, console, safe
from .run import show_result

__all__ = ["app"]

app = command()


@app.command()
def show(
    path: Annotated[pathlib.Path, typer.Argument(help="A folder written by `opo-fast run`, or its result.npz.")],
    plot: Annotated[pathlib.Path | None, typer.Option(help="Draw the regret curve into this file.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Draw it with logarithmic axes.")] = False,
) -> None:
    """Show the table of a finished run again, and how the run was made."""
    result = SimulationResult.load(path / "result.npz" if os.path.isdir(path) else path)
    if plot is not None:
        # First, so that a file that cannot be written is reported alone.
        result.plot(plot, log=log)
    out = console()
    settings = result.settings
    options = {**({} if settings.get("horizon") is None else {"horizon": settings["horizon"]}), **(settings.get("options") or {})}
    words = [
        f"{result.episodes:,} of {settings['planned_episodes']:,} episodes",
        f"seed {settings['seed']}",
        *map(str, settings.get("set") or []),
    ]
    words += [f"{key.replace('_', ' ')} {setting(value)}" for key, value in options.items()]
    if "version" in settings:
        words.append(f"opo_fast {settings['version']}")
    out.print(
        f"[bold]{safe(settings['agent'])}[/bold] on [bold]{safe(settings['environment'])}[/bold]: {safe(', '.join(words))}", soft_wrap=True
    )
    show_result(out, result)
    if plot is not None:
        typer.echo(f"Written to {printable(plot)}")
