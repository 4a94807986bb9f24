"""Functions by their import path ``module:function``, and the source files of modules."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import pathlib
import sys
from typing import Any

from ..errors import OpoError

__all__ = ["digest", "load", "module_file"]

_imported: dict[str, str] = {}
"""Digest of the source of each module that `load` has imported."""


def load(path: str, root: str) -> Any:
    """The function of an import path ``module:function``; modules in the folder `root` take precedence."""
    module, _, name = path.partition(":")
    _drop_stale(module, root)
    added = root not in sys.path
    if added:
        sys.path.insert(0, root)
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise OpoError(f"{path!r}: there is no module {module!r}, neither installed nor in {root!r}") from None
        raise
    except AttributeError:
        raise OpoError(f"{path!r}: the module {module!r} has no {name!r}") from None
    finally:
        if added:
            with contextlib.suppress(ValueError):
                sys.path.remove(root)


def _drop_stale(module: str, root: str) -> None:
    """Forget an imported module that comes from another folder, or that was edited since, so that it is imported again."""
    source = module_file(module, root)
    if source is None or module == "__main__":
        return
    loaded = getattr(sys.modules.get(module), "__file__", None)
    now = digest(source)
    if loaded is not None and os.path.realpath(loaded) != os.path.realpath(source):
        package = module.partition(".")[0]
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]
    elif _imported.get(module, now) != now:
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    _imported[module] = now


def digest(path: pathlib.Path) -> str:
    """The checksum of a file's content; an unchanged file is read only once."""
    try:
        there = path.stat()
    except OSError:
        return "gone"
    return _digest(path, there.st_mtime_ns, there.st_size, there.st_ino)


@functools.lru_cache(256)
def _digest(path: pathlib.Path, *_: int) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return "unreadable"


def module_file(module: str, root: str) -> pathlib.Path | None:
    """The source file of a module, found without importing it; modules in the folder `root` take precedence."""
    if module == "__main__":
        known = getattr(sys.modules[module], "__file__", None)
        return None if known is None else pathlib.Path(known)
    parts = module.split(".")
    for place in (root, *sys.path):
        base = pathlib.Path(place, *parts)
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if os.path.isfile(path):
                return path
    return None
