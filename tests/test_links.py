"""No dead links: what the pages and the texts beside the README link to or name exists."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?:(?<=`)|(?<=python )|(?<=bash ))((?:bench|tests|docs|examples|opo_fast|packaging|\.ci)/[\w./-]*\w)")
HEADING = re.compile(r"^#+ +(.+?) *$", flags=re.MULTILINE)


def prose(page: pathlib.Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of the headings in a page."""
    plain = (re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in HEADING.findall(text))
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        # Reference pages are made from docstrings, so only mkdocs, in strict mode, can check their anchors.
        if anchor and "reference" not in target.parts:
            assert anchor in anchors(prose(target)), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_files_that_are_named_exist(page):
    if page.name == "CHANGELOG.md":
        return  # The changelog names files of the past.
    for name in NAMED.findall(prose(page)):
        assert (ROOT / name).exists(), f"there is no {name}"


def test_the_patterns_find_what_they_should():
    assert LINK.findall("see [a](b.md#c), ![d](e.png)") == ["b.md#c", "e.png"]
    assert NAMED.findall("`bench/x.py` and `python bench/y.py 3`, `bash .ci/run`") == ["bench/x.py", "bench/y.py", ".ci/run"]
    assert anchors("# A page\n\n## Your own `MDP`!\n") == {"a-page", "your-own-mdp"}
