"""Formatting of numbers and names for people."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from opo_fast._support.text import count, duration, figure, interval, plain, printable, setting, share

NAN = math.nan


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (-0.0, ".2f", "0.00"),
        (-0.001, ".2f", "0.00"),
        (-0.01, ".2f", "-0.01"),
        (NAN, ".2f", "-"),
        (12345.6, ",.0f", "12,346"),
        (-0.0, ".4g", "0"),
    ],
)
def test_numbers(value, form, text):
    assert figure(value, form) == text


def test_the_rest():
    assert share(-0.0001) == "0.0%"
    assert share(0.256, ".0%") == "26%"
    assert interval((1.0, 0.5, 1.5, 3), ".1f") == "1.0 [0.5, 1.5]"
    assert interval((1.0, NAN, NAN, 1), ".1f") == "1.0"
    assert interval((NAN, NAN, NAN, 0)) == "-"
    assert [count(n, "seed") for n in (0, 1, 2000)] == ["0 seeds", "1 seed", "2,000 seeds"]
    assert [duration(x) for x in (None, NAN, 0.4, 61, 3725)] == ["?", "?", "0:00", "1:01", "1:02:05"]
    assert [setting(x) for x in (1e-6, 50, True, "x")] == ["1e-06", "50", "True", "x"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x9b2J", r"\x9b2J"),  # The control sequence introducer in one character.
        ("a\u202eb", r"a\u202eb"),  # The rest of the line would be shown from right to left.
        ("a\u2028b", r"a\u2028b"),
        ("a\u00a0b", "a b"),
        ("\ud800", r"\ud800"),
        ("é 漢 [/red]", "é 漢 [/red]"),
    ],
)
def test_no_name_is_a_command_to_the_terminal(text, shown):
    assert printable(text) == shown


def test_dollar_signs_begin_no_formula():
    pytest.importorskip("matplotlib", reason="matplotlib (extra 'plot') is not installed")
    from matplotlib.cbook import is_math_text

    for text in (r"$\foo$", "$", "$$", r"a \$ b $x_1$"):
        assert not is_math_text(plain(text))


def test_importing_the_package_and_a_run_need_neither_typer_nor_rich():
    script = """
import sys
for name in ("typer", "rich", "click", "matplotlib", "joblib", "jinja2", "filelock"):
    sys.modules[name] = None
import opo_fast as of
env = of.envs.make("combination-lock", horizon=3)
assert of.simulate(env, of.agents.make("uniform", env, episodes=3), 3).episodes == 3
assert len(of.compare(env, ["uniform"], 3, 1).results) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True)
