"""The command `opo-fast run`."""

from __future__ import annotations

import os
import pathlib
import shlex
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from .. import __version__, agents
from .._support.checks import as_integer
from .._support.compiling import compiling
from .._support.files import as_folder
from .._support.interrupts import interrupts, shielded
from .._support.text import count, figure, printable, share
from .._support.threads import get_threads, set_threads
from ..errors import OpoError
from ..runs.result import DIAGNOSTICS, ContextSummary, SimulationResult
from ..runs.simulation import Simulation, play_out
from .options import SHOWN, Env, Horizon, Plot, Settings, Threads, cell, command, console, safe, short, show_table
from .session import RUN, Setup, load_run

__all__ = ["advice", "app", "number", "show_result", "values_table"]

app = command()


@app.command()
def run(
    ctx: typer.Context,
    env: Env = "icu-sepsis",
    agent: Annotated[str, typer.Option(help="Agent: " + ", ".join(agents.names()) + ".")] = "opo",
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="Number of episodes T; with --resume, of the whole run.")] = 2000,
    horizon: Horizon = None,
    seed: Annotated[int, typer.Option(help="Random seed. Equal seeds give equal results, and the same contexts to all agents.")] = 0,
    bonus_scale: Annotated[
        float | None,
        typer.Option(help="By hand: factor on the theory's exploration bonuses; 1 is the theory. Default: opo tunes itself."),
    ] = None,
    eta_scale: Annotated[
        float | None, typer.Option(help="By hand: factor on the theory's learning rate. Default: opo tunes itself.")
    ] = None,
    tuning: Annotated[
        Literal["auto", "theory"] | None,
        typer.Option(help="For opo: auto (the default), or theory for Algorithm 1 with the theorem's constants, which keep it uniform."),
    ] = None,
    settings: Settings = None,
    backend: Annotated[
        Literal["numba", "numpy"], typer.Option(help="numpy: the literal algorithm, for checks at small sizes with few episodes.")
    ] = "numba",
    threads: Threads = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder of the run. Default: runs/ENV-AGENT-seedN, with a number added if it exists."),
    ] = None,
    resume: Annotated[
        pathlib.Path | None, typer.Option(metavar="FOLDER", help="Resume an interrupted run, or make a run longer with -T.")
    ] = None,
    plot: Plot = True,
) -> None:
    """Let an agent learn in an environment, and show how well it did.

    Without arguments: OPO-CMDP on ICU-Sepsis, a decision model of sepsis treatment estimated from real patients, in about
    half a minute on 2 cores; the first run also compiles the kernels, which takes one to three minutes. Values are expected
    sums of losses over an episode (lower is better), exact on the true model; the regret compares with the optimal policy of
    each context. After Ctrl-C, --resume continues the run and gives the same bits as an uninterrupted one. `opo-fast policy`
    shows what was learned.

    opo tunes itself: its bonus comes from the models that the data leave plausible, its learning rate is AdaHedge's. With
    --bonus-scale or --eta-scale it uses the theory's parameters times these factors; the lines below the table say whether they
    are too large or too small. `opo-fast agents` lists the settings of the other agents.
    """
    set_threads(None if threads is None else as_integer(threads, "threads", least=1))
    as_integer(seed, "seed", least=0, most=None)
    as_integer(episodes, "episodes", least=1)
    if resume is not None:
        _resume(ctx, resume, plot)
        return
    given = {"bonus_scale": bonus_scale, "eta_scale": eta_scale, "tuning": tuning}
    setup = Setup(env, agent, episodes, seed, horizon, settings or [], given, backend)
    cmdp, learner, used = setup.build()
    simulation = Simulation(cmdp, learner, episodes, seed, backend=backend)
    folder, is_new = _folder(out, f"{short(env)}-{agent}-seed{seed}")
    try:
        _play(setup, simulation, used, folder, plot)
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


FREE = ("ctx", "env", "episodes", "threads", "resume", "plot")
"""Arguments that are allowed with --resume; everything else is taken from the run."""


def _resume(ctx: typer.Context, folder: pathlib.Path, plot: bool) -> None:
    given = {name: value for name, value in ctx.params.items() if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    for name in given:
        if name not in FREE:
            raise OpoError(f"--{name.replace('_', '-')} is given with --resume: a run keeps the options with which it began; leave it out")
    setup, simulation, used = load_run(folder, env=given.get("env"), episodes=given.get("episodes"))
    if simulation.episode == simulation.episodes:
        raise OpoError(f"--resume: all {simulation.episodes} episodes of this run are finished; make it longer with -T")
    _play(setup, simulation, used, folder if folder.is_dir() else folder.parent, plot)


def _play(setup: Setup, simulation: Simulation, used: dict[str, Any], folder: pathlib.Path, plot: bool) -> None:
    """Play the remaining episodes of a run, and show and save the result."""
    out, cmdp = console(), simulation.cmdp
    listed = getattr(cmdp, "contexts", None)
    contexts = "endless contexts" if listed is None else count(len(listed), "context")
    layout = cmdp.layout
    out.print(
        f"[bold]{safe(setup.agent)}[/bold] on [bold]{safe(setup.environment)}[/bold]: {contexts}, horizon "
        f"{getattr(cmdp, 'steps', layout.horizon)}, {layout.n_states:,} states, {layout.n_actions} actions, {setup.episodes:,} episodes"
        + (f", {simulation.episode:,} of them played" if simulation.episode else "")
        + f", seed {setup.seed}, {count(get_threads(), 'thread')}"
        + "".join(f", {key.replace('_', ' ')} {used[key]:g}" for key in ("bonus_scale", "eta_scale") if key in used)
    )
    simulation.about = {"setup": setup.to_dict()}
    with interrupts():
        try:
            _finish(setup, simulation, used, folder, plot)
        except KeyboardInterrupt:
            if os.path.exists(folder / RUN):
                typer.echo(f"stopped; {printable(folder / RUN)} has what was saved: opo-fast run --resume continues from there", err=True)
            raise typer.Exit(130) from None


def _finish(setup: Setup, simulation: Simulation, used: dict[str, Any], folder: pathlib.Path, plot: bool) -> None:
    """Play the remaining episodes, and show and save the result."""
    out, cmdp = console(), simulation.cmdp
    with compiling() as compiled:
        result = play_out(simulation, save=folder / RUN)
    if not result.episodes:
        typer.echo("interrupted before the first episode was finished: nothing to save", err=True)
        raise typer.Exit(130)
    options = {"agent": setup.agent, "environment": setup.environment, "horizon": setup.horizon, "set": setup.settings}
    found = {"rewards": _rewards(cmdp, result), "candidates": _candidates(simulation), "compile_seconds": sum(compiled)}
    result.settings.update(options, version=__version__, options=used, **found)
    with shielded():
        result.save(folder / "result.npz")
    show_result(out, result)
    written = ["result.npz", RUN, *(["regret.png"] if plot and _drawn(result, folder / "regret.png") else [])]
    typer.echo(f"Written to {printable(folder)}: {', '.join(written)}")
    if result.interrupted:
        typer.echo(f"Resume with: opo-fast run --resume {printable(shlex.quote(str(folder)))}")
        raise typer.Exit(130)


def _rewards(cmdp: Any, result: SimulationResult) -> dict[str, float] | None:
    """The values of the last line of the table in the environment's own reward; None if it has none."""
    if getattr(cmdp, "reward_map", None) is None:
        return None
    total = result.summary()[-1]
    return {name: float(cmdp.reward_value(getattr(total, name))) for name in ("learned", "uniform", "optimum")}


def _candidates(simulation: Simulation) -> list[int | None]:
    """The numbers of candidate losses and dynamics; None where a class is not finite."""
    scores = [getattr(getattr(simulation.agent, f"{kind}_oracle", None), "scores", None) for kind in ("loss", "dynamics")]
    return [None if array is None else int(array.size) for array in scores]


def _drawn(result: SimulationResult, path: pathlib.Path) -> bool:
    """Draw the picture, or say why it cannot be drawn; whether it was drawn."""
    try:
        result.plot(path)
    except OpoError as error:
        typer.echo(f"no picture: {printable(error)}", err=True)
        return False
    return True


def _folder(out: pathlib.Path | None, name: str) -> tuple[pathlib.Path, bool]:
    """A folder without a run in it, and whether it is new."""
    if out is not None:
        if any(os.path.exists(out / file) for file in ("result.npz", RUN, "regret.png")):
            raise OpoError(f"--out is {str(out)!r}, which already holds a result: name another folder, or remove this one")
        is_new = not os.path.isdir(out)
        as_folder(out, "--out")
        return out, is_new
    runs = as_folder("runs", "the folder of runs, for which --out can name another,")
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            return folder, True
        except FileExistsError:
            number += 1


def show_result(out: Console, result: SimulationResult) -> None:
    """Print the table of a run, and its diagnostics."""
    tail = max(1, round(0.1 * result.episodes))
    title = f"Values: means over the last {tail:,} of {result.episodes:,} episodes (sum of losses; lower is better)"
    table = values_table(title, ["context", "episodes", "learned", "uniform", "optimum", "regret", "gap closed"])
    quarters = result.continuous and result.distinct > SHOWN
    *lines, total = result.summary_by_quarter() if quarters else result.summary()
    for line in lines[:SHOWN]:
        table.add_row(*_cells(line))
    if len(lines) > SHOWN:
        table.add_row(f"... {len(lines) - SHOWN} more", *[""] * 6)
    table.add_section()
    table.add_row(*_cells(total), style="bold")
    show_table(out, table)
    compiled = result.settings.get("compile_seconds", 0.0)
    spent = max(0.0, result.settings["seconds"] - compiled)
    first = f"{compiled:.1f} s of compiling, which later runs save, and " if compiled >= 0.05 else ""
    out.print(f"{first}{spent:.1f} s of running: {figure(1e3 * spent / max(1, result.episodes), '.2f')} ms an episode")
    # Self-tuning OPO compares its bonus with the plausible models, so that the bonus alone says nothing.
    tuned = not np.isnan(result.plausible_losses).all() and result.settings["agent"] == "opo"
    if result.episodes and not tuned and not np.isnan(result.saturation).all():
        last = float(np.nanmean(result.saturation[-tail:]))
        out.print(
            f"Bonuses at their cap, where pairs were hardly visited: {share(result.saturation[0])} in the first episode, "
            f"{share(last)} in the last {tail:,}"
        )
    if result.episodes:
        _show_diagnostics(out, result, tail)
    rewards = result.settings.get("rewards")
    if rewards:
        out.print(f"In the environment's own reward: {', '.join(f'{safe(name)} {number(value)}' for name, value in rewards.items())}")
    if result.interrupted:
        planned = result.settings["planned_episodes"]
        out.print(f"Interrupted: {result.episodes:,} of {planned:,} episodes were played", style="yellow")


def _show_diagnostics(out: Console, result: SimulationResult, tail: int) -> None:
    """Print the diagnostics of the last episodes, and what to do about them."""
    last = {name: late[~np.isnan(late)] for name in DIAGNOSTICS for late in [getattr(result, name)[-tail:]]}
    means = {name: float(late.mean()) for name, late in last.items() if late.size}
    if "plausible_losses" in means:
        counted = zip(("losses", "dynamics"), result.settings.get("candidates") or (None, None), strict=True)
        left = [_of(last[f"plausible_{kind}"][-1], kind, n) for kind, n in counted if last[f"plausible_{kind}"].size]
        if left:
            out.print(f"Still plausible at the end: {' and '.join(left)}")
    if "hedge_bound" in means:
        bound = figure(float(last["hedge_bound"].max()), ".4g")
        out.print(f"Bound on the regret of the policy steps at a context (term (iii) of the paper's proof): {bound}")
    if "truncated" in means and "plausible_losses" not in means:
        out.print(
            f"Estimates truncated at 0: {share(means['truncated'])} of the pairs, {share(means['truncated_played'])} of those played; "
            f"bonuses above the greatest loss-to-go: {share(means['vacuous_bonuses'])}"
        )
    word = advice(result, tail)
    if word:
        out.print(word, style="yellow")


def _of(plausible: float, kind: str, candidates: int | None) -> str:
    """How many candidates are plausible, such as "1 of 10 losses"."""
    return f"{figure(plausible, '.4g')} {kind}" if candidates is None else f"{figure(plausible, '.4g')} of {candidates:,} {kind}"


def advice(result: SimulationResult, tail: int) -> str:
    """What to change, from the diagnostics of the last `tail` episodes; empty if the gap is closed or nothing is known."""
    if result.episodes < 20 or not result.gap_closed(slice(-tail, None)) < 0.5:
        return ""

    def last(name: str) -> float:
        late = getattr(result, name)[-tail:]
        late = late[~np.isnan(late)]
        return float(late.mean()) if late.size else float("nan")

    if last("plausible_losses") >= 0 or last("plausible_dynamics") >= 0:
        return "Candidates with different optimal policies are still plausible, or the truth is outside the classes: play more episodes"
    if last("truncated") > 0.3 or last("truncated_played") > 0.3:
        return "Bonuses truncate estimates at 0, so actions look alike: decrease --bonus-scale, or leave it out (opo then tunes itself)"
    if last("truncated") <= 0.3:
        return "Bonuses are small and the policy is far from the optimum: increase --bonus-scale, or leave it out (opo then tunes itself)"
    return ""


def values_table(title: str, columns: list[str]) -> Table:
    """A table of values by context."""
    table = Table(title=title, title_justify="left", title_style="")
    for column in columns:
        first = column == "context"
        table.add_column(column, justify="left" if first else "right", no_wrap=not first, min_width=12 if first else None)
    return table


def _cells(line: ContextSummary) -> list[Any]:
    values = map(number, (line.learned, line.uniform, line.optimum, line.regret))
    return [cell(line.label), f"{line.episodes:,}", *values, share(line.gap_closed)]


def number(value: float) -> str:
    """A value or a regret in a table."""
    return figure(value, ".4f" if abs(value) < 100 else ".1f")
