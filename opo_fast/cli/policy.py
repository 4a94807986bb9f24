"""The command `opo-fast policy`."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from .._support.text import printable
from ..runs.policy_table import policy_table
from .options import command, console
from .session import context_of, load_run

__all__ = ["app"]

app = command()


@app.command()
def policy(
    run: Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="A folder written by `opo-fast run`.")],
    context: Annotated[
        str | None, typer.Option(help="The context: its label, or numbers separated by commas. Not needed if there is only one.")
    ] = None,
    csv: Annotated[
        pathlib.Path | None, typer.Option("--csv", help="Write one row per state and action to this file, with full precision.")
    ] = None,
    plot: Annotated[pathlib.Path | None, typer.Option(help="Draw the probabilities of the actions as a heat map.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also show states that the policy does not reach.")] = False,
    truth: Annotated[bool, typer.Option("--true", help="Occupancy, value and Q of the true model instead of the fitted one.")] = False,
    env: Annotated[str | None, typer.Option(help="The environment again, if it is your own function (module:function).")] = None,
) -> None:
    """Show what a run has learned to do at a context: the most probable action in each state that the policy reaches.

    **reached**: probability that an episode reaches the state. **Q**, **V**: expected sum of losses from here to the end, of the action
    and of the policy, in the fitted model. The file of --csv has all actions, with occupancies and losses.
    """
    _, simulation, _ = load_run(run, env=env)
    chosen = context_of(simulation, context)
    table = policy_table(simulation.agent, chosen, simulation.cmdp, true_model=truth, reached_only=not every)
    console().print(str(table), markup=False, soft_wrap=True)
    if csv is not None:
        table.to_csv(csv)
        typer.echo(f"Written to {printable(csv)}")
    if plot is not None:
        table.plot(plot)
        typer.echo(f"Written to {printable(plot)}")
