"""Names from files in terminals and plots: they are shown literally, in any width and encoding."""

from __future__ import annotations

import io
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import opo_fast as of
from opo_fast.cli import commands
from opo_fast.study import Study, run_study

PROGRAM = [sys.executable, "-c", "from opo_fast.cli import main; main()"]
NASTY = [
    "[/red]",
    "[bold",
    "[link=http://x]y[/link]",
    "$\\foo$",
    "$x",
    "a\x1b[31mb\x1b]0;title\x07",
    "\x9b2J",
    "line\nbreak",
    "a\u202eb",
    "é漢",
]


def process(*words, folder, columns=80, encoding="utf-8"):
    """Run `opo-fast` in a separate process."""
    variables = {**os.environ, "COLUMNS": str(columns), "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    return subprocess.run([*PROGRAM, *words], capture_output=True, cwd=folder, env=variables, check=False)


def program(*words, folder, columns=80, encoding="utf-8"):
    """Run `opo-fast` in this process, on streams with this encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, errors) for errors in ("strict", "backslashreplace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["opo-fast", *words])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            commands.main()
    out.flush()
    err.flush()
    return subprocess.CompletedProcess(words, ended.value.code or 0, out.buffer.getvalue(), err.buffer.getvalue())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run with five contexts, and a study with control characters in its labels and a failed run."""
    place = tmp_path_factory.mktemp("terminal")
    env = of.envs.make("random-finite")
    result = of.simulate(env, of.agents.make("opo", env, episodes=40), 40, progress=False)
    result.settings["labels"] = [*NASTY[:4], "context 0"]
    result.save(place / "result.npz")
    agents = [{"name": "uniform", "label": label} for label in NASTY]
    # Labels are not part of a run's identity, so each agent has a different setting.
    agents = [{"name": "opo", "label": label, "options": {"eta_scale": 10.0 + i}} for i, label in enumerate(NASTY)]
    agents.append({"name": "opo", "label": "bad [/] one", "options": {"no": "such [option]"}})
    study = Study(
        "nasty", [{"name": "combination-lock", "label": "[/red] $\\foo$", "options": {"horizon": 3}}], agents, episodes=12, seeds=1
    )
    run_study(study, place / "s")
    return place


def check_clean(shown: bytes) -> str:
    text = shown.decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text), text
    return text


@pytest.mark.parametrize("words", [["show", "result.npz"], ["study", "status", "s", "--runs"], ["study", "resume", "s", "--workers", "1"]])
@pytest.mark.parametrize("columns", [40, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_any_name_in_any_terminal(place, words, columns, encoding):
    done = program(*words, folder=place, columns=columns, encoding=encoding)
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr
    for shown in (done.stdout, done.stderr):
        check_clean(shown.decode(encoding).encode())
    if columns == 100 and encoding == "utf-8" and words[0] == "show":
        text = done.stdout.decode()
        for label in ("[/red]", "[bold", "[link=http://x]y[/link]", "$\\foo$"):
            assert label in text


@pytest.mark.parametrize("columns", [20, 40, 60, 79])
def test_a_narrow_terminal_keeps_the_contexts_and_all_numbers(place, columns):
    wide = program("show", "result.npz", folder=place, columns=200).stdout.decode()
    narrow = program("show", "result.npz", folder=place, columns=columns).stdout.decode()
    assert "context 0" in narrow
    numbers = re.findall(r"\d+\.\d{4}|\d+\.\d%", wide)
    assert len(numbers) > 10
    assert re.findall(r"\d+\.\d{4}|\d+\.\d%", narrow)[: len(numbers)] == numbers


@pytest.mark.parametrize("words", [["--help"], ["envs"], ["agents"], ["describe", "combination-lock"], ["theory"], ["run", "--help"]])
def test_every_command_in_an_ascii_terminal_of_40_columns(tmp_path, words):
    done = process(*words, folder=tmp_path, columns=40, encoding="ascii")
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")


@pytest.mark.parametrize("label", NASTY)
def test_labels_in_bars(monkeypatch, label):
    from opo_fast._support.progress import Bars, bar

    for encoding in ("utf-8", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stderr", stream)
        bars = Bars()
        bars.set(label, label, 1, 2, label)
        bars.say(label)
        bars.keep(set())
        bars.stop()
        with bar(label, 3, True) as shown:
            shown(3, lambda: label)
        stream.flush()
        check_clean(stream.buffer.getvalue().decode(encoding).encode())


def test_refusals_with_nasty_names_are_one_clean_line(tmp_path):
    for name in NASTY:
        done = program("run", name, folder=tmp_path)
        assert done.returncode == 2
        assert check_clean(done.stderr).count("\n") == 1


@pytest.mark.parametrize("label", NASTY)
def test_any_label_in_pictures(label, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra 'plot') is not installed")
    from opo_fast.study import Results, figures
    from opo_fast.study.statistics import heatmap

    env = of.envs.make("combination-lock", horizon=3)
    result = of.simulate(env, of.agents.make("uniform", env, episodes=5), 5, progress=False)
    result.settings.update(agent=label, environment=label)
    axes = result.plot(tmp_path / "a.svg")
    axes.figure.canvas.draw()
    agents = [{"name": "opo", "label": label, "grid": {"bonus_scale": [1e-6, 2e-6], "eta_scale": [10, 50]}}]
    environments = [{"name": "combination-lock", "label": label, "options": {"horizon": 3}}]
    run_study(Study("x", environments, agents, episodes=5), tmp_path / "s")
    results = Results(tmp_path / "s")
    figures.curves(results).canvas.draw()
    figures.draw_heatmap(heatmap(results, label, label)[0]).canvas.draw()


STUDY = """
name = "plain"
episodes = 5
environments = [{ name = "combination-lock", options = { horizon = 3 } }]
agents = ["uniform"]
"""
HIDDEN = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\nfrom opo_fast.cli import main\nmain()\n"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["compare", "combination-lock", "-T", "5", "--seeds", "1", "--agents", "uniform"], ["no picture: plots need matplotlib: "]),
        (["run", "combination-lock", "-T", "5"], ["no picture: plots need matplotlib: "]),
        (["study", "run", "study.toml", "--workers", "1", "--report"], ["no picture: plots need matplotlib: "]),
    ],
)
def test_without_matplotlib_the_work_is_done_and_a_line_says_what_is_missing(tmp_path, words, lines):
    (tmp_path / "study.toml").write_text(STUDY)
    script = HIDDEN.format(names=["matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"])
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for line in lines:
        assert done.stderr.count(line) == 1
    if words[0] == "study":
        page = (tmp_path / "plain-study" / "report.html").read_text()
        assert "No picture: plots need matplotlib" in page


def test_without_jinja2_a_study_ends_with_a_line_and_a_report_alone_is_refused(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    script = "import importlib.util as u\nfind = u.find_spec\n"
    script += "u.find_spec = lambda name, *rest: None if name == 'jinja2' else find(name, *rest)\n"
    script += "from opo_fast.cli import main\nmain()\n"

    def call(*words):
        return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path, check=False)

    done = call("study", "run", "study.toml", "--workers", "1", "--report")
    assert done.returncode == 0
    assert "no report: reports need jinja2: " in done.stderr
    done = call("study", "report", "plain-study")
    assert done.returncode == 2
    assert "reports need jinja2: " in done.stderr


def test_the_extra_of_studies_has_what_a_study_needs():
    root = pathlib.Path(of.__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("not in a checkout")
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {re.split(r"[<>=]", name)[0] for name in extras["study"]} == {"filelock", "jinja2", "joblib"}
    assert CliRunner().invoke(commands.app, ["--version"]).stdout == f"opo-fast {of.__version__}\n"
