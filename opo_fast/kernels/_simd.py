"""A small vocabulary of eight-lane vectors for kernels, with bits that do not depend on the machine.

Each word is one LLVM operation on ``<8 x double>`` (two or four registers where the machine's are narrower), so the
order of every sum is written in the source. With ``NUMBA_DISABLE_JIT=1`` the same words are plain NumPy, for coverage
and bounds checks (there `fma` rounds twice).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "EXP_MIN",
    "LANES",
    "fma",
    "prefetch",
    "sexp",
    "vabove",
    "vadd",
    "vdiv",
    "vexp",
    "vfma",
    "vget",
    "vload",
    "vload_line",
    "vmax",
    "vmin",
    "vmul",
    "vset",
    "vstore",
    "vstore_line",
    "vspread2",
    "vspread4",
    "vsub",
    "vsum",
    "vswap1",
    "vswap2",
    "vswap4",
    "vtranspose",
]

LANES = 8
"""Numbers of a vector."""

EXP_MIN = -690.0
"""Below this exponent `vexp` and `sexp` are exactly 0: the results stay clear of the slow subnormal numbers."""

_DOUBLE = ir.DoubleType()
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_DOUBLE, 8)

# exp(x) = 2^n exp(r): n by adding 1.5 * 2^52, r in two steps (log 2 split so that n * hi is exact), a polynomial of
# degree 13 for exp(r), n added to the exponent bits.
_SHIFT = 6755399441055744.0
_LOG2E = 1.4426950408889634
_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_COEFFICIENTS = [1.0]
for _k in range(1, 14):
    _COEFFICIENTS.insert(0, _COEFFICIENTS[0] / _k)


class _V8(types.Type):
    def __init__(self) -> None:
        super().__init__(name="V8")


_v8 = _V8()


@register_model(_V8)
class _V8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VECTOR)


def _splat(builder: Any, x: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    v = builder.insert_element(undefined, x, ir.Constant(_I32, 0))
    return builder.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(_I32, 8), [0] * 8))


def _call_fma(builder: Any, args: Any) -> Any:
    kind = args[0].type
    name = "llvm.fma.v8f64" if kind == _VECTOR else "llvm.fma.f64"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, args)


def _build_exp(builder: Any, x: Any) -> Any:
    vector = x.type == _VECTOR
    integer = ir.VectorType(_I64, 8) if vector else _I64

    def const(c: float) -> Any:
        return ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, c)] * 8) if vector else ir.Constant(_DOUBLE, c)

    z = _call_fma(builder, [x, const(_LOG2E), const(_SHIFT)])
    n = builder.fsub(z, const(_SHIFT))
    r = _call_fma(builder, [n, const(-_LN2_HI), x])
    r = _call_fma(builder, [n, const(-_LN2_LO), r])
    p = const(_COEFFICIENTS[0])
    for c in _COEFFICIENTS[1:]:
        p = _call_fma(builder, [p, r, const(c)])
    bits = builder.shl(builder.bitcast(z, integer), ir.Constant(integer, [52] * 8 if vector else 52))
    result = builder.bitcast(builder.add(builder.bitcast(p, integer), bits), x.type)
    return builder.select(builder.fcmp_ordered(">", x, const(EXP_MIN)), result, const(0.0))


def _word(signature: Any, build: Callable[..., Any]) -> Any:
    """An intrinsic of fixed signature whose body is `build(builder, *args)`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return build(builder, *args)

    names = "abc"[: len(signature.args)]
    scope: dict[str, Any] = {}
    exec(f"def word(typingctx, {', '.join(names)}): return signature, generate", {"signature": signature, "generate": generate}, scope)
    return intrinsic(scope["word"])


def _address(context: Any, builder: Any, array_type: Any, array: Any, i: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), ir.PointerType(vector))


def _line_address(context: Any, builder: Any, array_type: Any, array: Any, line: Any, i: Any) -> Any:
    matrix = context.make_array(array_type)(context, builder, array)
    width = builder.extract_value(matrix.shape, 1)
    return builder.bitcast(builder.gep(matrix.data, [builder.add(builder.mul(line, width), i)]), ir.PointerType(_VECTOR))


if not numba.config.DISABLE_JIT:

    @intrinsic
    def vload(typingctx: Any, array: Any, i: Any) -> Any:
        """Elements i..i+7 of a contiguous float64 or float32 array, as doubles."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            single = sig.args[0].dtype == types.float32
            vector = ir.VectorType(ir.FloatType(), 8) if single else _VECTOR
            v = builder.load(_address(context, builder, sig.args[0], args[0], args[1], vector), align=4 if single else 8)
            return builder.fpext(v, _VECTOR) if single else v

        return _v8(array, types.int64), generate

    @intrinsic
    def vload_line(typingctx: Any, array: Any, line: Any, i: Any) -> Any:
        """Elements i..i+7 of one line of a contiguous float64 matrix."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load(_line_address(context, builder, sig.args[0], *args), align=8)

        return _v8(array, types.int64, types.int64), generate

    @intrinsic
    def vstore_line(typingctx: Any, array: Any, line: Any, i: Any, v: Any) -> Any:
        """Write `v` to elements i..i+7 of one line of a contiguous float64 matrix."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[3], _line_address(context, builder, sig.args[0], *args[:3]), align=8)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64, _v8), generate

    @intrinsic
    def vstore(typingctx: Any, array: Any, i: Any, v: Any) -> Any:
        """Write the eight lanes of `v` to elements i..i+7 of a contiguous float64 array."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[2], _address(context, builder, sig.args[0], args[0], args[1], _VECTOR), align=8)
            return context.get_dummy_value()

        return types.void(array, types.int64, _v8), generate

    @intrinsic
    def prefetch(typingctx: Any, array: Any, i: Any) -> Any:
        """Start to load the line of element `i`, which may lie beyond the array."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _address(context, builder, sig.args[0], args[0], args[1], ir.IntType(8))
            function = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
            read, near, is_data = (ir.Constant(_I32, x) for x in (0, 3, 1))
            builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8"), [pointer, read, near, is_data])
            return context.get_dummy_value()

        return types.void(array, types.int64), generate

    @intrinsic
    def vtranspose(typingctx: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
        """Vectors whose lane i is lane 0, 1, ... of the i-th vector given."""

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            lines = list(args)
            for step in (1, 2, 4):
                # Line i keeps the lanes that agree with it in this bit and takes the others from its partner.
                orders = [[lane if lane & step == i & step else 8 + (lane ^ step) for lane in range(8)] for i in range(8)]
                constants = [ir.Constant(ir.VectorType(_I32, 8), order) for order in orders]
                lines = [builder.shuffle_vector(lines[i], lines[i ^ step], constants[i]) for i in range(8)]
            return context.make_tuple(builder, sig.return_type, lines)

        return types.UniTuple(_v8, 8)(*[_v8] * 8), generate

    def _build_sum(builder: Any, v: Any) -> Any:
        for step in (4, 2, 1):
            order = ir.Constant(ir.VectorType(_I32, 8), [(lane + step) % 8 for lane in range(8)])
            v = builder.fadd(v, builder.shuffle_vector(v, ir.Constant(_VECTOR, ir.Undefined), order))
        return builder.extract_element(v, ir.Constant(_I32, 0))

    def _shuffle(builder: Any, v: Any, order: list[int]) -> Any:
        return builder.shuffle_vector(v, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_I32, 8), order))

    def _swap(step: int) -> Callable[..., Any]:
        return lambda builder, v: _shuffle(builder, v, [lane ^ step for lane in range(8)])

    def _pick(comparison: str) -> Callable[..., Any]:
        return lambda builder, a, b: builder.select(builder.fcmp_ordered(comparison, a, b), a, b)

    _f8 = types.float64
    vset = _word(_v8(_f8), _splat)
    vsum = _word(_f8(_v8), _build_sum)
    vfma = _word(_v8(_v8, _v8, _v8), lambda builder, *args: _call_fma(builder, args))
    vadd = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fadd(a, b))
    vsub = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fsub(a, b))
    vmul = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fmul(a, b))
    vdiv = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fdiv(a, b))
    vmax = _word(_v8(_v8, _v8), _pick(">"))
    vmin = _word(_v8(_v8, _v8), _pick("<"))
    vexp = _word(_v8(_v8), _build_exp)
    vspread2 = _word(_v8(_v8), lambda builder, v: _shuffle(builder, v, [lane // 2 for lane in range(8)]))
    vspread4 = _word(_v8(_v8), lambda builder, v: _shuffle(builder, v, [lane // 4 for lane in range(8)]))
    vget = _word(_f8(_v8, types.int64), lambda builder, v, i: builder.extract_element(v, i))
    vabove = _word(
        _v8(_v8, _v8),
        lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, 0.0)] * 8)),
    )
    vswap1, vswap2, vswap4 = (_word(_v8(_v8), _swap(step)) for step in (1, 2, 4))
    fma = _word(_f8(_f8, _f8, _f8), lambda builder, *args: _call_fma(builder, args))
    sexp = _word(_f8(_f8), _build_exp)

else:

    def vload(array: Any, i: Any) -> Any:
        assert 0 <= i <= array.size - 8
        return array[i : i + 8].astype(np.float64)

    def vstore(array: Any, i: Any, v: Any) -> None:
        assert 0 <= i <= array.size - 8
        array[i : i + 8] = v

    def vload_line(array: Any, line: Any, i: Any) -> Any:
        return vload(array[line], i)

    def vstore_line(array: Any, line: Any, i: Any, v: Any) -> None:
        vstore(array[line], i, v)

    def vset(x: Any) -> Any:
        return np.full(8, x, dtype=np.float64)

    def vsum(v: Any) -> Any:
        v = v[:4] + v[4:]
        v = v[:2] + v[2:]
        return v[0] + v[1]

    def vfma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def vexp(v: Any) -> Any:
        return np.where(v > EXP_MIN, np.exp(np.maximum(v, EXP_MIN)), 0.0)

    def vspread2(v: Any) -> Any:
        return np.repeat(v[:4], 2)

    def vspread4(v: Any) -> Any:
        return np.repeat(v[:2], 4)

    def prefetch(array: Any, i: Any) -> None:
        pass

    def vtranspose(*lines: Any) -> Any:
        return tuple(np.array(lines).T)

    def vget(v: Any, i: Any) -> Any:
        return v[i]

    def vswap1(v: Any) -> Any:
        return v[[1, 0, 3, 2, 5, 4, 7, 6]]

    def vswap2(v: Any) -> Any:
        return v[[2, 3, 0, 1, 6, 7, 4, 5]]

    def vswap4(v: Any) -> Any:
        return v[[4, 5, 6, 7, 0, 1, 2, 3]]

    def vabove(a: Any, b: Any) -> Any:
        return np.where(a > b, a, 0.0)

    def sexp(x: Any) -> Any:
        return np.exp(x) if x > EXP_MIN else 0.0

    vadd, vsub, vmul, vdiv, vmax, vmin = np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum
    fma = vfma
