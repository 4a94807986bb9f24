"""The command `opo-fast show`."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated

import typer

from .._support.text import printable
from ..runs.result import SimulationResult
from .options import command, console
from .run import show_result

__all__ = ["app"]

app = command()


@app.command()
def show(
    path: Annotated[pathlib.Path, typer.Argument(help="A folder that `opo-fast run` wrote, or its result.npz.")],
    plot: Annotated[pathlib.Path | None, typer.Option(help="Draw the regret curve into this file.")] = None,
) -> None:
    """Show the table of a run again."""
    result = SimulationResult.load(path / "result.npz" if os.path.isdir(path) else path)
    show_result(console(), result)
    if plot is not None:
        result.plot(plot)
        typer.echo(f"Written to {printable(plot)}")
