"""Plots, the report and the command line of studies."""

from __future__ import annotations

import base64
import html.parser
import importlib.util
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from study_cases import ROOT, small
from typer.testing import CliRunner

import opo_fast as of
from opo_fast.cli.study import app
from opo_fast.model.streams import Streams
from opo_fast.study import Results, policies, run_study
from opo_fast.study.build import make_environment
from opo_fast.study.report import write_report

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib (extra 'plot') is not installed")

NASTY = 'Lock <b>&"x"</b>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished study with a grid, a failing agent and a label with HTML in it."""
    folder = tmp_path_factory.mktemp("report") / "s"
    environments = [{"name": "combination-lock", "label": NASTY, "options": {"horizon": 3}}]
    agents = [
        {"name": "opo", "label": "OPO", "grid": {"bonus_scale": [2e-6, 1e-5], "eta_scale": [10, 50]}},
        "uniform",
        {"name": "study_cases:broken", "label": "broken", "options": {"at": 9}},
    ]
    run_study(small(agents=agents, environments=environments, record={"every": 3, "measures": ["expected_regret", "saturation"]}), folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    from opo_fast.study.report import write_report

    return write_report(Results(folder))


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.words, self.open, self.ids = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.links += [value for name, value in attributes.items() if name in ("href", "src", "xlink:href", "srcset", "action")]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def reader(page):
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    assert not reader.open
    return reader


def test_the_page_needs_nothing_from_elsewhere(page, reader, folder):
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(reader.tags)
    assert not [word for word in ("@import", "url(http", "onload=", "onclick=") if word in page.read_text()]
    assert reader.tags.count("svg") == 2
    assert len(set(reader.ids)) == len(reader.ids)
    for link in reader.links:
        if link.startswith("#"):
            assert link[1:] in reader.ids
        elif not link.startswith("data:image/png;base64,"):
            assert (page.parent / link).is_file()
    files = [link for link in reader.links if link.startswith("runs/")]
    assert len(files) == len(list((folder / "runs").iterdir())) == 10


def test_the_page_tells_what_the_study_found(reader, folder):
    text = " ".join(" ".join(reader.words).split())
    assert "10 of 12 runs finished" in text
    assert NASTY in text
    assert "RuntimeError: the oracle gave up in episode 9" in text
    assert "Traceback (most recent call last)" in text
    for heading in ("Comparison of agents, seed by seed", "Sensitivity to settings", "Failures", "Settings", "Runs", "growth exponent"):
        assert heading in text
    results = Results(folder)
    for run in results.runs:
        if run.id in results.done:
            assert f"{results.done[run.id]['summary']['regret']:.5g}" in text
    assert of.__version__ in text


def test_a_study_without_finished_runs_has_a_report(tmp_path):
    from opo_fast.study.report import write_report

    run_study(small(agents=[{"name": "study_cases:broken", "options": {"at": 1}}], seeds=1), tmp_path / "s")
    text = write_report(Results(tmp_path / "s")).read_text()
    assert "No run is finished yet." in text


CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


def browser(*arguments):
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_real_browser_shows_the_page_within_its_width(tmp_path, page, width):
    # The page has no script, so a script that writes the measured width into the title is added to a copy.
    picture = "document.querySelector('svg').getBoundingClientRect().width"
    measure = f"<script>document.title=[document.documentElement.scrollWidth,innerWidth,{picture}]</script>"
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", f"{measure}</body>"))
    frame = tmp_path / "frame.html"
    # An iframe can have the width of a phone, which a desktop browser window cannot always have.
    source = base64.b64encode(copy.read_bytes()).decode()
    frame.write_text(
        f"<iframe id=f style='width:{width}px;height:800px;border:0' srcdoc=''></iframe><p id=out></p><script>"
        f"const f=document.getElementById('f');f.onload=()=>{{document.getElementById('out').textContent='seen '+f.contentDocument.title}};"
        f"f.srcdoc=new TextDecoder().decode(Uint8Array.from(atob('{source}'),c=>c.charCodeAt(0)))</script>"
    )
    out = browser("--virtual-time-budget=4000", "--window-size=1400,900", "--dump-dom", f"file://{frame}").stdout
    match = re.search(r"seen (\d+),(\d+),([\d.]+)", out)
    assert match, out[-500:]
    scroll, inner, picture = (float(x) for x in match.groups())
    assert inner == width
    assert scroll <= width
    assert 0.5 * min(width, 544) < picture <= width


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_screenshot_and_a_print_can_be_made(tmp_path, page):
    browser(f"--screenshot={tmp_path / 'page.png'}", "--window-size=1280,1600", f"file://{page}")
    browser(f"--print-to-pdf={tmp_path / 'page.pdf'}", f"file://{page}")
    import matplotlib.image

    picture = matplotlib.image.imread(tmp_path / "page.png")
    assert picture.shape[:2] == (1600, 1280)
    assert 0.02 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.6
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, (SystemExit, of.OpoError)):
        raise result.exception
    return result


STUDY = """
name = "cli"
episodes = 30
seeds = {seeds}
[[environments]]
name = "combination-lock"
label = "lock"
options = {{ horizon = 3 }}
[[agents]]
name = "opo"
label = "OPO"
grid = {{ bonus_scale = [2e-6, 1e-5], eta_scale = [50] }}
"""


def test_the_command_line_from_run_to_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(STUDY.format(seeds=1))
    result = call("run", "s.toml", "--workers", 1, "--report")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "cli-study"
    assert (folder / "report.html").is_file()
    assert (folder / "regret.png").read_bytes()[:4] == b"\x89PNG"
    assert "2 of 2 runs are finished" in result.output
    (tmp_path / "s.toml").write_text(STUDY.format(seeds=2))
    assert "4 of 4 runs are finished" in call("run", "s.toml", "-w", 1).output
    for study in ("s.toml", "cli-study"):
        output = call("status", study, "--runs").output
        assert "4 of 4 runs finished, 0 running, 0 waiting" in output
        assert output.count("OPO (bonus_scale=") == 4
    assert call("resume", "cli-study", "-w", 1).exit_code == 0
    assert call("plot", "cli-study", "--file", "p.svg").exit_code == 0
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    assert call("plot", "cli-study", "--measure", "seconds").exit_code == 0
    assert call("plot", "cli-study", "--heatmap", "bonus_scale,eta_scale", "--file", "h.png").exit_code == 0
    assert call("report", "s.toml", "--file", "r.html").exit_code == 0
    assert "cli-study/runs/" in (tmp_path / "r.html").read_text()
    assert "120 lines" in call("export", "cli-study", "t.csv").output
    assert "4 lines" in call("export", "cli-study", "t.csv", "--summary").output


def test_failures_of_runs_end_in_exit_code_1_and_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        STUDY.format(seeds=1)
        .replace('name = "opo"', 'name = "bad_agent:make"')
        .replace("bonus_scale = [2e-6, 1e-5], eta_scale = [50]", "at = [7]")
    )
    (tmp_path / "s.toml").write_text(text)
    (tmp_path / "bad_agent.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom study_cases import broken as make\n")
    result = call("run", "s.toml", "-w", 1)
    assert result.exit_code == 1
    assert "0 of 1 runs are finished, 1 failed" in result.output
    output = call("status", "cli-study").output
    assert "failed: lock / OPO / seed 0, episode 6: RuntimeError: the oracle gave up in episode 7" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "nowhere"], "there is no file or folder 'nowhere'"),
        (["run", "nowhere.toml"], "there is no study file 'nowhere.toml'"),
        (["report", "."], r"is not the folder of a study"),
    ],
)
def test_the_command_line_names_what_is_missing(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert isinstance(result.exception, of.OpoError)
    assert message in str(result.exception)


def test_plots_name_what_they_cannot_draw(folder, tmp_path):
    for arguments, message in (
        (["--file", tmp_path / "x.docx"], "an ending of"),
        (["--measure", "colour"], "has no column 'colour': one of episode, "),
        (["--measure", "colour"], " cumulative_regret, "),
        (["--heatmap", "bonus_scale,eta_scale", "--measure", "colour"], "name is 'colour': 'regret', "),
        (["--heatmap", "bonus_scale,eta_scale", "--environment", "x"], "environment is 'x': one of Lock"),
        (["--agent", "OPO"], "--agent is 'OPO', which is only for heat maps"),
        (["--out", "elsewhere"], "--out is 'elsewhere' with the folder"),
        (["--heatmap", "bonus_scale"], "two settings separated by a comma"),
        (["--heatmap", "bonus_scale,delta"], "'delta' is not in the grid of 'OPO'"),
        (["--environment", "x"], "environments has 'x'"),
    ):
        result = call("plot", folder, *arguments)
        assert isinstance(result.exception, of.OpoError), result.output
        assert message in str(result.exception)


def test_the_best_of_a_grid_is_judged_on_seeds_that_did_not_choose_it(tmp_path):
    from opo_fast.study import figures, statistics

    scales = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    agents = [{"name": "opo", "label": "OPO", "grid": {"bonus_scale": [2e-6], "eta_scale": scales}}, "uniform"]
    run_study(small(agents=agents, seeds=[3, 4, 5, 6]), tmp_path / "s")
    results = Results(tmp_path / "s")
    environment = results.environments[0].label
    assert figures.judged_on(results) == [5, 6]
    (best, legend, _), _ = figures.shown_agents(results, environment)
    assert legend == f"{best}, best of 9 on other seeds"
    labels = [agent.label for agent in results.agents if agent.label.startswith("OPO")]
    chosen = {label: sum(results.summaries(environment, label, "regret")[seed] for seed in (3, 4)) for label in labels}
    assert best == min(chosen, key=chosen.get)
    curve = figures.curves(results).axes[0].get_lines()[0].get_ydata()
    judged = results.summaries(environment, best, "regret")
    assert curve[-1] == pytest.approx((judged[5] + judged[6]) / 2, rel=1e-9)
    (pair,) = statistics.compare(results, agents=[best, "uniform"], seeds=figures.judged_on(results))
    assert pair.difference.seeds == 2


# -- what was learned --------------------------------------------------------------------------------------------------


def test_the_policies_of_the_first_seed_are_shown(folder, page, reader):
    text = " ".join(reader.words)
    assert text.count("What was learned") == 1
    results = Results(folder)
    label = results.environments[0].label
    run = results.finished(label, "uniform")[0]
    assert {path.stem for path in (folder / "policies").iterdir()} == {r.id for r in results.runs if r.seed == 0 and r.id in results.done}
    content, message = policies.kept(results.store, run.id)
    assert not message
    env = make_environment(run, ".")
    agent = of.agents.make("uniform", env, episodes=1)
    expected = {table.title: table.shown().rows for table in (of.policy_table(agent, context, env) for context in env.contexts)}
    assert 0 < len(content["tables"]) <= 4
    for table in content["tables"]:
        assert table["rows"] == expected[table["title"]]
        assert table["title"] in text
    assert f"uniform, seed {run.seed}" in text
    inside = page.read_text()
    start = inside.index("uniform, seed 0</summary>")
    assert inside.rindex("<details>", 0, start) > inside.rindex("</details>", 0, start)  # folded away


def test_policies_are_bounded(tmp_path, monkeypatch):
    for name, value in (("ROWS", 3), ("CONTEXTS", 2), ("LETTERS", 20)):
        monkeypatch.setattr(policies, name, value)
    run_study(small(agents=["greedy"], environments=[{"name": "random-finite", "options": {"n_contexts": 5}}], seeds=2), tmp_path)
    (path,) = (tmp_path / "policies").iterdir()
    tables = json.loads(path.read_text())["content"]["tables"]
    assert len(tables) == 2
    for table in tables:
        assert len(table["rows"]) == 3
        assert table["more"] > 0
        assert max(len(cell) for row in table["rows"] for cell in row) <= 20
    assert "more states are left out" in write_report(Results(tmp_path)).read_text()


def test_the_contexts_that_came_most_are_shown(tmp_path):
    run_study(small(agents=["uniform"], environments=[{"name": "random-finite", "options": {"n_contexts": 5}}], seeds=1), tmp_path)
    results = Results(tmp_path)
    run = results.runs[0]
    counts = np.bincount(results.read(run)["context_index"])
    content, _ = policies.kept(results.store, run.id)
    env = make_environment(run, ".")
    played = [env.label(env.sample_context(Streams(run.seed, env.layout.horizon).generator("contexts", t))) for t in range(run.episodes)]
    order = sorted(dict.fromkeys(played), key=lambda label: -played.count(label))[:4]
    assert counts.sum() == run.episodes
    assert [table["title"].split(",")[0] for table in content["tables"]] == [f"Policy: {label}" for label in order]
    endless = tmp_path / "endless"
    run_study(small(agents=["uniform"], environments=[{"name": "random-linear", "options": {"n_contexts": None}}], seeds=1), endless)
    content, _ = policies.kept(Results(endless).store, Results(endless).runs[0].id)
    assert len(content["tables"]) == 1


def test_a_damaged_or_missing_policy_is_reported(tmp_path):
    run_study(small(agents=["uniform", "greedy"], environments=["random-finite"], seeds=1), tmp_path)
    first, second = sorted((tmp_path / "policies").iterdir())
    first.write_text(first.read_text().replace("1", "2", 1))
    second.unlink()
    text = html.unescape(write_report(Results(tmp_path)).read_text())
    assert re.search(r"no policy is shown \(.*json' is damaged or was edited: it is left out\)", text)
    assert "no policy is shown (those of the study's first seed are kept, and this one has none)" in text


def test_an_agent_whose_policy_cannot_be_shown_fails_no_run(tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no model")

    monkeypatch.setattr(policies, "policy_table", broken)
    summary = run_study(small(agents=["uniform"], environments=["random-finite"], seeds=1), tmp_path)
    assert summary.done == summary.planned == 1
    assert "uniform: no policy is shown (RuntimeError: no model)" in write_report(Results(tmp_path)).read_text()
