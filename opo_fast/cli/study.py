"""`opo-fast study`: run, status, resume, plot, report, export."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from .._support.text import duration, figure, printable, share
from .._support.threads import processors
from ..errors import OpoError
from ..runs.plots import save_figure
from ..study.file import Study
from ..study.progress import failed_label, status
from ..study.results import Results
from ..study.runner import Changed, Summary, run_study
from ..study.storage import Store
from .options import can_draw, cell, console, safe, show_table

__all__ = ["app"]

app = typer.Typer(
    help="Studies over many seeds and settings, which can be interrupted, resumed, extended, compared and plotted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

What = Annotated[pathlib.Path, typer.Argument(metavar="STUDY", help="The folder of a study, or its study file.")]
Out = Annotated[pathlib.Path | None, typer.Option(help="Folder of the study. Default: NAME-study in the working directory.")]
Workers = Annotated[int | None, typer.Option("--workers", "-w", help="Number of processes. Default: that of this machine's processors.")]
Scheduler = Annotated[
    Literal["loky", "dask", "ray"], typer.Option(help="What starts the processes: loky on this machine, or Dask or Ray (extras).")
]
Address = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler or Ray cluster. Default: a local one.")]
Threads = Annotated[int | None, typer.Option(help="Threads per worker; never changes a result. Default: processors divided by workers.")]
SkipFailed = Annotated[bool, typer.Option("--skip-failed", help="Do not try failed runs again.")]


Redo = Annotated[bool, typer.Option("--redo", help="Repeat finished runs if their environment file, module or version has changed.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep finished runs even if their environment file, module or version has changed.")]
Report = Annotated[bool, typer.Option("--report", help="Write the report and the picture at the end.")]


@app.command()
def run(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="The study file (TOML).")],
    out: Out = None,
    workers: Workers = None,
    scheduler: Scheduler = "loky",
    address: Address = None,
    threads: Threads = None,
    skip_failed: SkipFailed = False,
    redo: Redo = False,
    keep: Keep = False,
    report: Report = False,
) -> None:
    """Do all runs of a study file that are not finished.

    Finished runs are not repeated: to extend a study, add seeds, agents, environments or settings to its file and run it
    again. Ctrl-C writes checkpoints and stops; the next call continues from them.
    """
    study = Study.load(file)
    options = {"workers": workers, "scheduler": scheduler, "address": address, "threads": threads, "retry_failed": not skip_failed}
    _run(study, _folder(study, out), options, redo, keep, report)


@app.command()
def resume(
    study: What,
    out: Out = None,
    workers: Workers = None,
    scheduler: Scheduler = "loky",
    address: Address = None,
    threads: Threads = None,
    skip_failed: SkipFailed = False,
    redo: Redo = False,
    keep: Keep = False,
    report: Report = False,
) -> None:
    """Continue an interrupted study from its checkpoints."""
    store = _store(study, out)
    options = {"workers": workers, "scheduler": scheduler, "address": address, "threads": threads, "retry_failed": not skip_failed}
    _run(store.study(), store.folder, options, redo, keep, report)


@app.command("status")
def show_status(
    study: What,
    out: Out = None,
    runs: Annotated[bool, typer.Option("--runs", help="List every finished run.")] = False,
) -> None:
    """Show the progress of a study; works while it runs."""
    store = _store(study, out)
    planned = store.study().runs()
    now = status(store, planned)
    stream = console()

    def say(text: str, style: str | None = None) -> None:
        stream.print(printable(text), style=style, markup=False, soft_wrap=True)

    state = "running" if now.driven or now.under_way else "finished" if now.finished == now.planned else "not running"
    stream.print(f"[bold]{safe(store.study().name)}[/bold] in {safe(store.folder)}: {state}", soft_wrap=True)
    parts = [f"{now.finished:,} of {now.planned:,} runs finished", f"{len(now.under_way):,} running", f"{now.waiting:,} waiting"]
    stream.print(", ".join(parts) + (f", [red]{len(now.failures):,} failed[/red]" if now.failures else ""))
    if now.seconds_left is not None and now.finished < now.planned and now.under_way:
        stream.print(f"About {duration(now.seconds_left)} left")
    for kind, signs in (("", now.under_way), ("stalled: ", now.stalled)):
        for sign in signs.values():
            done = f"episode {sign['episode']:,} of {sign['episodes']:,}"
            stream.print(cell(f"  {kind}{sign['label']}: {done} ({sign['host']}, process {sign['pid']})"), soft_wrap=True)
            messages = sign.get("messages")
            for message in messages if isinstance(messages, list) else ():
                say(f"    {message}")
    for failure in now.failures.values():
        say(f"  failed: {failed_label(failure)}, episode {failure['episode']:,}: {failure['message']}", "red")
    for message in now.messages:
        say(message, "yellow")
    if runs:
        table = Table("run", "environment", "agent", "seed", "regret", "gap closed", "seconds", box=None, pad_edge=False)
        for line in Results(store).table():
            numbers = [figure(line["regret"], ".5g"), share(line["gap_closed"]), figure(line["seconds"], ".3g")]
            table.add_row(line["run"], cell(line["environment"]), cell(line["agent"]), str(line["seed"]), *numbers)
        if not stream.is_terminal:
            stream.width = 200
        show_table(stream, table)


@app.command()
def plot(
    study: What,
    out: Out = None,
    file: Annotated[
        pathlib.Path | None, typer.Option(help="Picture to write (.png, .svg, .pdf). Default: regret.png in the folder.")
    ] = None,
    measure: Annotated[str, typer.Option(help="Column to draw: cumulative_regret, expected_regret, saturation, seconds, memory, ...")] = (
        "cumulative_regret"
    ),
    heatmap: Annotated[
        str | None, typer.Option(metavar="X,Y", help="Draw a heat map over two settings in an agent's grid instead.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of the heat map. Default: the first with that grid.")] = None,
    environment: Annotated[str | None, typer.Option(help="Environment to draw. Default: all; for a heat map the first.")] = None,
) -> None:
    """Draw the regret curves with bootstrap bands, or a heat map over two settings."""
    from ..study import figures, statistics

    results = Results(_store(study, out))
    if heatmap is None:
        if agent is not None:
            raise OpoError(f"--agent is {agent!r}, which is only for heat maps: give --heatmap too, or leave it out")
        path = file or results.store.folder / f"{'regret' if measure == 'cumulative_regret' else measure}.png"
        save_figure(figures.curves(results, measure, environments=None if environment is None else [environment]), path)
        _written(path)
        return
    x, comma, y = heatmap.partition(",")
    if not comma:
        raise OpoError(f"--heatmap is {heatmap!r}: two settings separated by a comma, as in bonus_scale,eta_scale, are needed")
    if agent is None:
        agent = next((e.label for e in results.study.agents if {x, y} <= set(e.grid)), results.study.agents[0].label)
    chosen = results.environments[0].label if environment is None else environment
    maps = statistics.heatmap(results, chosen, agent, x, y, "regret" if measure == "cumulative_regret" else measure)
    for i, one in enumerate(maps):
        path = file or results.store.folder / "heatmap.png"
        path = path if len(maps) == 1 else path.with_stem(f"{path.stem}-{i + 1}")
        save_figure(figures.draw_heatmap(one), path)
        _written(path)


@app.command()
def report(
    study: What,
    out: Out = None,
    file: Annotated[pathlib.Path | None, typer.Option(help="Page to write. Default: report.html in the folder.")] = None,
) -> None:
    """Write one HTML page with curves, tables, comparisons, settings and failures; it needs no network."""
    from ..study.report import write_report

    _written(write_report(Results(_store(study, out)), file))


@app.command()
def export(
    study: What,
    file: Annotated[pathlib.Path, typer.Argument(metavar="TABLE", help="File to write: .csv or .parquet.")],
    out: Out = None,
    summary: Annotated[bool, typer.Option("--summary", help="One line per run instead of one per recorded episode.")] = False,
) -> None:
    """Write all finished runs as one table."""
    lines = Results(_store(study, out)).export(file, summary=summary)
    typer.echo(f"Written to {printable(file)}: {lines:,} lines")


def _folder(study: Study, out: pathlib.Path | None) -> pathlib.Path:
    return pathlib.Path(f"{study.name}-study") if out is None else out


def _store(what: pathlib.Path, out: pathlib.Path | None) -> Store:
    """The study folder given by a folder or a study file."""
    # Unlike those of pathlib, these functions do not raise if a name is too long.
    if os.path.isfile(what):
        return Store.open(_folder(Study.load(what), out))
    if not os.path.exists(what):
        raise OpoError(f"there is no file or folder {str(what)!r}: the folder of a study, or its study file, is needed")
    if out is not None:
        raise OpoError(f"--out is {str(out)!r} with the folder {str(what)!r}: it is only for study files, so leave it out")
    return Store.open(what)


def _run(study: Study, folder: pathlib.Path, options: dict[str, Any], redo: bool, keep: bool, report: bool) -> None:
    if redo and keep:
        raise OpoError("--redo and --keep are both given: only one of them is needed")
    changed: Changed = "redo" if redo else "keep" if keep else "ask"
    options["workers"] = processors() if options["workers"] is None else options["workers"]
    summary = run_study(study, folder, **options, changed=changed, progress=True)
    _tell(folder, summary)
    if report and summary.done:
        _write_pages(Results(folder))
    if summary.stopped:
        raise typer.Exit(130)
    if summary.failed:
        raise typer.Exit(1)


def _write_pages(results: Results) -> None:
    """Write the picture and the report; if an extra is missing, only say so, since the runs are done."""
    from ..study import figures
    from ..study.report import missing_jinja2, write_report

    if can_draw():
        picture = results.store.folder / "regret.png"
        save_figure(figures.curves(results), picture)
        _written(picture)
    missing = missing_jinja2()
    if missing:
        typer.echo(f"no report: {missing}", err=True)
    else:
        _written(write_report(results))


def _written(path: pathlib.Path) -> None:
    typer.echo(f"Written to {printable(path)}")


def _tell(folder: pathlib.Path, summary: Summary) -> None:
    stream = console()
    for message in summary.messages:
        stream.print(cell(message), style="yellow", soft_wrap=True)
    failed = f", {summary.failed:,} failed (see: opo-fast study status {folder})" if summary.failed else ""
    stream.print(cell(f"{summary.done:,} of {summary.planned:,} runs are finished{failed}; everything is in {folder}"), soft_wrap=True)
    if summary.stopped:
        stream.print(cell(f"Stopped. Resume with: opo-fast study resume {folder}"), soft_wrap=True)
