"""A barrier for threads that run the same kernel: layers follow each other within a microsecond.

Handing parts of a layer to a thread pool costs some 50 microseconds a layer; here the threads enter a kernel once and
meet after each layer. `gate`, an int64 array of `GATE` zeros that they share, holds how many are here, how often they met,
a sign that lets all pass where it is not 0, and for each thread the processor on which it last waited.
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

__all__ = ["GATE", "meet"]

_PLACES = 64
GATE = 3 + _PLACES

_SPINS, _YIELDS = 4000, 200
"""Looks at the gate before the processor is offered to others, some 50 microseconds, and offers before a short sleep."""
_SOON = 100
"""The same where threads share a processor, as they do on a busy machine: whoever waits there keeps the other from coming."""
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
    def _processor(typingctx: Any) -> Any:
        """The number of the processor that runs this thread; -1 where the system does not tell."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if sys.platform != "linux":
                return ir.Constant(_INT, -1)
            i32 = ir.IntType(32)
            number = builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(i32, []), "sched_getcpu"), [])
            return builder.sext(number, _INT)

        return types.int64(), generate

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
def meet(gate, me, n):
    """Wait until all `n` threads are here, of which this is `me`; what each wrote before, all see after."""
    if n > 1:
        turn = _get(gate, 1)
        if _add(gate, 0) == n - 1:
            _set(gate, 0, 0)
            _set(gate, 1, turn + 1)
        else:
            spins = 0
            most = _SPINS
            while _get(gate, 1) == turn and _get(gate, 2) == 0:
                spins += 1
                if spins == _SOON and n <= _PLACES:
                    processor = _processor() + 1
                    _set(gate, 3 + me, processor)
                    for other in range(n):
                        if other != me and processor > 0 and _get(gate, 3 + other) == processor:
                            most = _SOON
                _pause(spins > most, spins > most + _YIELDS)
