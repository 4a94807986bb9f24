"""Every Numba option of the package is decided here."""

from __future__ import annotations

import hashlib
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core import caching
from numba.core.registry import cpu_target

__all__ = ["COMPILED", "brief", "inlined", "kernel"]

COMPILED = not numba.config.DISABLE_JIT
"""False where NUMBA_DISABLE_JIT runs the kernels as plain Python, in one thread."""

_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
if hasattr(cpu_target.options, "_nrt"):
    # Kernels make no arrays. With Numba's runtime, each part that is inlined into a kernel counts the references of its
    # arrays, once a layer: a third of a small sweep. The option is not a public one, hence the question.
    _OPTIONS["_nrt"] = False


def _fingerprint() -> str:
    """Hash of every kernel source and of the options: a cached kernel inlines its callees, so all of them are its key."""
    digest = hashlib.sha256(repr(sorted(_OPTIONS.items())).encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} boundscheck={numba.config.BOUNDSCHECK}"


_KEY = "" if numba.config.DISABLE_JIT else _fingerprint()


class _KernelCache(caching.FunctionCache):
    """Numba's disk cache, keyed also by the sources of all kernels (Numba alone looks at the kernel's own file)."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _KEY)


_warned = False


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    global _warned
    compiled = numba.njit(**_OPTIONS, **options)(function)
    if numba.config.DISABLE_JIT:
        return compiled
    try:
        compiled._cache = _KernelCache(function)
    except RuntimeError as error:
        if not _warned:
            _warned = True
            warnings.warn(
                f"kernels are compiled anew in every process, since no cache can be written ({error}); "
                "set NUMBA_CACHE_DIR to a writable folder",
                RuntimeWarning,
                stacklevel=4,
            )
    return compiled


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` lazily, cache it on disk, and let other Python threads run meanwhile."""
    return _compile(function, nogil=True)


def brief(function: Callable[..., Any]) -> Any:
    """As `kernel`, for work of microseconds: a lock given up for so short may take milliseconds to get back."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels that is written into each of its callers: handing over many arrays costs more than a small layer."""
    return numba.njit(inline="always", **_OPTIONS)(function)
