"""The command `opo-fast agents`."""

from __future__ import annotations

from rich.table import Table

from .. import agents
from .._support.text import setting
from .options import cell, command, console, show_table

__all__ = ["app"]

app = command()


@app.command()
def list_agents() -> None:
    """List the agents."""
    table = Table("agent", "what it is", "practical setting", box=None, pad_edge=False)
    for name in agents.names():
        entry = agents.registry.info(name)
        practical = ", ".join(f"{key} {setting(value)}" for key, value in entry.practical.items())
        table.add_row(name, cell(entry.summary + (" (one state, H = 1)" if entry.bandit else "")), practical)
    show_table(console(), table)
