"""The command `opo-fast tune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from .. import agents
from .._support.text import count, figure, interval, setting, share
from .._support.threads import set_threads
from ..errors import OpoError
from ..runs.tune import RANGES, Tuning, tune
from .options import SHOWN, Env, Horizon, Settings, Threads, cell, command, console, environment, safe, show_table, value_of

__all__ = ["app"]

app = command()
_RUN = ("bonus_scale", "eta_scale")
"""Settings that `opo-fast run` has as options."""


@app.command("tune")
def tune_agent(
    env: Env = "random-finite",
    agent: Annotated[str, typer.Option(help="Agent: " + ", ".join(agents.names()) + ".")] = "opo",
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="Number of episodes of each run.")] = 1000,
    trials: Annotated[int, typer.Option(help="Number of settings to try.")] = 30,
    seeds: Annotated[int, typer.Option(help="Number of seeds for the search, from 10000 on; poor settings are dropped early.")] = 8,
    validation: Annotated[int, typer.Option("--validate", help="Number of seeds to evaluate the best setting, from 20000 on.")] = 20,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH", help="A setting to search on a logarithmic scale, or KEY=A,B,C for a few values; may be repeated. "
            f"Default: those of {', '.join(RANGES)} that the agent has."
        ),
    ] = None,
    horizon: Horizon = None,
    settings: Settings = None,
    threads: Threads = None,
) -> None:  # fmt: skip
    """Search for the setting of an agent with the least regret in an environment, and evaluate it on other seeds.

    All settings see the same contexts and random numbers. Each starts with one seed; only the best third continues with three seeds, and
    so on. The last lines compare the best setting with the agent's practical setting on other seeds, so that the comparison is not biased
    by the search.
    """
    set_threads(threads)
    cmdp = environment(env, horizon, settings)
    found = tune(cmdp, agent, episodes, over=_over(over), trials=trials, seeds=seeds, validation=validation)
    _show(env, found, episodes, seeds, validation)
    if found.interrupted:
        raise typer.Exit(130)


def _over(texts: list[str] | None) -> dict[str, Any] | None:
    if not texts:
        return None
    over: dict[str, Any] = {}
    for text in texts:
        key, equals, given = text.partition("=")
        ends = given.split(":")
        values = [value_of(part.strip()) for part in (ends if len(ends) == 2 else given.split(","))]
        if not equals or not key or len(values) < 2:
            raise OpoError(f"--over is {text!r}: KEY=LOW:HIGH or KEY=A,B,C is needed, as in --over bonus_scale=1e-6:1e-2")
        over[key.replace("-", "_")] = tuple(values) if len(ends) == 2 else values
    return over


def _show(env: str, found: Tuning, episodes: int, seeds: int, validation: int) -> None:
    out = console()
    names = list(found.best)
    table = Table(title=f"{safe(found.agent)} on {safe(env)}: the best of {count(len(found.trials), 'setting')}", title_justify="left")
    for name in (*names, "regret", "seeds"):
        table.add_column(name, justify="right")
    for trial in sorted(found.trials, key=lambda trial: (-trial.seeds, trial.regret))[:SHOWN]:
        table.add_row(*(cell(setting(trial.setting[name])) for name in names), figure(trial.regret, ".4g"), str(trial.seeds))
    show_table(out, table)
    for edge in found.edges:
        out.print(f"The best {safe(edge)} is at the edge of the search range: a better one may lie beyond (see --over)", style="yellow")
    out.print(f"On {validation} seeds that the search has not seen, {episodes:,} episodes each:")
    for line in found.validation.summary():
        out.print(f"  {line.agent}: regret {interval(line.regret)}, gap closed at the end {share(line.gap_closed.mean)}", markup=False)
    out.print(f"  best minus default: {interval(found.difference())} (95 % bootstrap over the seeds)", markup=False)
    options = " ".join(f"--{name.replace('_', '-')} {setting(value)}" for name, value in found.best.items() if name in _RUN)
    rest = ":".join([found.agent, *(f"{name}={setting(value)}" for name, value in found.best.items())])
    if set(names) <= set(_RUN):
        out.print(f"opo-fast run {safe(env)} --agent {safe(found.agent)} -T {episodes} {safe(options)}", soft_wrap=True)
    out.print(f"opo-fast compare {safe(env)} -T {episodes} --agents {safe(found.agent)},{safe(rest)}", soft_wrap=True)
