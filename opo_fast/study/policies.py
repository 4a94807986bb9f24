"""The policies that the first seed of each setting has learned, stored as tables of bounded size for the report."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._support.seal import digest_of
from ..errors import OpoError
from ..runs.policy_table import policy_table
from ..runs.simulation import Simulation
from .storage import Store, read_json, write_json

__all__ = ["keep", "kept"]

CONTEXTS = 4
"""Tables are stored for so many contexts, those that were played most."""
ROWS = 40
"""Largest number of states in a table."""
LETTERS = 80
"""Largest number of characters in a cell."""


def keep(store: Store, id: str, simulation: Simulation) -> None:
    """Write the policy tables of a finished run, or the reason why agent or environment give none."""
    tables: list[dict[str, Any]] = []
    reason = ""
    try:
        for context in _contexts(simulation):
            shown = policy_table(simulation.agent, context, simulation.cmdp).shown(ROWS)._asdict()
            tables.append({**shown, "rows": [[_cut(cell) for cell in row] for row in shown["rows"]], "title": _cut(shown["title"], 3)})
    except Exception as error:  # A user's agent may raise anything here, but its run is finished.
        tables, reason = [], f"{'' if isinstance(error, OpoError) else f'{type(error).__name__}: '}{error}"
    content = {"id": id, "tables": tables, "reason": reason}
    write_json(_path(store, id), {"content": content, "sum": _sum(content)})


def kept(store: Store, id: str) -> tuple[dict[str, Any] | None, str]:
    """What `keep` wrote, or None if there is nothing, and a message if the file is damaged."""
    path = _path(store, id)
    if not path.exists():
        return None, ""
    found = read_json(path)
    content = found.get("content") if isinstance(found, dict) else None
    if not isinstance(content, dict) or found.get("sum") != _sum(content) or content.get("id") != id:
        return None, f"{str(path)!r} is damaged or was edited: it is left out"
    return content, ""


def _path(store: Store, id: str) -> pathlib.Path:
    return store.policies / f"{id}.json"


def _sum(content: Any) -> str:
    return digest_of(json.dumps(content, sort_keys=True))


def _cut(text: str, times: int = 1) -> str:
    return text if len(text) <= times * LETTERS else f"{text[: times * LETTERS - 3]}..."


def _contexts(simulation: Simulation) -> Sequence[Any]:
    """The contexts that were played most, the earlier ones first among equals; only the last one if none was played twice."""
    counts = np.bincount(simulation.result().context_index)
    most = np.argsort(-counts, kind="stable")[:CONTEXTS]
    if counts[most[0]] == 1 or not all(number < len(simulation.contexts) for number in most):
        return [simulation.context(simulation.episode - 1)]
    return [simulation.contexts[number] for number in most if counts[number]]
