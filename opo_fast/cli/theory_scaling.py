"""The command `opo-fast theory scaling`."""

from __future__ import annotations

import ast
import csv
import io
import math
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .. import agents as registry
from .. import envs
from .._support.checks import as_integer, having
from .._support.files import as_folder, writing
from .._support.text import count, interval
from .._support.threads import processors
from ..analysis.bounds import bounds
from ..errors import OpoError
from ..runs.plots import save_figure
from ..study.file import Entry, Study
from ..study.grid import canonical
from ..study.results import Results
from ..study.runner import run_study
from ..study.scaling import Growth, draw_growth, growth_along, growth_over_episodes, power_law, scaling_study
from .options import Settings, can_draw, cell, console, environment_options, safe, show_table

__all__ = ["show_scaling"]

Axis = tuple[str, ...]
BASE = {"horizon": 4, "n_states": 4, "n_actions": 3, "n_contexts": 3, "n_losses": 10, "n_dynamics": 10}
AXES: dict[Axis, list[float]] = {
    ("episodes",): [100, 200, 400, 800],
    ("horizon",): [2, 4, 8, 12],
    ("n_states",): [2, 4, 8, 16],
    ("n_actions",): [2, 3, 6, 10],
    ("n_losses", "n_dynamics"): [5, 10, 20, 40],
    ("gap",): [0.02, 0.05, 0.1, 0.2],
}
"""The default axes, for random-finite."""
OPO = [
    Entry("opo", "opo (self-tuning)"),
    Entry("opo", "opo (by hand)", {"bonus_scale": 2e-6, "eta_scale": 50.0}),
    # Like tuning="theory", but without its warning in every run that the policy is uniform; the command says it once.
    Entry("opo", "opo (theory)", {"bonus_scale": 1.0, "eta_scale": 1.0}),
]
FEW = 5
"""Number of environments per size below which the command says that its intervals are wide."""


def show_scaling(
    env: Annotated[str, typer.Argument(metavar="[ENV]", help="Environment.")] = "random-finite",
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=V1,V2,...",
            help="An option of the environment, or episodes, with its values; options joined by + take the same values. May be "
            "repeated. Default: episodes, sizes, class sizes and gap of random-finite.",
        ),
    ] = None,
    agents: Annotated[str | None, typer.Option(help="Names separated by commas; opo stands for its three settings. Default: all.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="T on all axes except its own.")] = 400,
    models: Annotated[int, typer.Option(help="Number of environments for each size, which differ in their seed.")] = 6,
    settings: Settings = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", help="Number of processes. Default: that of the processors.")] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Folder. Default: runs/scaling-ENV.")] = None,
) -> None:
    """Estimate how the regret grows with the sizes of a problem, and compare it with the theorem's bound on the same values.

    Every axis varies alone around a base case. Each exponent is the slope of the logarithm of the mean regret, with a 95 % bootstrap
    interval over the environments. Ctrl-C keeps what is finished, and the same command continues after it.

    **opo (theory)** plays the uniform policy at any practical T: its bonuses stay at their cap.
    """
    stream = console()
    base, chosen = _base(env, settings), _axes(env, axes)
    replicates = {"seed": list(range(as_integer(models, "models", least=1)))} if "seed" in envs.info(env).options else {}
    if replicates and "seed" in base:
        raise OpoError(
            f"--set gives seed={base['seed']!r}: the environments of each size have their own seeds; set their number by --models"
        )
    folder = as_folder(out or pathlib.Path("runs") / f"scaling-{env}", "--out")
    studies = _studies(env, base, chosen, _entries(agents, env, base), episodes, replicates)
    # Before the runs, because it makes the environment of every value and so finds invalid values.
    theory = {"+".join(axis): _theory(env, base, axis, values, episodes) for axis, values in chosen.items()}
    for t, study in studies.items():
        done = run_study(study, folder / f"T{t}", workers=processors() if workers is None else workers, changed="redo")
        if done.stopped:
            stream.print("Interrupted: the same command continues from here", style="yellow")
            raise typer.Exit(130)
        if done.failed:
            stream.print(f"{done.failed} of {done.planned} runs with {t} episodes failed: opo-fast study status {safe(folder / f'T{t}')}")
    results = {t: Results(folder / f"T{t}") for t in studies}
    growths: list[Growth] = []
    for axis in chosen:
        if axis == ("episodes",):
            growths += growth_over_episodes({int(t): results[int(t)] for t in chosen[axis]}, fixed=base)
        else:
            found = growth_along(results[episodes], axis)
            growths += [growth for growth in found if canonical(dict(growth.fixed)) == canonical(_without(base, axis))]
    show_table(stream, _table(growths, theory, f"{safe(env)}: exponents of the regret"))
    _explain(stream, growths)
    _write(folder / "scaling.csv", growths, theory)
    if can_draw():
        save_figure(draw_growth(growths, theory), folder / "scaling.png")
    stream.print(f"[dim]{safe(folder)}[/dim]")


def _explain(stream: Console, growths: Sequence[Growth]) -> None:
    """Explain the table: where a number is missing or unreliable."""
    if any(math.isnan(growth.exponent.mean) for growth in growths):
        stream.print("-: no exponent, because the mean regret at some value is not above 0")
    fewest = min((growth.exponent.seeds for growth in growths), default=FEW)
    if fewest < FEW:
        made = "gives no interval" if fewest == 1 else "make wide intervals"
        stream.print(f"{count(fewest, 'run')} of each size {made}: more environments (--models) make them narrower")


def _without(base: dict[str, Any], axis: Axis) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key not in axis}


def _axes(env: str, given: list[str] | None) -> dict[Axis, list[float]]:
    """The axes from the command line, or the default ones."""
    if not given:
        if env != "random-finite":
            raise OpoError(f"--axis is needed for {env!r}: --axis NAME=V1,V2,... with one of episodes, {', '.join(envs.info(env).options)}")
        return AXES
    found: dict[Axis, list[float]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        try:
            numbers = [ast.literal_eval(value.strip()) for value in values.split(",")]
        except (ValueError, SyntaxError):
            numbers = []
        if not equals or len(set(numbers)) < 2 or not all(type(number) in (int, float) and number > 0 for number in numbers):
            raise OpoError(f"--axis is {text!r}: NAME=V1,V2,... with at least two different numbers above 0 is needed")
        if len(set(numbers)) < len(numbers):
            raise OpoError(f"--axis is {text!r}, which has a value twice: give each value once")
        axis = tuple(part.strip().replace("-", "_") for part in name.split("+"))
        unknown = [part for part in axis if part not in (*envs.info(env).options, "episodes")]
        if unknown or ("episodes" in axis and len(axis) > 1):
            raise OpoError(f"--axis is {text!r}: episodes alone, or options of {env}, are needed: {', '.join(envs.info(env).options)}")
        if "seed" in axis:
            raise OpoError(f"--axis is {text!r}: a seed makes another environment of the same size; set their number by --models")
        if len(set(axis)) < len(axis) or any(set(axis) == set(other) for other in found):
            raise OpoError(f"--axis is {text!r}, which repeats an option or an axis: give all values in one --axis")
        found[axis] = sorted(numbers)
    return found


def _base(env: str, settings: list[str] | None) -> dict[str, Any]:
    """The options shared by all axes."""
    base = dict(BASE) if env == "random-finite" else {}
    return {**base, **environment_options(None, settings)}


def _entries(names: str | None, env: str, base: dict[str, Any]) -> list[Entry]:
    """The agents; by default all except the optimum, whose regret is 0."""
    layout = envs.make(env, **base).layout
    chosen = [name for name in registry.names(layout) if name != "optimum"] if names is None else [n.strip() for n in names.split(",")]
    return [entry for name in chosen for entry in (OPO if name == "opo" else [Entry(registry.info(name).name, name)])]


def _studies(
    env: str, base: dict[str, Any], axes: dict[Axis, list[float]], agents: Sequence[Entry], episodes: int, replicates: dict[str, list[int]]
) -> dict[int, Study]:
    """The studies by T: the one with the base T has all axes, the others only the base case."""
    sizes = {axis if len(axis) > 1 else axis[0]: values for axis, values in axes.items() if axis != ("episodes",)}
    lengths = [as_integer(t, "--axis episodes", least=1) for t in axes.get(("episodes",), [])]
    studies = {}
    for t in dict.fromkeys([*([episodes] if sizes else []), *lengths]):
        shared: Any = sizes if t == episodes else {}
        studies[t] = scaling_study(f"scaling-T{t}", env, base, shared, agents, episodes=t, replicates=replicates)
    return studies


def _theory(env: str, base: dict[str, Any], axis: Axis, values: Sequence[float], episodes: int) -> float:
    """The exponent of the theorem's bound, with its constants and logarithms, fitted to the same values."""
    found = []
    for value in values:
        t = int(value) if axis == ("episodes",) else episodes
        cmdp = envs.make(env, **(base if axis == ("episodes",) else {**base, **dict.fromkeys(axis, value)}))
        having(cmdp, env, ("loss_class", "dynamics_class"), "an environment with classes of losses and dynamics")
        sizes = {"loss_class_size": cmdp.loss_class.size, "dynamics_class_size": cmdp.dynamics_class.size}
        found.append([bounds(cmdp.layout, t, **sizes).regret])
    return power_law(list(values), found).mean


def _table(growths: Sequence[Growth], theory: dict[str, float], title: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.add_column("agent", no_wrap=True)
    for axis in theory:
        table.add_column(cell(axis), justify="right", no_wrap=True)
    by_place = {(growth.agent, growth.axis): growth for growth in growths}
    for agent in dict.fromkeys(growth.agent for growth in growths):
        row = [by_place.get((agent, axis)) for axis in theory]
        table.add_row(cell(agent), *("" if growth is None else interval(growth.exponent, ".2f") for growth in row))
    table.add_row("the theorem's bound", *(f"{value:.2f}" for value in theory.values()))
    return table


def _write(path: pathlib.Path, growths: Sequence[Growth], theory: dict[str, float]) -> None:
    """Write the exponents and the means from which they were computed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["axis", "agent", "exponent", "low", "high", "theory", "value", "mean_regret", "runs"])
    for growth in growths:
        b = growth.exponent
        for value, mean in zip(growth.values, growth.means, strict=True):
            writer.writerow([growth.axis, growth.agent, b.mean, b.low, b.high, theory[growth.axis], value, mean, b.seeds])
    with writing(path) as file:
        file.write(text.getvalue().encode())
