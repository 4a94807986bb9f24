"""Common parts of several commands: their options, and how they print."""

from __future__ import annotations

import ast
import os
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .. import envs
from .._support.checks import having
from .._support.modules import load
from .._support.text import printable
from ..errors import OpoError

__all__ = [
    "SHOWN",
    "Env",
    "Horizon",
    "Plot",
    "Settings",
    "Threads",
    "can_draw",
    "command",
    "cell",
    "console",
    "environment",
    "environment_options",
    "of_the_user",
    "short",
    "safe",
    "show_table",
    "value_of",
]

SHOWN = 12
"""Number of contexts that a table shows."""

Env = Annotated[
    str,
    typer.Argument(metavar="ENV", help="Environment; `opo-fast envs` lists them. Or the path of a model, or your own module:function."),
]
Horizon = Annotated[int | None, typer.Option(help="Number of steps of an episode. Default: the environment's own.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another option of the environment, such as loss=death; may be repeated."),
]
Threads = Annotated[int | None, typer.Option(help="Number of threads; never changes a result. Default: all processors.")]
Plot = Annotated[bool, typer.Option("--plot/--no-plot", help="Draw the regret curves (needs matplotlib, extra 'plot').")]


def command() -> typer.Typer:
    """The typer app of a single command."""
    return typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def console() -> Console:
    """Standard output, without colours for numbers and paths."""
    return Console(highlight=False)


def safe(text: Any) -> str:
    """A name from a file or a user for a line with markup, without markup or terminal control characters of its own."""
    return escape(printable(text))


def cell(text: Any) -> Text:
    """A name from a file or a user for a table."""
    return Text(printable(text))


def show_table(console: Console, table: Table) -> None:
    """Print a table; if the terminal is too narrow for its columns, print each row as lines of name and value."""
    widest = console.measure(table, options=console.options.update(max_width=10_000)).minimum
    if widest <= console.width or not table.columns:
        console.print(table)
        return
    if table.title:
        console.print(table.title)
    names = [str(column.header).replace("\n", " ") for column in table.columns]
    for values in zip(*(list(column.cells) for column in table.columns), strict=True):
        console.print(values[0])
        for name, value in zip(names[1:], values[1:], strict=True):
            if str(value):
                console.print(Text(f"  {name} "), value, sep="")


def can_draw() -> bool:
    """Whether matplotlib is installed; if not, say that there is no picture."""
    from ..runs.plots import missing_matplotlib

    missing = missing_matplotlib()
    if missing:
        typer.echo(f"no picture: {missing}", err=True)
    return not missing


def environment_options(horizon: int | None, settings: Sequence[str] | None) -> dict[str, Any]:
    """The options for `envs.make`."""
    options: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise OpoError(f"--set is {setting!r}: KEY=VALUE is needed, as in --set loss=death")
        options[key.replace("-", "_")] = value_of(text)
    return options


def value_of(text: str) -> Any:
    """A number, a list or another literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def of_the_user(name: str) -> bool:
    """Whether an environment is the user's own function, ``module:function``, instead of a name or a file."""
    return ":" in name and not os.path.isfile(name)


def environment(name: str, horizon: int | None = None, settings: Sequence[str] | None = None) -> Any:
    """The environment given by a name, a file or a function ``module:function``; modules in the working directory come first."""
    options = environment_options(horizon, settings)
    if not of_the_user(name):
        return envs.make(name, **options)
    function = load(name, os.getcwd())
    try:
        made = function(**options)
    except TypeError as error:
        raise OpoError(f"{name} cannot be called with {options or 'nothing'}: {error}") from error
    having(made, name, ("layout", "sample_context"), "a ContextualMDP, or an environment of samples,")
    return made


def short(name: str) -> str:
    """The name of an environment for the name of a folder."""
    return name.replace(":", "-") if of_the_user(name) else pathlib.Path(name).stem
