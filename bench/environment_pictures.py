"""Draw the pictures of environments, and update docs/environments.md: its list, its table of values, its pictures.

    python bench/environment_pictures.py                  # all, into docs/images/environments
    python bench/environment_pictures.py taxi trial       # some of them

The list comes from the registry of environments. A new environment also gets a row of values and a picture; where its optimum is
known from, and the description of the picture, can then be edited on the page, and are kept.

Left in a picture: the values in each context. Right: the occupancy of the optimal policy on the environment's map or layer by layer;
for patients, their outcomes; for a single step, the mean loss of each action. All in grey.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Mapping

import numpy as np

import opo_fast as of
from opo_fast import envs
from opo_fast.runs.plots import new_figure

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE, FOLDER = DOCS / "environments.md", DOCS / "images" / "environments"
MOST_CONTEXTS = 12
LAKE, CLIFF = "SFFFFHFHFFFHHFFG", "".join(["F" * 36, "S", "C" * 10, "G"])
STOCK, QUEUE = ("units of item 1", "units of item 2"), ("jobs in queue 1", "jobs in queue 2")


def grid(name: str) -> tuple[tuple[int, int], list[tuple[int, int] | None], dict[tuple[int, int], str], tuple[str, str]] | None:
    """Shape of the map, the cell of each state, letters on cells, names of the axes; None if the environment has no map."""
    if name in ("frozen-lake", "cliff-walking"):
        shape, letters = ((4, 4), LAKE) if name == "frozen-lake" else ((4, 12), CLIFF)
        cells = [divmod(s, shape[1]) for s in range(len(letters))]
        return shape, [*cells, None], {cell: letter for cell, letter in zip(cells, letters, strict=True) if letter != "F"}, ("", "")
    if name == "taxi":
        stops = {(0, 0): "R", (0, 4): "G", (4, 0): "Y", (4, 3): "B"}
        return (5, 5), [*[(s // 100, s // 20 % 5) for s in range(500)], None], stops, ("", "")
    if name == "resource-gathering":
        # "(3,1) gold" is the third cell from the left in the bottom row.
        places = [(5 - int(state[3]), int(state[1]) - 1) for state in envs.gathering_table().state_names]
        return (5, 5), places, {(4, 2): "home", (0, 2): "gold", (1, 4): "gem", (0, 3): "enemy", (1, 2): "enemy"}, ("", "")
    if name in ("inventory", "queue-network"):
        return (10, 10), [divmod(s, 10) for s in range(100)], {}, STOCK if name == "inventory" else QUEUE
    return None


def occupancy(env: envs.Environment, *, optimal: bool = True) -> list[np.ndarray]:
    """Probability of each state of each layer under the optimal or the uniform policy, averaged over the contexts."""
    total = np.zeros(env.layout.n_states)
    for mdp, chance in zip(env.mdps, env.probabilities, strict=True):
        total += chance * of.occupancy(mdp, of.solve(mdp).policy if optimal else mdp.uniform_policy()).sum(axis=1)
    return [total[env.layout.layer(h)] for h in range(env.layout.horizon)]


def draw_values(axes, facts: dict) -> None:
    """One line per context: optimum, uniform policy, worst policy."""
    rows = facts["contexts"]
    values = [tuple(round(row[key], 9) for key in ("optimum", "uniform", "worst")) for row in rows]
    labels = [row["label"] for row in rows]
    if len(rows) > MOST_CONTEXTS:
        assert len(set(values)) == 1
        values, labels = values[:1], [f"each of {facts['n_contexts']}"]
    for y, (best, uniform, worst) in enumerate(values):
        axes.plot([best, worst], [y, y], color="0.75", linewidth=1, zorder=0)
        axes.plot(best, y, "o", color="black", label="optimal policy" if y == 0 else None)
        axes.plot(uniform, y, "o", markerfacecolor="white", markeredgecolor="black", label="uniform policy" if y == 0 else None)
        axes.plot(worst, y, "|", color="0.4", markersize=9, label="worst policy" if y == 0 else None)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel("sum of losses of an episode", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.figure.legend(loc="outside upper left", ncols=3, fontsize=7, frameon=False, handletextpad=0.2, columnspacing=1)


def draw_map(axes, env: envs.Environment, shape, cells, letters, names) -> None:
    """Expected number of visits to each cell."""
    visits = np.zeros(shape)
    # The number of the single state in the first layer is not that of a cell.
    for layer in occupancy(env)[1:]:
        for cell, chance in zip(cells, layer, strict=True):
            if cell is not None:
                visits[cell] += chance
    image = axes.imshow(visits, cmap="Greys", vmin=0, aspect="equal")
    for (row, column), letter in letters.items():
        dark = visits[row, column] > 0.55 * visits.max()
        axes.text(column, row, letter, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    if names[0]:
        axes.set_ylabel(names[0], fontsize=8)
        axes.set_xlabel(names[1], fontsize=8)
        axes.tick_params(labelsize=7)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.set_title("visits of the optimal policy after the start", fontsize=8)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)


def draw_outcomes(axes, env: envs.Environment) -> None:
    """Shares of the patients who are still in care, have died and have survived, layer by layer."""
    for optimal in (True, False):
        layers = occupancy(env, optimal=optimal)[1:]
        steps = np.arange(1, len(layers) + 1)
        # The last three states are death, survival, and an end that is not reached here.
        shares = {
            "in care": [layer[:-3].sum() for layer in layers],
            "survived": [layer[-2] for layer in layers],
            "died": [layer[-3] for layer in layers],
        }
        for (what, share), marker in zip(shares.items(), "os^", strict=True):
            face = "black" if optimal else "white"
            label = what if optimal else None
            axes.plot(steps, share, marker=marker, markersize=4, color="black", linewidth=0.8, markerfacecolor=face, label=label)
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylim(0, 1)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="upper right")
    axes.set_title("patients (filled: optimal, open: uniform policy)", fontsize=8)


def draw_layers(axes, env: envs.Environment) -> None:
    """Probability of each state, layer by layer."""
    layers = occupancy(env)
    table = np.full((max(len(layer) for layer in layers), len(layers)), np.nan)
    for h, layer in enumerate(layers):
        table[: len(layer), h] = layer
    image = axes.imshow(table, cmap="Greys", vmin=0, vmax=1, aspect="auto", extent=(0.5, len(layers) + 0.5, table.shape[0] + 0.5, 0.5))
    axes.set_xlabel("layer", fontsize=8)
    axes.set_ylabel("state of the layer", fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=7)
    axes.set_title("probability under the optimal policy", fontsize=8)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)


def draw_losses(axes, env: envs.Environment) -> None:
    """Mean loss of each action in each context."""
    losses = np.stack([mdp.losses[0] for mdp in env.mdps], axis=1)
    image = axes.imshow(losses, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xlabel("context", fontsize=8)
    axes.set_ylabel("action", fontsize=8)
    axes.set_yticks(range(losses.shape[0]))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=7)
    axes.set_title("mean loss", fontsize=8)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)


def draw(name: str) -> str:
    """Write the picture, and return the row of the table."""
    env = envs.make(name)
    facts = envs.describe(env, most=1000, progress=False)
    figure = new_figure(7.0, 2.7)
    left, right = figure.subplots(1, 2)
    draw_values(left, facts)
    on_map = grid(name)
    if on_map is not None:
        draw_map(right, env, *on_map)
    elif name.startswith("icu-"):
        draw_outcomes(right, env)
    elif env.layout.horizon == 1:
        draw_losses(right, env)
    else:
        draw_layers(right, env)
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None})
    return row(name, facts)


def row(name: str, facts: dict) -> str:
    """Means over the contexts, and the span of the optimum."""
    contexts = facts["contexts"]
    chance = np.array([context["probability"] for context in contexts])
    uniform, best = (np.array([context[key] for context in contexts]) for key in ("uniform", "optimum"))
    return f"| `{name}` | {chance @ uniform:.4f} | {chance @ best:.4f} | {best.min():.4f} | {best.max():.4f} |"


def updated(page: str, rows: Mapping[str, str]) -> str:
    """The page with the list of the registry, these rows of values, and an entry for each environment that is new."""
    values = dict(re.findall(r"^(\| `[\w-]+` \|(?: \d+\.\d{4} \|){4}) (.+) \|$", page, flags=re.MULTILINE))
    origins = {_name(row): origin for row, origin in values.items()}
    rows = {**{_name(row): row for row in values}, **rows}
    pictures = {name: text for text, name in re.findall(r"^(!\[.*\]\(images/environments/([\w-]+)\.png\))$", page, flags=re.MULTILINE)}
    described = [name for name in envs.names() if name in rows]
    blocks = {
        "list": ["| name | what it is | sizes (states per layer) | contexts | origin |", "|---|---|---|---|---|"]
        + [f"| `{e.name}` | {e.summary} | {e.sizes} | {e.contexts} | {e.source} |" for e in map(envs.info, envs.names())],
        "values": [
            "| environment | uniform policy | optimum | smallest | largest | where the optimum is known from |",
            "|---|---|---|---|---|---|",
            *(f"{rows[name]} {origins.get(name, 'backward induction')} |" for name in described),
        ],
        "pictures": "\n\n".join(f"**{name}**\n\n{pictures.get(name, _picture(name))}" for name in described).split("\n"),
    }
    for key, lines in blocks.items():
        begin, end = page.index(f"<!-- {key} -->"), page.index(f"<!-- end of {key} -->")
        page = page[:begin] + "\n".join([f"<!-- {key} -->", "", *lines, "", ""]) + page[end:]
    return page


def _name(row: str) -> str:
    return row.split("`")[1]


def _picture(name: str) -> str:
    return f"![Left: values of each context. Right: where the optimal policy goes](images/environments/{name}.png)"


def main(names: list[str]) -> None:
    """Draw these environments, and update the page."""
    rows = {}
    for name in names:
        rows[name] = draw(name)
        print(rows[name], flush=True)
    PAGE.write_text(updated(PAGE.read_text(), rows))


if __name__ == "__main__":
    main(sys.argv[1:] or envs.names())
