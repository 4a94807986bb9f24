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
from numba.extending import register_jitable

__all__ = ["COMPILED", "KEY", "brief", "called", "copied", "inlined", "kernel"]

COMPILED = not numba.config.DISABLE_JIT
"""False where NUMBA_DISABLE_JIT runs the kernels as plain Python, in one thread."""

_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
if hasattr(cpu_target.options, "_nrt"):
    # Kernels allocate no arrays, so they do without Numba's runtime (NRT): with it, each inlined part counts references to its
    # arrays, once per layer, which is a third of the time of a small sweep. The option is not public, so it may be missing.
    _OPTIONS["_nrt"] = False


def _fingerprint() -> str:
    """Hash of the options and of all kernel sources, since a cached kernel contains the code of its inlined callees."""
    digest = hashlib.sha256(repr(sorted(_OPTIONS.items())).encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} boundscheck={numba.config.BOUNDSCHECK}"


KEY = "" if numba.config.DISABLE_JIT else _fingerprint()
"""Identifies the kernels: compiled code that uses them must be compiled again when it changes."""


class _KernelCache(caching.FunctionCache):
    """Numba's disk cache with the sources of all kernels in the key; Numba itself considers only the file of the kernel."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), KEY)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A damaged file (empty, cut short, from another program) counts as a miss."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            _warn_once(f"a file of the kernel cache in {self.cache_path} cannot be read", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """A kernel that cannot be written to the cache is compiled again by the next process."""
        try:
            try:
                super().save_overload(sig, data)
            except OSError:
                raise
            except Exception:
                # Numba reads the index before adding to it: replace a damaged index by a new one.
                self.flush()
                super().save_overload(sig, data)
        except OSError as error:
            _warn_once(f"the kernel cache in {self.cache_path} cannot be written", error)


_warned = False


def _warn_once(what: str, error: Exception) -> None:
    """Warn about the kernel cache, once in a process."""
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
        _warn_once("no kernel cache can be written", error)
    return compiled


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` lazily, cache it on disk, and let other Python threads run meanwhile."""
    return _compile(function, nogil=True)


def brief(function: Callable[..., Any]) -> Any:
    """Like `kernel`, for work of microseconds: keeps the interpreter's lock, since getting it back may take milliseconds."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels that LLVM puts into each of its callers: passing many arrays to a function costs more than a small layer.

    It is compiled once for all callers, and is plain Python if it is called from Python.
    """
    return register_jitable(forceinline=True, no_cfunc_wrapper=True, **_OPTIONS)(function)


def called(function: Callable[..., Any]) -> Any:
    """A part that stays a function of its own: its loops get registers that they need not share with the kernel around them.

    A call costs some 20 ns. It is compiled once for all callers, and is plain Python if it is called from Python.
    """
    return register_jitable(no_cfunc_wrapper=True, **_OPTIONS)(function)


def copied(function: Callable[..., Any]) -> Any:
    """A part whose statements Numba copies into each of its callers before it compiles them.

    Compiling takes longer than with `inlined`: Numba copies again what was copied into the part. In a few parts that pass through every
    transition the code is up to a tenth faster.
    """
    return numba.njit(inline="always", **_OPTIONS)(function)
