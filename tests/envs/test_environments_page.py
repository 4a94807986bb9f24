"""docs/environments.md: the list is that of the registry, each environment has values and a picture, and the values are right."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import runpy

import numpy as np
import pytest

from opo_fast import envs

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "environments.md").read_text()
VALUES = re.findall(r"^\| `([\w-]+)` \|" + r" (\d+\.\d{4}) \|" * 4, PAGE, flags=re.MULTILINE)
SCRIPT = DOCS.parent / "bench" / "environment_pictures.py"
EXTRA = {"icu": "icu_sepsis", "gym": "gymnasium", "sklearn": "sklearn", "trial": "lifelines"}


def backward(mdp):
    """Value of the uniform and of the optimal policy at the first state: the Bellman equations, a layer at a time."""
    layout = mdp.layout
    allowed = np.ones(layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
    uniform = best = np.zeros(0)
    blocks = [block.reshape(-1, block.shape[-1]) for block in mdp.transitions.arrays()]
    for h in reversed(range(layout.horizon)):
        here = layout.layer(h)
        q = [mdp.losses[here]] * 2
        if h < len(blocks):
            q = [mdp.losses[here] + (blocks[h] @ v).reshape(-1, layout.n_actions) for v in (uniform, best)]
        uniform = np.where(allowed[here], q[0], 0).sum(axis=1) / allowed[here].sum(axis=1)
        best = np.where(allowed[here], q[1], np.inf).min(axis=1)
    return uniform[0], best[0]


def test_every_environment_has_a_row_values_and_a_picture():
    missing = set(envs.names()) - {row[0] for row in VALUES}
    assert not missing, f"docs/environments.md lacks {sorted(missing)}: run `python bench/environment_pictures.py NAME` for each"
    assert [row[0] for row in VALUES] == envs.names()
    for name in envs.names():
        assert len(re.findall(rf"^\| `{name}` \|", PAGE, flags=re.MULTILINE)) == 2
        assert re.search(rf"^!\[.{{40,}}\]\(images/environments/{name}\.png\)$", PAGE, flags=re.MULTILINE)
        picture = DOCS / "images" / "environments" / f"{name}.png"
        assert 5_000 < picture.stat().st_size < 60_000


def test_the_page_is_what_its_script_writes():
    updated = runpy.run_path(str(SCRIPT))["updated"]
    assert updated(PAGE, {}) == PAGE, (
        "docs/environments.md is out of date: run `python bench/environment_pictures.py` with no or the new names"
    )
    # A new environment gets a row of values and a picture in the order of the registry; the texts of all others are kept.
    shortened = "\n".join(line for line in PAGE.split("\n") if "`taxi` | 1" not in line and "taxi.png" not in line)
    again = updated(shortened, {"taxi": "| `taxi` | 1.0000 | 0.5000 | 0.2500 | 0.7500 |"})
    assert "| `taxi` | 1.0000 | 0.5000 | 0.2500 | 0.7500 | backward induction |\n| `cliff-walking` | 2." in again
    assert [line for line in again.split("\n") if "taxi" not in line] == [line for line in PAGE.split("\n") if "taxi" not in line]


@pytest.mark.parametrize("row", VALUES, ids=[row[0] for row in VALUES])
def test_the_values_of_the_page(row):
    name, *shown = row
    extra = envs.info(name).extra
    if extra and importlib.util.find_spec(EXTRA[extra]) is None:
        pytest.skip(f"needs the extra {extra}")
    env = envs.make(name)
    facts = envs.describe(env, most=1000, progress=False)["contexts"]
    for mdp, context in list(zip(env.mdps, facts, strict=True))[:12]:
        assert (context["uniform"], context["optimum"]) == pytest.approx(backward(mdp), abs=1e-9)
    chance = np.array([context["probability"] for context in facts])
    uniform, best = (np.array([context[key] for context in facts]) for key in ("uniform", "optimum"))
    assert [f"{value:.4f}" for value in (chance @ uniform, chance @ best, best.min(), best.max())] == shown
