"""The report of a study: one self-contained HTML page without JavaScript (extra `study`)."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._support.text import duration, figure, interval, share
from ..errors import OpoError, install
from ..runs.plots import missing_matplotlib
from ..runs.statistics import Estimate, estimate
from . import figures, policies, statistics
from .origin import mixtures
from .progress import failed_label, status
from .results import Results
from .storage import storing

__all__ = ["missing_jinja2", "write_report"]

_pictures = itertools.count(1)


class Link(NamedTuple):
    """A cell that links to a file."""

    text: str
    target: str


def write_report(results: Results, path: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Write the report and return its path; without matplotlib it has no plots, and says so.

    Parameters
    ----------
    results : Results
    path : path, optional
        Default: ``report.html`` in the folder of the study. Links to run files are relative to it.
    """
    path = results.store.folder / "report.html" if path is None else pathlib.Path(path)
    page = _template().render(**_content(results, path))
    with storing(path) as file:
        file.write(page.encode())
    return path


def missing_jinja2() -> str | None:
    """How to install jinja2; None if it is installed."""
    return None if importlib.util.find_spec("jinja2") else f"reports need jinja2: {install('study')}"


def _template() -> Any:
    missing = missing_jinja2()
    if missing:
        raise OpoError(missing)
    import jinja2

    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template("report.html.j2")


def _content(results: Results, path: pathlib.Path) -> dict[str, Any]:
    """The variables of the template."""
    study = results.study
    metas = list(results.done.values())
    used = sorted({json.dumps(meta["versions"], sort_keys=True) for meta in metas})
    mixed = ["The runs were done with different versions; see Settings."] if len(used) > 1 else []
    missing = missing_matplotlib()
    draw: Callable[[Any], Any] = (lambda make: None) if missing else (lambda make: _svg(make()))
    return {
        "study": study,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "no_pictures": missing or "",
        "tiles": _tiles(results),
        "warnings": [*results.messages, *mixed, *(f"{line[0].upper()}{line[1:]}." for line in mixtures(metas))],
        "environments": [_environment(results, choice.label, draw) for choice in results.environments],
        "comparisons": _comparisons(results),
        "best_of_grids": len(results.agents) > figures.MOST,
        "judged": figures.judged_on(results) is not None,
        "heatmaps": [draw(lambda one=one: figures.draw_heatmap(one)) for one in _heatmaps(results)],
        "failures": [{**failure, "id": id, "label": failed_label(failure)} for id, failure in results.failures.items()],
        "settings": _settings(results),
        "seeds": ", ".join(map(str, study.seeds)),
        "versions": [", ".join(f"{key} {value}" for key, value in json.loads(text).items()) for text in used],
        "hosts": ", ".join(sorted({meta["host"] for meta in metas})) or "-",
        "study_text": json.dumps(study.to_dict(), indent=1),
        "total": f"{len(results.runs):,}",
        "runs": _runs(results, path),
    }


def _tiles(results: Results) -> list[tuple[str, str]]:
    now = status(results.store, results.runs)
    seconds = sum(meta["summary"]["seconds"] for meta in results.done.values())
    tiles = [
        (f"{now.finished:,} of {now.planned:,}", "runs finished"),
        (f"{len(now.failures):,}", "failed"),
        (f"{results.study.episodes:,}", "episodes a run"),
        (f"{len(results.study.seeds):,}", "seeds"),
        (duration(seconds), "computing time"),
    ]
    return [*tiles, (f"{len(now.under_way):,}", "under way")] if now.under_way else tiles


def _environment(results: Results, environment: str, draw: Callable[[Any], Any]) -> dict[str, Any]:
    """The plot and the table of an environment."""
    agents = [agent.label for agent in results.agents if results.finished(environment, agent.label)]
    if not agents:
        return {"label": environment, "rows": []}
    known = {name for agent in agents for run in results.finished(environment, agent) for name in results.done[run.id]["summary"]}
    columns: dict[str, Callable[[str, Callable[[str], Estimate]], str]] = {
        "agent": lambda agent, of: agent,
        "seeds": lambda agent, of: str(len(results.finished(environment, agent))),
        "regret": lambda agent, of: interval(of("regret")),
        "gap closed at the end": lambda agent, of: interval(of("gap_closed"), ".1%"),
        "growth exponent": lambda agent, of: interval(statistics.growth(results, environment, agent), ".2f"),
    }
    if "expected_regret" in known:
        columns["expected regret at the end"] = lambda agent, of: interval(of("expected_regret"))
    columns["bonuses at cap"] = lambda agent, of: share(of("saturation").mean)
    if "truncated" in known:
        columns["estimates cut off at 0"] = lambda agent, of: share(of("truncated").mean)
        columns["of those played"] = lambda agent, of: share(of("truncated_played").mean)
        columns["vacuous bonuses"] = lambda agent, of: share(of("vacuous_bonuses").mean)
        columns["plausible losses, dynamics"] = lambda agent, of: ", ".join(
            figure(of(name).mean, ".3g") for name in ("plausible_losses", "plausible_dynamics")
        )
        columns["bound of term (iii)"] = lambda agent, of: figure(of("hedge_bound").mean, ".3g")
    columns["ms an episode"] = lambda agent, of: figure(1e3 * of("seconds").mean / results.study.episodes, ".3g")
    if "memory" in known:
        columns["memory (MB)"] = lambda agent, of: figure(of("memory").mean / 1e6, ".0f")

    def row(agent: str) -> list[str]:
        return [cell(agent, lambda name: estimate(list(results.summaries(environment, agent, name).values()))) for cell in columns.values()]

    picture = draw(lambda: figures.curves(results, environments=[environment]))
    return {
        "label": environment,
        "figure": picture,
        "columns": list(columns),
        "rows": [row(agent) for agent in agents],
        "policies": _policies(results, environment),
    }


def _policies(results: Results, environment: str) -> list[dict[str, Any]]:
    """For each plotted agent the policies that its first finished seed has learned, or why they are not shown."""
    found = []
    for label, _, _ in figures.shown_agents(results, environment):
        shown: dict[str, Any] = {"agent": label, "seed": "", "tables": []}
        shown["reason"] = "those of the study's first seed are kept, and this one has none"
        for run in results.finished(environment, label):
            content, message = policies.kept(results.store, run.id)
            if message:
                shown["reason"] = message
            if content is not None:
                shown.update(seed=run.seed, tables=content["tables"], reason=content["reason"])
                break
        found.append(shown)
    return found


def _comparisons(results: Results) -> list[list[str]]:
    rows = []
    for environment in results.environments:
        agents = [label for label, _, _ in figures.shown_agents(results, environment.label)]
        if len(agents) > 1:
            for c in statistics.compare(results, environments=[environment.label], agents=agents, seeds=figures.judged_on(results)):
                seeds = c.difference.seeds
                rows.append([c.environment, c.first, c.second, str(seeds), interval(c.difference), f"{c.lower} of {seeds}"])
    return rows


def _heatmaps(results: Results) -> list[statistics.Heatmap]:
    found: list[statistics.Heatmap] = []
    for environment in results.environments:
        for entry in results.study.agents:
            varied = [key for key, values in entry.grid.items() if len(values) > 1]
            if len(varied) > 1:
                x, y = ("bonus_scale", "eta_scale") if {"bonus_scale", "eta_scale"} <= set(varied) else varied[:2]
                found += statistics.heatmap(results, environment.label, entry.label, x, y)[:6]
    return found


def _settings(results: Results) -> list[list[str]]:
    rows = []
    for kind in ("environments", "agents"):
        for choice in getattr(results, kind):
            options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in choice.settings.items()) or "defaults"
            rows.append([kind[:-1], choice.label, choice.name, options])
    return rows


def _runs(results: Results, path: pathlib.Path) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for run in results.runs:
        start = [run.environment.label, run.agent.label, str(run.seed)]
        meta: Mapping[str, Any] | None = results.done.get(run.id)
        if meta is None:
            rows.append([run.id, *start, "failed" if run.id in results.failures else "not finished", "", "", ""])
            continue
        link = urllib.parse.quote(pathlib.PurePath(os.path.relpath(results.store.runs / meta["file"], path.resolve().parent)).as_posix())
        numbers = [figure(meta["summary"]["regret"], ".5g"), figure(meta["summary"]["seconds"], ".3g"), str(meta["resumed"])]
        rows.append([Link(run.id, link), *start, *numbers, meta["host"]])
    return rows


def _svg(drawn: Any) -> Any:
    """A figure as inline SVG, with ids that are unique on the page."""
    import markupsafe

    number = next(_pictures)
    data = io.StringIO()
    drawn.savefig(data, format="svg", metadata={"Date": None})
    text = data.getvalue()
    text = text[text.index("<svg") :]
    for attribute in ('id="', 'xlink:href="#', "url(#"):
        text = text.replace(attribute, f"{attribute}f{number}-")
    return markupsafe.Markup(re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL))
