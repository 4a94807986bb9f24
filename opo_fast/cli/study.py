"""`opo-fast study`: run, status, resume, plot, report, export."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from ..errors import OpoError
from ..study.file import Study
from ..study.progress import duration, status
from ..study.results import Results
from ..study.runner import Summary, run_study
from ..study.storage import Store

__all__ = ["app"]

app = typer.Typer(
    help="Studies of many seeds and settings: run, killed, resumed, extended, compared and plotted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

What = Annotated[pathlib.Path, typer.Argument(metavar="STUDY", help="The folder of a study, or its study file.")]
Out = Annotated[pathlib.Path | None, typer.Option(help="Folder of the study. Default: NAME-study in the working directory.")]
Workers = Annotated[int | None, typer.Option("--workers", "-w", help="Processes. Default: the processors of this machine.")]
Backend = Annotated[
    Literal["loky", "dask", "ray"], typer.Option(help="What starts the processes: loky on this machine; Dask and Ray are extras.")
]
Address = Annotated[str | None, typer.Option(help="Of a running Dask scheduler or Ray cluster. Default: a local one.")]
Threads = Annotated[int | None, typer.Option(help="Threads per worker; never changes a result. Default: the processors shared out.")]
SkipFailed = Annotated[bool, typer.Option("--skip-failed", help="Do not try runs again that failed before.")]


@app.command()
def run(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="The study file (TOML).")],
    out: Out = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    threads: Threads = None,
    skip_failed: SkipFailed = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report and the picture at the end.")] = False,
) -> None:
    """Do all runs of a study file that are not finished.

    Finished runs are never done again: to extend a study, add seeds, agents, environments or settings to its file and run it
    again. Ctrl-C writes checkpoints and stops; the next call goes on from them.
    """
    study = Study.load(file)
    folder = _folder(study, out)
    _run(study, folder, workers, backend, address, threads, skip_failed, report)


@app.command()
def resume(
    study: What,
    out: Out = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    threads: Threads = None,
    skip_failed: SkipFailed = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report and the picture at the end.")] = False,
) -> None:
    """Go on with a study that was interrupted, from its checkpoints."""
    store = _store(study, out)
    _run(store.study(), store.folder, workers, backend, address, threads, skip_failed, report)


@app.command("status")
def show_status(
    study: What,
    out: Out = None,
    runs: Annotated[bool, typer.Option("--runs", help="List every finished run.")] = False,
) -> None:
    """Tell how a study is going; works while it runs."""
    store = _store(study, out)
    planned = store.study().runs()
    now = status(store, planned)
    console = Console(highlight=False)
    state = "running" if now.driven or now.under_way else "finished" if now.finished == now.planned else "not running"
    console.print(f"[bold]{store.study().name}[/bold] in {store.folder}: {state}", soft_wrap=True)
    parts = [f"{now.finished:,} of {now.planned:,} runs finished", f"{len(now.under_way):,} under way", f"{now.waiting:,} waiting"]
    console.print(", ".join(parts) + (f", [red]{len(now.failures):,} failed[/red]" if now.failures else ""))
    if now.seconds_left is not None and now.finished < now.planned and now.under_way:
        console.print(f"About {duration(now.seconds_left)} left")
    for kind, signs in (("", now.under_way), ("stalled: ", now.stalled)):
        for sign in signs.values():
            done = f"episode {sign['episode']:,} of {sign['episodes']:,}"
            console.print(f"  {kind}{sign['label']}: {done} ({sign['host']}, process {sign['pid']})", markup=False, soft_wrap=True)
            for message in sign.get("messages", ()):
                console.print(f"    {message}", markup=False, soft_wrap=True)
    for failure in now.failures.values():
        console.print(
            f"  failed: {_label(failure)}, episode {failure['episode']:,}: {failure['message']}", style="red", markup=False, soft_wrap=True
        )
    for message in now.messages:
        console.print(message, style="yellow", markup=False, soft_wrap=True)
    if runs:
        table = Table("run", "environment", "agent", "seed", "regret", "gap closed", "seconds", box=None, pad_edge=False)
        for line in Results(store).table():
            numbers = [f"{line['regret']:.5g}", f"{line['gap_closed']:.1%}", f"{line['seconds']:.3g}"]
            table.add_row(line["run"], line["environment"], line["agent"], str(line["seed"]), *numbers)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(table)


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
        str | None, typer.Option(metavar="X,Y", help="Draw a heat map over two settings of an agent's grid instead.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of the heat map. Default: the first with that grid.")] = None,
    environment: Annotated[str | None, typer.Option(help="Environment to draw. Default: all; for a heat map the first.")] = None,
) -> None:
    """Draw the regret curves with bootstrap bands, or a heat map over two settings."""
    from ..study import figures, statistics

    results = Results(_store(study, out))
    if heatmap is None:
        if agent is not None:
            raise OpoError(f"--agent is {agent!r}, which is for heat maps: give --heatmap too, or leave it out")
        path = file or results.store.folder / f"{'regret' if measure == 'cumulative_regret' else measure}.png"
        figures.save(figures.curves(results, measure, environments=None if environment is None else [environment]), path)
        typer.echo(f"Written to {path}")
        return
    x, comma, y = heatmap.partition(",")
    if not comma:
        raise OpoError(f"--heatmap is {heatmap!r}: two settings with a comma, as in bonus_scale,eta_scale, are needed")
    if agent is None:
        agent = next((e.label for e in results.study.agents if {x, y} <= set(e.grid)), results.study.agents[0].label)
    chosen = results.environments[0].label if environment is None else environment
    maps = statistics.heatmap(results, chosen, agent, x, y, "regret" if measure == "cumulative_regret" else measure)
    for i, one in enumerate(maps):
        path = file or results.store.folder / "heatmap.png"
        path = path if len(maps) == 1 else path.with_stem(f"{path.stem}-{i + 1}")
        figures.save(figures.draw_heatmap(one), path)
        typer.echo(f"Written to {path}")


@app.command()
def report(
    study: What,
    out: Out = None,
    file: Annotated[pathlib.Path | None, typer.Option(help="Page to write. Default: report.html in the folder.")] = None,
) -> None:
    """Write one HTML page with curves, tables, comparisons, settings and failures; it needs no network."""
    from ..study.report import write_report

    typer.echo(f"Written to {write_report(Results(_store(study, out)), file)}")


@app.command()
def export(
    study: What,
    file: Annotated[pathlib.Path, typer.Argument(metavar="TABLE", help="File to write: .csv or .parquet.")],
    out: Out = None,
    summary: Annotated[bool, typer.Option("--summary", help="One line per run instead of one per recorded episode.")] = False,
) -> None:
    """Write all finished runs as one table."""
    lines = Results(_store(study, out)).export(file, summary=summary)
    typer.echo(f"Written to {file}: {lines:,} lines")


def _folder(study: Study, out: pathlib.Path | None) -> pathlib.Path:
    return pathlib.Path(f"{study.name}-study") if out is None else out


def _store(what: pathlib.Path, out: pathlib.Path | None) -> Store:
    """The folder that is meant by a folder or a study file."""
    if what.is_file():
        return Store.open(_folder(Study.load(what), out))
    if not what.exists():
        raise OpoError(f"there is no file or folder {str(what)!r}: the folder of a study, or its study file, is needed")
    if out is not None:
        raise OpoError(f"--out is {str(out)!r} beside the folder {str(what)!r}: it is for a study file, leave it out")
    return Store.open(what)


def _run(
    study: Study,
    folder: pathlib.Path,
    workers: int | None,
    backend: Any,
    address: str | None,
    threads: int | None,
    skip_failed: bool,
    report: bool,
) -> None:
    from ..study.runner import processors

    workers = processors() if workers is None else workers
    summary = run_study(
        study, folder, workers=workers, backend=backend, address=address, threads=threads, retry_failed=not skip_failed, progress=True
    )
    _tell(folder, summary)
    if report and summary.done:
        from ..study import figures
        from ..study.report import write_report

        results = Results(folder)
        picture = folder / "regret.png"
        figures.save(figures.curves(results), picture)
        typer.echo(f"Written to {picture} and {write_report(results)}")
    if summary.stopped:
        raise typer.Exit(130)
    if summary.failed:
        raise typer.Exit(1)


def _tell(folder: pathlib.Path, summary: Summary) -> None:
    console = Console(highlight=False)
    for message in summary.messages:
        console.print(message, style="yellow", markup=False, soft_wrap=True)
    failed = f", {summary.failed:,} failed (see: opo-fast study status {folder})" if summary.failed else ""
    console.print(
        f"{summary.done:,} of {summary.planned:,} runs are finished{failed}; everything is in {folder}", markup=False, soft_wrap=True
    )
    if summary.stopped:
        console.print(f"Stopped. Go on with: opo-fast study resume {folder}", markup=False, soft_wrap=True)


def _label(failure: dict[str, Any]) -> str:
    return f"{failure['environment']['label']} / {failure['agent']['label']} / seed {failure['seed']}"
