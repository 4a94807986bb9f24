"""Where a run comes from: versions, and the contents of the files that its environment and its agent are made of.

They are part of a run's identity: runs of an edited model or module are never taken for runs of this one.
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
"""Endings of the files that belong to a .tra file of the same name."""


def versions() -> dict[str, str]:
    """Versions and machine that a run depends on."""
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
    """The package's version, and a digest of each file that the run's environment and agent come from."""
    found = {"opo_fast": versions()["opo_fast"]}
    for kind, choice in (("environment", run.environment), ("agent", run.agent)):
        for path in sorted(set(_files(choice, root))):
            found[f"{kind}: {path.name}"] = digest(path)
    return found


def changes(then: Any, now: Mapping[str, str]) -> list[str]:
    """What differs between the origin that is stored with a run and that of today; nothing where none was stored."""
    if not isinstance(then, Mapping):
        return []
    names = [name for name in dict.fromkeys([*now, *then]) if then.get(name) != now.get(name)]
    return [f"opo_fast {then[name]}, and this is {now[name]}" if name == "opo_fast" and name in then else name for name in names]


def mixtures(metas: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the runs of one environment or agent do not have in common: versions and files."""
    seen: dict[tuple[str, str], set[str]] = {}
    for meta in metas:
        for name, value in (meta.get("origin") or {}).items():
            kind = name.partition(":")[0]
            label = meta[kind]["label"] if kind in ("environment", "agent") else ""
            seen.setdefault((label, name), set()).add(value)
    return [
        f"runs of {label!r} were done with {len(values)} different contents of its file {name.partition(': ')[2]!r}"
        if label
        else f"the runs were done with different versions of {name}: {', '.join(sorted(values))}"
        for (label, name), values in sorted(seen.items())
        if len(values) > 1
    ]


def _files(choice: Choice, root: str) -> Iterator[pathlib.Path]:
    """The files that a choice names: its module, its model with what lies beside it, and files in its options."""
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
