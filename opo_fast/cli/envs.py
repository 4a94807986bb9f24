"""The command `opo-fast envs`."""

from __future__ import annotations

from rich.table import Table

from .. import envs
from .options import cell, command, console, show_table

__all__ = ["app"]

app = command()


@app.command()
def list_envs() -> None:
    """List the environments."""
    table = Table("environment", "what it is", box=None, pad_edge=False)
    for name in envs.names():
        table.add_row(name, cell(envs.about(name)))
    show_table(console(), table)
