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

__all__ = ["COMPILED", "KEY", "brief", "inlined", "kernel"]

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


KEY = "" if numba.config.DISABLE_JIT else _fingerprint()
"""What code compiled from these kernels depends on beside its own source."""


class _KernelCache(caching.FunctionCache):
    """Numba's disk cache, keyed also by the sources of all kernels (Numba alone looks at the kernel's own file)."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), KEY)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A file that is damaged (empty, cut short, of another program) is a miss."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            _say(f"a file of the kernel cache in {self.cache_path} cannot be read", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """A kernel that cannot be written is compiled anew by the next process."""
        try:
            try:
                super().save_overload(sig, data)
            except OSError:
                raise
            except Exception:
                # Numba reads the index before it adds to it: begin a new one in the place of a damaged one.
                self.flush()
                super().save_overload(sig, data)
        except OSError as error:
            _say(f"the kernel cache in {self.cache_path} cannot be written", error)


_warned = False


def _say(what: str, error: Exception) -> None:
    """Warn of the cache, once in a process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{what} ({type(error).__name__}: {error}), so kernels are compiled in every process; set NUMBA_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=2,
        )


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    compiled = numba.njit(**_OPTIONS, **options)(function)
    if numba.config.DISABLE_JIT:
        return compiled
    try:
        compiled._cache = _KernelCache(function)
    except (RuntimeError, OSError) as error:
        _say("no kernel cache can be written", error)
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
