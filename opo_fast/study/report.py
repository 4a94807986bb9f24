"""The report of a study: one HTML page with everything in it, which needs neither a network nor JavaScript."""

from __future__ import annotations

import html
import io
import json
import math
import os
import pathlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..runs.statistics import Estimate, estimate
from . import figures, statistics
from .progress import duration, status
from .results import Results
from .storage import write_atomic

__all__ = ["write_report"]

STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d4d9df; --tint: #f4f6f8; --accent: #0072b2; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.2rem 1rem 3rem; color: var(--ink); background: #fff; }
body { font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.3rem 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft { color: var(--soft); font-size: .88rem; }
.bad { color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { flex: 1 1 7rem; background: var(--tint); border-radius: .4rem; padding: .5rem .8rem; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: .4rem 0 .8rem; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th, td { white-space: nowrap; vertical-align: top; }
th { font-weight: 600; color: var(--soft); border-bottom-color: var(--soft); }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; text-align: left; }
figure { margin: .8rem 0; }
figure svg { width: 100%; height: auto; display: block; }
figure.small svg { max-width: 34rem; }
figcaption { color: var(--soft); font-size: .88rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--accent); }
pre { background: var(--tint); padding: .6rem .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.4; border-radius: .4rem; }
a { color: var(--accent); }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } table { font-size: 8pt; }
  h2, h3 { break-after: avoid; } figure, tr, .tiles { break-inside: avoid; }
  .wide { overflow: visible; } th, td { white-space: normal; } pre { white-space: pre-wrap; }
}
"""


def write_report(results: Results, path: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Write the report and return its path.

    Parameters
    ----------
    results : Results
    path : path, optional
        Default: ``report.html`` in the folder of the study. Links to run files are relative to it.
    """
    path = results.store.folder / "report.html" if path is None else pathlib.Path(path)
    page = _page(results, path)
    write_atomic(path, lambda file: file.write(page.encode()))
    return path


def _page(results: Results, path: pathlib.Path) -> str:
    study = results.study
    parts = [
        f"<h1>{_text(study.name)}</h1>",
        f'<p class="soft">Written {time.strftime("%Y-%m-%d %H:%M")} by opo_fast. Regret is the sum over episodes of value minus optimal '
        "value, exact on the true model; lower is better. Intervals are 95 % bootstrap intervals over seeds. The end of a run is the last "
        "tenth of its episodes; the gap is that between the uniform policy and the optimum; the growth exponent is the slope of log "
        "regret over log episode from a tenth of the episodes on (1 is linear).</p>",
        _tiles(results),
        *(_environment(results, environment.label) for environment in results.environments),
        _comparisons(results),
        _heatmaps(results),
        _failures(results),
        _settings(results),
        _runs(results, path),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(study.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{''.join(parts)}\n</body>\n</html>\n"
    )


def _tiles(results: Results) -> str:
    now = status(results.store, results.runs)
    seconds = sum(meta["summary"]["seconds"] for meta in results.done.values())
    tiles = [
        (f"{now.finished:,} of {now.planned:,}", "runs finished"),
        (f"{len(now.failures):,}", "failed"),
        (f"{results.study.episodes:,}", "episodes a run"),
        (f"{len(results.study.seeds):,}", "seeds"),
        (duration(seconds), "computing time"),
    ]
    if now.under_way:
        tiles.append((f"{len(now.under_way):,}", "under way"))
    items = "".join(f"<li><b>{_text(number)}</b>{_text(name)}</li>" for number, name in tiles)
    damaged = "".join(f'<p class="bad">{_text(message)}</p>' for message in results.messages)
    return f'<ul class="tiles">{items}</ul>{damaged}'


def _environment(results: Results, environment: str) -> str:
    agents = [agent.label for agent in results.agents if results.finished(environment, agent.label)]
    title = f"<h2>{_text(environment)}</h2>"
    if not agents:
        return f"{title}<p>No run is finished yet.</p>"
    figure = _svg(figures.curves(results, environments=[environment]))
    known = {name for agent in agents for run in results.finished(environment, agent) for name in results.done[run.id]["summary"]}
    columns = ["agent", "seeds", "regret", "gap closed at the end", "growth exponent"]
    columns += ["expected regret at the end"] if "expected_regret" in known else []
    columns += ["bonuses at cap", "ms an episode"] + (["memory (MB)"] if "memory" in known else [])
    lines = []
    for agent in agents:

        def of(name: str, agent: str = agent) -> Estimate:
            return estimate(list(results.summaries(environment, agent, name).values()))

        gap, saturation = of("gap_closed"), of("saturation")
        line = [agent, str(len(results.finished(environment, agent))), _interval(of("regret"))]
        line += [_percent(gap), _interval(statistics.growth(results, environment, agent), ".2f")]
        line += [_interval(of("expected_regret"))] if "expected_regret" in known else []
        line += ["-" if math.isnan(saturation.mean) else f"{saturation.mean:.1%}"]
        line += [f"{1e3 * of('seconds').mean / results.study.episodes:.3g}"]
        line += [f"{of('memory').mean / 1e6:.0f}"] if "memory" in known else []
        lines.append(line)
    caption = "<figcaption>Mean over seeds; bands are 95 % bootstrap intervals.</figcaption>"
    return f'{title}<figure class="small">{figure}{caption}</figure>{_table(columns, lines)}'


def _comparisons(results: Results) -> str:
    lines = []
    for environment in results.environments:
        agents = [label for label, _, _ in figures.shown_agents(results, environment.label)]
        lines += [
            [c.environment, c.first, c.second, str(c.difference.seeds), _interval(c.difference), f"{c.lower} of {c.difference.seeds}"]
            for c in statistics.compare(results, environments=[environment.label], agents=agents)
            if len(agents) > 1
        ]
    if not lines:
        return ""
    best = " Of each grid of settings, the point of least regret is taken." if len(results.agents) > figures.MOST else ""
    intro = (
        "<p>Agents see the same contexts and the same random numbers under one seed, so the difference of their regrets is compared. "
        f"An interval without 0 tells them apart.{best}</p>"
    )
    columns = ["environment", "first", "second", "seeds", "regret of first minus second", "first is lower in"]
    return f"<h2>Agents compared, seed by seed</h2>{intro}{_table(columns, lines, text=3)}"


def _heatmaps(results: Results) -> str:
    parts = []
    for environment in results.environments:
        for entry in results.study.agents:
            varied = [key for key, values in entry.grid.items() if len(values) > 1]
            if len(varied) < 2:
                continue
            x, y = ("bonus_scale", "eta_scale") if {"bonus_scale", "eta_scale"} <= set(varied) else varied[:2]
            for heatmap in statistics.heatmap(results, environment.label, entry.label, x, y)[:6]:
                parts.append(f'<figure class="small">{_svg(figures.draw_heatmap(heatmap))}</figure>')
    if not parts:
        return ""
    return f"<h2>Sensitivity to settings</h2><p>Mean regret over seeds; darker is lower, which is better.</p>{''.join(parts)}"


def _failures(results: Results) -> str:
    if not results.failures:
        return ""
    parts = []
    for id, failure in results.failures.items():
        label = f"{failure['environment']['label']} / {failure['agent']['label']} / seed {failure['seed']}"
        parts.append(
            f"<details><summary>{_text(label)}, episode {failure['episode']:,}: "
            f'<span class="bad">{_text(failure["message"])}</span></summary>'
            f'<p class="soft">run {_text(id)} on {_text(failure["host"])}</p><pre>{_text(failure["traceback"])}</pre></details>'
        )
    return f"<h2>Failures</h2>{''.join(parts)}"


def _settings(results: Results) -> str:
    lines = []
    for kind in ("environments", "agents"):
        for choice in getattr(results, kind):
            options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in choice.settings.items()) or "defaults"
            lines.append([kind[:-1], choice.label, choice.name, options])
    used = {json.dumps(meta["versions"], sort_keys=True) for meta in results.done.values()}
    hosts = sorted({meta["host"] for meta in results.done.values()})
    versions = "".join(f"<p>{_text(', '.join(f'{key} {value}' for key, value in json.loads(text).items()))}</p>" for text in sorted(used))
    mixed = '<p class="bad">The runs were done with different versions.</p>' if len(used) > 1 else ""
    seeds = ", ".join(map(str, results.study.seeds))
    return (
        f"<h2>Settings</h2>{_table(['', 'label', 'name', 'settings'], lines, text=4)}"
        f"<details><summary>Seeds, versions, machines, study file</summary><p>Seeds: {_text(seeds)}</p>{mixed}{versions}"
        f"<p>Machines: {_text(', '.join(hosts) or '-')}</p><pre>{_text(json.dumps(results.study.to_dict(), indent=1))}</pre></details>"
    )


def _runs(results: Results, path: pathlib.Path) -> str:
    lines = []
    for run in results.runs:
        meta = results.done.get(run.id)
        if meta is None:
            state = "failed" if run.id in results.failures else "not finished"
            lines.append([run.id, run.environment.label, run.agent.label, str(run.seed), state, "", "", ""])
            continue
        link = os.path.relpath(results.store.runs / meta["file"], path.resolve().parent).replace(os.sep, "/")
        summary = meta["summary"]
        cells = [run.environment.label, run.agent.label, str(run.seed), f"{summary['regret']:.5g}"]
        lines.append([_Link(run.id, link), *cells, f"{summary['seconds']:.3g}", str(meta["resumed"]), meta["host"]])
    columns = ["run", "environment", "agent", "seed", "regret", "seconds", "resumed", "machine"]
    summary_line = f"<summary>All {len(results.runs):,} runs, with their files</summary>"
    return f"<h2>Runs</h2><details>{summary_line}{_table(columns, lines, text=3)}</details>"


class _Link(str):
    """A cell that links to a file."""

    target: str

    def __new__(cls, text: str, target: str) -> _Link:
        link = super().__new__(cls, text)
        link.target = target
        return link


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]], text: int = 1) -> str:
    def cell(i: int, value: str) -> str:
        kind = (' class="long"' if len(value) > 60 else ' class="text"') if i < text else ""
        shown = f'<a href="{html.escape(value.target)}">{_text(value)}</a>' if isinstance(value, _Link) else _text(value)
        return f"<td{kind}>{shown}</td>"

    head = "".join(f"<th{' class=text' if i < text else ''}>{_text(column)}</th>" for i, column in enumerate(columns))
    body = "".join(f"<tr>{''.join(cell(i, value) for i, value in enumerate(line))}</tr>\n" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _interval(estimate: Estimate, form: str = ".4g") -> str:
    if math.isnan(estimate.mean):
        return "-"
    if math.isnan(estimate.low):
        return format(estimate.mean, form)
    return f"{_number(estimate.mean, form)} [{_number(estimate.low, form)}, {_number(estimate.high, form)}]"


def _number(value: float, form: str) -> str:
    """A number without the sign of a zero."""
    text = format(value, form)
    return text.lstrip("-") if float(text) == 0 else text


def _percent(estimate: Estimate) -> str:
    if math.isnan(estimate.mean):
        return "-"
    if math.isnan(estimate.low):
        return f"{estimate.mean:.1%}"
    return f"{estimate.mean:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def _text(value: Any) -> str:
    return html.escape(str(value))


_count = 0


def _svg(figure: Any) -> str:
    """A figure as inline SVG; its ids are made unique, since all pictures share the page."""
    global _count
    _count += 1
    data = io.StringIO()
    figure.savefig(data, format="svg", metadata={"Date": None})
    text = data.getvalue()
    text = text[text.index("<svg") :]
    for attribute in ('id="', 'xlink:href="#', "url(#"):
        text = text.replace(attribute, f"{attribute}f{_count}-")
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
