"""The command `opo-fast envs`."""

from __future__ import annotations

import inspect
import re
from typing import Annotated

import typer
from rich.table import Table

from .. import envs
from .._support.text import setting
from .options import cell, command, console, safe, show_table

__all__ = ["app"]

app = command()


@app.command()
def list_envs(name: Annotated[str | None, typer.Argument(help="Show the options of this environment.")] = None) -> None:
    """List the environments, or the options of one; other commands set them by --horizon and --set KEY=VALUE."""
    out = console()
    if name is None:
        table = Table("environment", "what it is", box=None, pad_edge=False)
        for known in envs.names():
            table.add_row(known, cell(envs.about(known)))
        show_table(out, table)
        return
    entry = envs.info(name)
    out.print(f"[bold]{safe(name)}[/bold]: {safe(envs.about(name))}", soft_wrap=True)
    texts = _parameters(inspect.getdoc(entry.factory) or "")
    table = Table("option", "default", "what it is", box=None, pad_edge=False)
    for option, parameter in inspect.signature(entry.factory).parameters.items():
        table.add_row(option, cell(setting(parameter.default)), cell(texts.get(option, "")))
    show_table(out, table)


def _parameters(doc: str) -> dict[str, str]:
    """Type and description of each parameter of a numpydoc docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+$|\Z)", doc, flags=re.DOTALL | re.MULTILINE)
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", section[1].strip() if section else ""):
        head, _, text = block.partition("\n")
        names, _, kind = head.partition(" : ")
        words = " ".join(text.split())
        for name in names.split(", "):
            found[name] = f"{kind}: {words}" if kind and words else kind or words
    return found
