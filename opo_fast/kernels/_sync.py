"""Several threads inside one kernel: they are called in, meet after each layer, and are let go.

Handing parts of a layer to a thread pool costs some 50 microseconds a layer; here threads enter a kernel once and meet
after each layer. They never need the interpreter: a worker waits in `serve`, and a call made with `n` threads writes down
its own arguments and address, opens a door, and waits a moment. Whoever came in by then takes part; the door is shut, and
the number of threads is what it turned out to be. A worker that comes late finds the door shut and goes back to wait, so a
processor that is busy costs no more than that moment.

All of this happens in `gate`, an int64 array of `GATE` zeros. Waiting means looking for some microseconds, then sleeping
until another thread changes the word that is waited for; beside each such word is the number of threads that sleep on it.
"""

from __future__ import annotations

import inspect
import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._jit import COMPILED, brief, inlined, kernel

__all__ = ["GATE", "JOINED", "KEEP", "PATIENCE", "STOP", "entrance", "meet", "release", "serve"]

# Each word that several threads look at has a cache line, and sleepers are counted in the word after it.
_TURN, _COUNT, _JOB, _GO, _DONE = 0, 8, 16, 24, 32
_DOOR, _WANTED, _CODE, _FRAME, _TOLD = 40, 41, 42, 43, 44
STOP, PATIENCE, JOINED = 48, 49, 50
"""Words of `gate`: workers end where it is not 0; nanoseconds for workers to come in; threads of the last call."""
GATE = 64

SPIN = 10_000
"""Nanoseconds of looking before sleeping: a wake-up costs as much."""
_IDLE = 3_000
"""The same where there is no work to wait for."""
_NAPS = 1000
"""Where the system offers no sleep on a word: naps of a millisecond, after which a worker without work ends."""

_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine(), 0) * (sys.platform == "linux")
"""Number of the system call that sleeps on a word; 0: naps instead."""
KEEP = _FUTEX > 0
"""Whether a worker waits as long as it takes."""
_INT, _I32, _VOID = ir.IntType(64), ir.IntType(32), ir.VoidType()


def _address(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


def _extern(builder: Any, name: str, result: Any, arguments: list[Any], more: bool = False) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments, var_arg=more), name)


def _futex(builder: Any, address: Any, operation: int, value: Any) -> None:
    constant = [ir.Constant(_INT, _FUTEX), builder.ptrtoint(address, _INT), ir.Constant(_INT, 128 + operation), value, ir.Constant(_INT, 0)]
    builder.call(_extern(builder, "syscall", _INT, [_INT], more=True), constant)


if COMPILED:

    @intrinsic
    def _get(typingctx: Any, array: Any, i: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load_atomic(_address(context, builder, sig, args), "seq_cst", 8, typ=_INT)

        return types.int64(array, types.int64), generate

    def _read_and(operation: str) -> Any:
        @intrinsic
        def change(typingctx: Any, array: Any, i: Any, x: Any) -> Any:
            """The word's value, which then is changed."""

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                return builder.atomic_rmw(operation, _address(context, builder, sig, args), args[2], "seq_cst")

            return types.int64(array, types.int64, types.int64), generate

        return change

    _add = _read_and("add")
    _swap = _read_and("xchg")

    @intrinsic
    def _replace(typingctx: Any, array: Any, i: Any, old: Any, new: Any) -> Any:
        """Put `new` where the word is `old`; whether it was."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            result = builder.cmpxchg(_address(context, builder, sig, args), args[2], args[3], "seq_cst", "seq_cst")
            return builder.extract_value(result, 1)

        return types.boolean(array, types.int64, types.int64, types.int64), generate

    @intrinsic
    def _now(typingctx: Any) -> Any:
        """Nanoseconds of a clock that runs on."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if sys.platform == "win32":
                return ir.Constant(_INT, 0)
            time = cgutils.alloca_once(builder, ir.ArrayType(_INT, 2))
            clock = ir.Constant(_I32, 6 if sys.platform == "darwin" else 1)
            builder.call(_extern(builder, "clock_gettime", _I32, [_I32, time.type]), [clock, time])
            seconds, rest = (builder.load(cgutils.gep_inbounds(builder, time, 0, i)) for i in (0, 1))
            return builder.add(builder.mul(seconds, ir.Constant(_INT, 10**9)), rest)

        return types.int64(), generate

    @intrinsic
    def _pause(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if platform.machine() in ("x86_64", "AMD64"):
                builder.call(_extern(builder, "llvm.x86.sse2.pause", _VOID, []), [])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def _sleep(typingctx: Any, array: Any, i: Any, value: Any, nap: Any) -> Any:
        """Sleep while the word is `value`, or for `nap` microseconds where the system cannot; it may wake for no reason."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if _FUTEX:
                low = builder.and_(args[2], ir.Constant(_INT, 0xFFFFFFFF))
                _futex(builder, _address(context, builder, sig, args), 0, low)
            elif sys.platform != "win32":
                builder.call(_extern(builder, "usleep", _I32, [_I32]), [builder.trunc(args[3], _I32)])
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64, types.int64), generate

    @intrinsic
    def _wake(typingctx: Any, array: Any, i: Any, most: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if _FUTEX:
                _futex(builder, _address(context, builder, sig, args), 1, args[2])
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), generate

    @intrinsic
    def _told(typingctx: Any, x: Any) -> Any:
        """1 where a kernel's result is true; nothing is not."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if isinstance(x, types.NoneType):
                return ir.Constant(_INT, 0)
            return builder.zext(context.is_true(builder, x, args[0]), _INT)

        return types.int64(x), generate

    @intrinsic
    def _code(typingctx: Any) -> Any:
        """Address of a function (frame, me) that calls the function around this with the arguments in `frame` (see `_frame`)."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            around = builder.function
            frame = ir.LiteralStructType([arg.type for arg in around.args])
            call = ir.Function(builder.module, ir.FunctionType(_VOID, [_INT, _INT]), f"{around.name}.again")
            call.linkage = "internal"
            inner = ir.IRBuilder(call.append_basic_block())
            saved = inner.inttoptr(call.args[0], frame.as_pointer())
            values = [inner.load(cgutils.gep_inbounds(inner, saved, 0, i)) for i in range(len(around.args))]
            # A place of its own for what it returns, and its own number, the first argument of an entrance.
            values[:2] = [inner.alloca(arg.type.pointee) for arg in around.args[:2]]
            values[2] = call.args[1]
            inner.call(around, values, attrs=("noinline",))
            inner.ret_void()
            return builder.ptrtoint(call, _INT)

        return types.int64(), generate

    @intrinsic
    def _frame(typingctx: Any) -> Any:
        """Address of a copy of the arguments of the function around this, as its machine code gets them."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            arguments = builder.function.args
            frame = cgutils.alloca_once(builder, ir.LiteralStructType([arg.type for arg in arguments]))
            for i, arg in enumerate(arguments):
                builder.store(arg, cgutils.gep_inbounds(builder, frame, 0, i))
            return builder.ptrtoint(frame, _INT)

        return types.int64(), generate

    @intrinsic
    def _run(typingctx: Any, code: Any, frame: Any, me: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.call(builder.inttoptr(args[0], ir.FunctionType(_VOID, [_INT, _INT]).as_pointer()), args[1:])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate


@brief
def _wait(gate, i, value, spin):
    """Wait while word `i` is `value`: look for `spin` nanoseconds, then sleep. False where naps went on for a second."""
    end = 0
    looks = 0
    while _get(gate, i) == value:
        _pause()
        looks += 1
        if looks % 32 == 0:
            now = _now()
            if end == 0:
                end = now + spin
            elif now >= end:
                break
    if _get(gate, i) == value:
        nap = 20
        naps = 0
        _add(gate, i + 1, 1)
        while _get(gate, i) == value and naps < _NAPS:
            _sleep(gate, i, value, nap)
            if not _FUTEX:
                nap = min(2 * nap, 1000)
                naps += nap // 1000
        _add(gate, i + 1, -1)
    return _get(gate, i) != value


@inlined
def _set(gate, i, value):
    """Change word `i` and wake whoever sleeps on it."""
    _swap(gate, i, value)
    if _get(gate, i + 1) > 0:
        _wake(gate, i, 1 << 30)


@inlined
def meet(gate, me, n):
    """Wait until all `n` threads are here, of which this is `me`; what each wrote before, all see after."""
    if n > 1:
        turn = _get(gate, _TURN)
        if _add(gate, _COUNT, 1) == n - 1:
            _swap(gate, _COUNT, 0)
            _set(gate, _TURN, turn + 1)
        else:
            while not _wait(gate, _TURN, turn, SPIN):
                pass


@brief
def _call_in(gate, n, code, frame):
    """Open the door to `n - 1` workers for as long as `gate[PATIENCE]` says; the number of threads, this one among them."""
    _swap(gate, _GO, 0)
    _swap(gate, _DONE, 0)
    _swap(gate, _TOLD, 0)
    _swap(gate, _WANTED, n - 1)
    _swap(gate, _CODE, code)
    _swap(gate, _FRAME, frame)
    _swap(gate, _DOOR, 0)
    _swap(gate, _JOB, _get(gate, _JOB) + 1)
    if _get(gate, _JOB + 1) > 0:
        _wake(gate, _JOB, n - 1)
    end = _now() + _get(gate, PATIENCE)
    looks = 0
    while _get(gate, _DOOR) < n - 1:
        _pause()
        looks += 1
        if looks % 8 == 0 and _now() >= end:
            break
    n = _swap(gate, _DOOR, -1) + 1
    _swap(gate, JOINED, n)
    if n > 1:
        _set(gate, _GO, n)
    return n


@inlined
def _enter(gate, me, n):
    # `_code` and `_frame` are about the function that this is written into.
    if me > 0:
        while not _wait(gate, _GO, 0, SPIN):
            pass
        n = _get(gate, _GO)
    elif n > 1:
        n = _call_in(gate, n, _code(), _frame())
    return n


@brief
def _leave(gate, me, n, told):
    """Wait until the others have left: the arguments are this thread's. What it was told, the others' words added."""
    if n > 1:
        if me > 0:
            _add(gate, _TOLD, told)
            # Nothing of this call may be touched after that.
            if _add(gate, _DONE, 1) == n - 2 and _get(gate, _DONE + 1) > 0:
                _wake(gate, _DONE, 1)
        else:
            done = _get(gate, _DONE)
            while done < n - 1:
                _wait(gate, _DONE, done, SPIN)
                done = _get(gate, _DONE)
            told += _get(gate, _TOLD)
    return told


@kernel
def serve(gate):
    """What a worker does: come in where a door is open, until `gate[STOP]` is not 0 (or, with naps, after an idle second)."""
    here = True
    while here and _get(gate, STOP) == 0:
        job = _get(gate, _JOB)
        door = _get(gate, _DOOR)
        if 0 <= door < _get(gate, _WANTED) and _replace(gate, _DOOR, door, door + 1):
            _run(_get(gate, _CODE), _get(gate, _FRAME), door + 1)
        else:
            here = _wait(gate, _JOB, job, _IDLE)


@brief
def release(gate):
    """Let all workers end."""
    _swap(gate, STOP, 1)
    _set(gate, _JOB, _get(gate, _JOB) + 1)


def entrance(function: Any) -> Any:
    """Compile `function`, which has arguments `me`, `n` and `gate`, as one that calls workers in.

    Parameters
    ----------
    function : a kernel
        Every thread calls it with the same arguments but `me`; all must make the same meetings.

    Returns
    -------
    kernel
        ``(me, n, gate, *the others in their order)``. Called with me = 0 and n threads wanted; it returns whether one of
        the threads returned something true (an int).
    """
    part = function.py_func
    names = list(inspect.signature(part).parameters)
    others = [name for name in names if name not in ("me", "n", "gate")]
    name = f"{part.__name__}_together"
    source = (
        f"def {name}(me, n, gate, {', '.join(others)}):\n"
        f"    n = _enter(gate, me, n)\n"
        f"    return _leave(gate, me, n, _told(_part({', '.join(names)})))\n"
    )
    # Compiled code is cached beside the kernel's: under the name of its file.
    scope = {"__name__": part.__module__, "_enter": _enter, "_leave": _leave, "_told": _told, "_part": inlined(part)}
    exec(compile(source, inspect.getfile(part), "exec"), scope)
    return kernel(scope[name])
