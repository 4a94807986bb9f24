"""Formatting of numbers and names for people: in tables, plots, progress bars, messages and reports."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["count", "duration", "figure", "html_table", "interval", "plain", "printable", "setting", "share"]


def figure(value: float, form: str = ".4g") -> str:
    """A formatted number; a zero has no sign, NaN is "-"."""
    if math.isnan(value):
        return "-"
    text = format(value, form)
    return text.lstrip("-") if not text.strip("-+0.,e%") else text


def share(value: float, form: str = ".1%") -> str:
    """A share as a percentage; NaN is "-"."""
    return figure(value, form)


def interval(estimate: tuple[float, float, float, int], form: str = ".4g") -> str:
    """A mean with its confidence interval, if it has one, from the fields of `runs.statistics.Estimate`."""
    mean, low, high, _ = estimate
    if math.isnan(mean) or math.isnan(low):
        return figure(mean, form)
    return f"{figure(mean, form)} [{figure(low, form)}, {figure(high, form)}]"


def count(n: int, noun: str) -> str:
    """1 context, 2 contexts."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as 1:02:03; "?" if they are not known."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    hours, minutes = divmod(round(seconds) // 60, 60)
    rest = round(seconds) % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def setting(value: Any) -> str:
    """The value of a setting for labels and ticks; floats in their shortest form."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def printable(text: Any) -> str:
    """`text` in one line that is safe to print on a terminal: control and format characters are escaped."""
    return "".join(c if c == " " or unicodedata.category(c)[0] not in "CZ" else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else character.encode("unicode_escape").decode("ascii")


def plain(text: Any) -> str:
    """`text` escaped for matplotlib, which would take dollar signs for formulas."""
    return printable(text).replace("$", r"\$")


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *below: str) -> str:
    """An HTML table for notebooks with a title above it and lines `below` it; all texts are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    rest = "".join(f"<p>{html.escape(line)}</p>" for line in below if line)
    return f"<p>{html.escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
