"""The origin of a run: versions, and digests of the files that its environment and its agent come from.

The origin is part of a run's identity, so that runs of an edited model or module are never mistaken for runs of the current one.
"""

from __future__ import annotations

import glob
import os
import pathlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._support.modules import digest, module_file
from .grid import Choice, Run

__all__ = ["changes", "mixtures", "origin", "versions"]

_BESIDE = ("lab", "sta", "srew", "trew", "rew")
"""Endings of the files that belong to a .tra file with the same stem."""


def versions() -> dict[str, str]:
    """The versions and the machine on which a run depends."""
    import numba
    import scipy

    from .. import __version__

    return {
        "opo_fast": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def origin(run: Run, root: str) -> dict[str, str]:
    """The package's version, and a digest of each file from which the run's environment and agent come."""
    found = {"opo_fast": versions()["opo_fast"]}
    for kind, choice in (("environment", run.environment), ("agent", run.agent)):
        for path in sorted(set(_files(choice, root))):
            found[f"{kind}: {path.name}"] = digest(path)
    return found


def changes(then: Any, now: Mapping[str, str]) -> list[str]:
    """What differs between the origin stored with a run and the current one; empty if none was stored."""
    if not isinstance(then, Mapping):
        return []
    names = [name for name in dict.fromkeys([*now, *then]) if then.get(name) != now.get(name)]
    return [f"opo_fast {then[name]}, and this is {now[name]}" if name == "opo_fast" and name in then else name for name in names]


def mixtures(metas: Iterable[Mapping[str, Any]]) -> list[str]:
    """Messages about versions and files that differ between runs of the same environment or agent."""
    seen: dict[tuple[str, str], set[str]] = {}
    for meta in metas:
        for name, value in (meta.get("origin") or {}).items():
            kind = name.partition(":")[0]
            label = meta[kind]["label"] if kind in ("environment", "agent") else ""
            seen.setdefault((label, name), set()).add(value)
    return [
        f"the runs of {label!r} were done with {len(values)} different versions of its file {name.partition(': ')[2]!r}"
        if label
        else f"the runs were done with different versions of {name}: {', '.join(sorted(values))}"
        for (label, name), values in sorted(seen.items())
        if len(values) > 1
    ]


def _files(choice: Choice, root: str) -> Iterator[pathlib.Path]:
    """The files of a choice: its module, its model with the files that belong to it, and files named in its options."""
    if ":" in choice.name:
        source = module_file(choice.name.partition(":")[0], root)
        if source is not None:
            yield source
    else:
        model = pathlib.Path(root, choice.name)
        if os.path.isfile(model):
            yield model
            if model.suffix == ".tra":
                for ending in _BESIDE:
                    yield from model.parent.glob(f"{glob.escape(model.stem)}*.{ending}")
    for value in choice.options.values():
        if isinstance(value, str) and 0 < len(value) < 1000 and "\0" not in value:
            yield from (path for path in (pathlib.Path(root, value), pathlib.Path(value)) if os.path.isfile(path))
