"""A barrier for threads that run the same kernel: layers follow each other within a microsecond.

Handing parts of a layer to a thread pool costs some 50 microseconds a layer; here the threads enter a kernel once and
meet after each layer. `gate` is an int64 array of three zeros that they share; a third entry that is not 0 lets all pass.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._jit import inlined

__all__ = ["meet"]

_SPINS, _YIELDS = 4000, 200
"""Looks at the gate before the processor is offered to others, some 50 microseconds, and offers before a short sleep."""
_INT, _VOID = ir.IntType(64), ir.VoidType()


def _address(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


if not numba.config.DISABLE_JIT:

    @intrinsic
    def _add(typingctx: Any, array: Any, i: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.atomic_rmw("add", _address(context, builder, sig, args), ir.Constant(_INT, 1), "seq_cst")

        return types.int64(array, types.int64), generate

    @intrinsic
    def _get(typingctx: Any, array: Any, i: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load_atomic(_address(context, builder, sig, args), "acquire", 8, typ=_INT)

        return types.int64(array, types.int64), generate

    @intrinsic
    def _set(typingctx: Any, array: Any, i: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store_atomic(args[2], _address(context, builder, sig, args), "release", 8)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), generate

    @intrinsic
    def _pause(typingctx: Any, offer: Any, sleep: Any) -> Any:
        """Ease off for some cycles; with `offer`, let another thread have the processor; with `sleep`, for 20 microseconds."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if platform.machine() in ("x86_64", "AMD64"):
                pause = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VOID, []), "llvm.x86.sse2.pause")
                builder.call(pause, [])
            if sys.platform != "win32":
                i32 = ir.IntType(32)
                with builder.if_then(args[0]):
                    builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, []), "sched_yield"), [])
                with builder.if_then(args[1]):
                    nap = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, [i32]), "usleep")
                    builder.call(nap, [ir.Constant(i32, 20)])
            return context.get_dummy_value()

        return types.void(types.boolean, types.boolean), generate


@inlined
def meet(gate, n):
    """Wait until all `n` threads are here; what each wrote before, all see after."""
    if n > 1:
        turn = _get(gate, 1)
        if _add(gate, 0) == n - 1:
            _set(gate, 0, 0)
            _set(gate, 1, turn + 1)
        else:
            spins = 0
            while _get(gate, 1) == turn and _get(gate, 2) == 0:
                spins += 1
                _pause(spins > _SPINS, spins > _SPINS + _YIELDS)
