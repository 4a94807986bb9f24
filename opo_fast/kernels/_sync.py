"""Several threads inside one kernel: they join a call, synchronise after each layer, and leave.

Passing parts of a layer to a thread pool would cost some 50 microseconds per layer; here threads enter a kernel once and synchronise
at a barrier after each layer. They never need the interpreter: workers wait in the kernel `serve`. A call that wants `n` threads
stores its arguments and its address, opens a door, and waits a moment for workers to come in. Then it closes the door and runs with
the threads that have joined. A worker that comes too late finds the door closed and waits again, so a busy processor delays a call by
no more than that moment.

All state is in `gate`, an int64 array of `GATE` zeros. A waiting thread first polls for some microseconds, then sleeps until another
thread changes the word on which it waits; the next word counts the threads that sleep there.
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

from ._jit import COMPILED, brief, copied, inlined, kernel

__all__ = ["GATE", "JOINED", "KEEP", "PATIENCE", "STOP", "entrance", "barrier", "release", "serve"]

# Each word on which threads wait has its own cache line; the word after it counts the sleeping threads.
_TURN, _COUNT, _JOB, _GO, _DONE = 0, 8, 16, 24, 32
_DOOR, _WANTED, _CODE, _FRAME, _REPORTED = 40, 41, 42, 43, 44
STOP, PATIENCE, JOINED = 48, 49, 50
"""Words of `gate`: if not 0, workers end; nanoseconds that workers have to join a call; number of threads of the last call."""
GATE = 64

SPIN = 10_000
"""Nanoseconds of polling before sleeping, about as much as a wake-up costs."""
_IDLE = 3_000
"""The same for a worker that waits for a call."""
_NAPS = 1000
"""If the system cannot sleep on a word, threads sleep for a millisecond at a time; after so many naps, an idle worker ends."""

_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine(), 0) * (sys.platform == "linux")
"""Number of the system call that sleeps on a word; 0 if there is none, and threads take naps."""
KEEP = _FUTEX > 0
"""Whether idle workers wait forever."""
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
            """Change a word, and return its value before the change."""

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                return builder.atomic_rmw(operation, _address(context, builder, sig, args), args[2], "seq_cst")

            return types.int64(array, types.int64, types.int64), generate

        return change

    _add = _read_and("add")
    _swap = _read_and("xchg")

    @intrinsic
    def _replace(typingctx: Any, array: Any, i: Any, old: Any, new: Any) -> Any:
        """Set a word to `new` if it is `old`; whether it was."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            result = builder.cmpxchg(_address(context, builder, sig, args), args[2], args[3], "seq_cst", "seq_cst")
            return builder.extract_value(result, 1)

        return types.boolean(array, types.int64, types.int64, types.int64), generate

    @intrinsic
    def _now(typingctx: Any) -> Any:
        """Nanoseconds of a monotonic clock."""

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
        """Sleep while the word is `value`, or for `nap` microseconds if the system cannot; may wake up for no reason."""

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
    def _as_report(typingctx: Any, x: Any) -> Any:
        """1 if the result of a kernel is true, else 0; None counts as false."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if isinstance(x, types.NoneType):
                return ir.Constant(_INT, 0)
            return builder.zext(context.is_true(builder, x, args[0]), _INT)

        return types.int64(x), generate

    @intrinsic
    def _code(typingctx: Any) -> Any:
        """Address of a function (frame, me) that calls the enclosing function with the arguments in `frame` (see `_frame`)."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            around = builder.function
            frame = ir.LiteralStructType([arg.type for arg in around.args])
            call = ir.Function(builder.module, ir.FunctionType(_VOID, [_INT, _INT]), f"{around.name}.again")
            call.linkage = "internal"
            inner = ir.IRBuilder(call.append_basic_block())
            saved = inner.inttoptr(call.args[0], frame.as_pointer())
            values = [inner.load(cgutils.gep_inbounds(inner, saved, 0, i)) for i in range(len(around.args))]
            # Separate memory for the return value, and the number `me`, which is the first argument of an entrance.
            values[:2] = [inner.alloca(arg.type.pointee) for arg in around.args[:2]]
            values[2] = call.args[1]
            inner.call(around, values, attrs=("noinline",))
            inner.ret_void()
            return builder.ptrtoint(call, _INT)

        return types.int64(), generate

    @intrinsic
    def _frame(typingctx: Any) -> Any:
        """Address of a copy of the arguments of the enclosing function, as its machine code receives them."""

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
    """Wait while word `i` is `value`: poll for `spin` nanoseconds, then sleep. False if a second of naps was not enough."""
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
    """Set word `i`, and wake all threads that sleep on it."""
    _swap(gate, i, value)
    if _get(gate, i + 1) > 0:
        _wake(gate, i, 1 << 30)


@inlined
def barrier(gate, me, n):
    """Barrier: thread `me` waits for all `n` threads; after it, each sees what the others wrote before it."""
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
    """Let up to `n - 1` workers join for `gate[PATIENCE]` nanoseconds; returns the number of threads, including this one."""
    _swap(gate, _GO, 0)
    _swap(gate, _DONE, 0)
    _swap(gate, _REPORTED, 0)
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


@copied
def _enter(gate, me, n):
    # `_code` and `_frame` refer to the function into which this is copied.
    if me > 0:
        while not _wait(gate, _GO, 0, SPIN):
            pass
        n = _get(gate, _GO)
    elif n > 1:
        n = _call_in(gate, n, _code(), _frame())
    return n


@brief
def _leave(gate, me, n, reported):
    """Thread 0 waits until the others have left, since its arguments are in use until then. Returns the sum of all threads' results."""
    if n > 1:
        if me > 0:
            _add(gate, _REPORTED, reported)
            # From here on, nothing of this call may be accessed.
            if _add(gate, _DONE, 1) == n - 2 and _get(gate, _DONE + 1) > 0:
                _wake(gate, _DONE, 1)
        else:
            done = _get(gate, _DONE)
            while done < n - 1:
                _wait(gate, _DONE, done, SPIN)
                done = _get(gate, _DONE)
            reported += _get(gate, _REPORTED)
    return reported


@kernel
def serve(gate):
    """The loop of a worker: join calls until `gate[STOP]` is not 0 (or, with naps, until an idle second has passed)."""
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
    """End all workers."""
    _swap(gate, STOP, 1)
    _set(gate, _JOB, _get(gate, _JOB) + 1)


def entrance(function: Any) -> Any:
    """Compile `function`, which has arguments `me`, `n` and `gate`, as a kernel that workers join.

    Parameters
    ----------
    function : kernel
        Every thread calls it with the same arguments, except for `me`. All must pass the same barriers.

    Returns
    -------
    kernel
        ``(me, n, gate, *other arguments in their order)``, to be called with me = 0 and n = the number of threads that are wanted. It
        returns an int, which is not 0 if the call of any thread returned a true value.
    """
    part = function.py_func
    names = list(inspect.signature(part).parameters)
    others = [name for name in names if name not in ("me", "n", "gate")]
    name = f"{part.__name__}_together"
    source = (
        f"def {name}(me, n, gate, {', '.join(others)}):\n"
        f"    n = _enter(gate, me, n)\n"
        f"    return _leave(gate, me, n, _as_report(_part({', '.join(names)})))\n"
    )
    # The kernel is called, not inlined, which would make small calls slower by up to a fifth. Compiled under the file name of the kernel,
    # so that both are cached together.
    scope = {"__name__": part.__module__, "_enter": _enter, "_leave": _leave, "_as_report": _as_report, "_part": function}
    exec(compile(source, inspect.getfile(part), "exec"), scope)
    return kernel(scope[name])
