"""The vector operations of `_simd` as intrinsics: each writes its LLVM instructions into the kernel that calls it.

With ``NUMBA_BOUNDSCHECK=1`` every position that is read or written is checked, as Numba checks its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors
from numba.extending import intrinsic, models, register_model

from ._constants import EXP_MIN, LANES

__all__ = [
    "fma", "prefetch", "qask", "qdot", "qfirst", "qset", "qsum", "sexp", "slog", "vabove", "vadd", "vdiv", "vector", "vexp", "vfma",
    "vgather", "vgather_bytes", "vgather_half", "vget", "view", "vload", "vload_line", "vlog", "vmax", "vmin", "vmul", "vscatter_bytes",
    "vset", "vspread2", "vspread4", "vstore", "vsub", "vsum", "vswap1", "vswap2", "vswap4",
]  # fmt: skip

_DOUBLE, _FLOAT = ir.DoubleType(), ir.FloatType()
_I32, I64 = ir.IntType(32), ir.IntType(64)
_VECTOR, _FOUR = ir.VectorType(_DOUBLE, LANES), ir.VectorType(_DOUBLE, 4)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
ZERO = ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, 0.0)] * LANES)

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


class _V4(types.Type):
    def __init__(self) -> None:
        super().__init__(name="V4")


V8, V4, F8, I8 = _V8(), _V4(), types.float64, types.int64


@register_model(_V8)
class _V8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VECTOR)


@register_model(_V4)
class _V4Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _FOUR)


# -- instructions ----------------------------------------------------------------------------------------------------


def splat(builder: Any, x: Any) -> Any:
    v = builder.insert_element(_UNDEFINED, x, ir.Constant(_I32, 0))
    return shuffle(builder, v, [0] * LANES)


def shuffle(builder: Any, v: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(v, _UNDEFINED, ir.Constant(ir.VectorType(_I32, LANES), order))


def call_fma(builder: Any, *args: Any) -> Any:
    kind = args[0].type
    name = f"llvm.fma.v{kind.count}f64" if isinstance(kind, ir.VectorType) else "llvm.fma.f64"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, args)


def _build_exp(builder: Any, x: Any) -> Any:
    vector = x.type == _VECTOR
    integer = ir.VectorType(I64, LANES) if vector else I64

    def const(c: float) -> Any:
        return ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, c)] * LANES) if vector else ir.Constant(_DOUBLE, c)

    z = call_fma(builder, x, const(_LOG2E), const(_SHIFT))
    n = builder.fsub(z, const(_SHIFT))
    r = call_fma(builder, n, const(-_LN2_HI), x)
    r = call_fma(builder, n, const(-_LN2_LO), r)
    p = const(_COEFFICIENTS[0])
    for c in _COEFFICIENTS[1:]:
        p = call_fma(builder, p, r, const(c))
    bits = builder.shl(builder.bitcast(z, integer), ir.Constant(integer, [52] * LANES if vector else 52))
    result = builder.bitcast(builder.add(builder.bitcast(p, integer), bits), x.type)
    return builder.select(builder.fcmp_ordered(">", x, const(EXP_MIN)), result, const(0.0))


# log(x) = n log 2 + log(m) with m between sqrt(1/2) and sqrt(2): log(m) = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
_HALF_ROOT = 0x3FE6A09E667F3BCD
_ATANH = [2.0 / (2 * _k + 1) for _k in range(11, 0, -1)]


def _build_log(builder: Any, x: Any) -> Any:
    vector = x.type == _VECTOR
    integer = ir.VectorType(I64, LANES) if vector else I64

    def const(c: Any, kind: Any = _DOUBLE) -> Any:
        one = ir.Constant(kind, c)
        return ir.Constant(ir.VectorType(kind, LANES), [one] * LANES) if vector else one

    bits = builder.bitcast(x, integer)
    n = builder.ashr(builder.sub(bits, const(_HALF_ROOT, I64)), const(52, I64))
    m = builder.bitcast(builder.sub(bits, builder.shl(n, const(52, I64))), x.type)
    s = builder.fdiv(builder.fsub(m, const(1.0)), builder.fadd(m, const(1.0)))
    z = builder.fmul(s, s)
    p = const(_ATANH[0])
    for c in _ATANH[1:]:
        p = call_fma(builder, p, z, const(c))
    twice = builder.fadd(s, s)
    exponent = builder.sitofp(n, x.type)
    small = call_fma(builder, exponent, const(_LN2_LO), call_fma(builder, builder.fmul(s, z), p, twice))
    return call_fma(builder, exponent, const(_LN2_HI), small)


def build_sum(builder: Any, v: Any) -> Any:
    for step in (4, 2, 1):
        v = builder.fadd(v, shuffle(builder, v, [(lane + step) % LANES for lane in range(LANES)]))
    return builder.extract_element(v, ir.Constant(_I32, 0))


def build_transpose(builder: Any, vectors: list[Any]) -> list[Any]:
    for step in (1, 2, 4):
        # Vector i keeps the lanes that agree with it in this bit and takes the others from its partner.
        orders = [[lane if lane & step == i & step else LANES + (lane ^ step) for lane in range(LANES)] for i in range(LANES)]
        constants = [ir.Constant(ir.VectorType(_I32, LANES), order) for order in orders]
        vectors = [builder.shuffle_vector(vectors[i], vectors[i ^ step], constants[i]) for i in range(LANES)]
    return vectors


class Elements:
    """Access to the elements of a contiguous array, in the kernel that is being compiled."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any) -> None:
        self.context, self.builder, self.dtype = context, builder, array_type.dtype
        self.array = context.make_array(array_type)(context, builder, array)

    def address(self, i: Any) -> Any:
        return self.builder.gep(self.array.data, [i])

    def line(self, line: Any, i: Any) -> Any:
        """Position of element i in one line of a matrix."""
        self._check(line, 1, self.builder.extract_value(self.array.shape, 0))
        width = self.builder.extract_value(self.array.shape, 1)
        self._check(i, LANES, width)
        return self.builder.add(self.builder.mul(line, width), i)

    def _check(self, i: Any, count: int, size: Any) -> None:
        if self.context.enable_boundscheck:
            for position in (i, self.builder.add(i, ir.Constant(I64, count - 1))):
                cgutils.do_boundscheck(self.context, self.builder, position, size)

    def load(self, i: Any, kind: Any = _VECTOR) -> Any:
        """Eight elements from i on, as doubles; four where `kind` is a vector of four."""
        self._check(i, kind.count, self.array.nitems)
        single = self.dtype == types.float32
        vector = ir.VectorType(_FLOAT, kind.count) if single else kind
        v = self.builder.load(self.builder.bitcast(self.address(i), ir.PointerType(vector)), align=4 if single else 8)
        return self.builder.fpext(v, kind) if single else v

    def store(self, i: Any, v: Any) -> None:
        self._check(i, LANES, self.array.nitems)
        self.builder.store(v, self.builder.bitcast(self.address(i), ir.PointerType(_VECTOR)), align=8)

    def read(self, i: Any) -> Any:
        """Element i as a double, or as an integer of 64 bits."""
        self._check(i, 1, self.array.nitems)
        value = self.builder.load(self.address(i))
        if self.dtype == types.float32:
            return self.builder.fpext(value, _DOUBLE)
        if self.dtype in types.unsigned_domain:
            return self.builder.zext(value, I64)
        return value

    def read_from(self, start: Any, i: Any) -> Any:
        """Element start + i of doubles, the address of the first being one that many reads have in common."""
        self._check(self.builder.add(start, i), 1, self.array.nitems)
        return self.builder.load(self.builder.gep(self.address(start), [i]))

    def put(self, i: Any, x: Any) -> None:
        self._check(i, 1, self.array.nitems)
        self.builder.store(x, self.address(i))


# -- vectors ---------------------------------------------------------------------------------------------------------


def _word(signature: Any, build: Callable[..., Any]) -> Any:
    """An intrinsic of fixed signature whose body is `build(builder, *args)`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return build(builder, *args)

    names = "abc"[: len(signature.args)]
    scope: dict[str, Any] = {}
    exec(f"def word(typingctx, {', '.join(names)}): return signature, generate", {"signature": signature, "generate": generate}, scope)
    return intrinsic(scope["word"])


def _swap(step: int) -> Callable[..., Any]:
    return lambda builder, v: shuffle(builder, v, [lane ^ step for lane in range(LANES)])


def _spread(step: int) -> Callable[..., Any]:
    return lambda builder, v: shuffle(builder, v, [lane // step for lane in range(LANES)])


def _pick(comparison: str) -> Callable[..., Any]:
    return lambda builder, a, b: builder.select(builder.fcmp_ordered(comparison, a, b), a, b)


@intrinsic
def vector(typingctx: Any, array: Any) -> Any:
    """Refuse, while a kernel is compiled, an array that is not a writable contiguous vector of float64."""
    if array != types.Array(F8, 1, "C"):
        raise errors.TypingError(f"opo_fast.kernels: an argument is {array}: pass a writable contiguous vector of float64")
    return types.void(array), lambda context, builder, sig, args: context.get_dummy_value()


@intrinsic
def vload(typingctx: Any, array: Any, i: Any) -> Any:
    """Elements i..i+7 of a contiguous float64 or float32 array, as doubles."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return Elements(context, builder, sig.args[0], args[0]).load(args[1])

    return V8(array, I8), generate


@intrinsic
def vload_line(typingctx: Any, array: Any, line: Any, i: Any) -> Any:
    """Elements i..i+7 of one line of a contiguous float64 matrix."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        return elements.load(elements.line(args[1], args[2]))

    return V8(array, I8, I8), generate


@intrinsic
def vstore(typingctx: Any, array: Any, i: Any, v: Any) -> Any:
    """Write the eight lanes of `v` to elements i..i+7 of a contiguous float64 array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        Elements(context, builder, sig.args[0], args[0]).store(args[1], args[2])
        return context.get_dummy_value()

    return types.void(array, I8, V8), generate


def _ask(builder: Any, address: Any) -> None:
    pointer = builder.bitcast(address, ir.PointerType(ir.IntType(8)))
    function = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    read, near, is_data = (ir.Constant(_I32, x) for x in (0, 3, 1))
    builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8"), [pointer, read, near, is_data])


@intrinsic
def prefetch(typingctx: Any, array: Any, i: Any) -> Any:
    """Start to load the line of element `i`, which may lie beyond the array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _ask(builder, Elements(context, builder, sig.args[0], args[0]).address(args[1]))
        return context.get_dummy_value()

    return types.void(array, I8), generate


vset = _word(V8(F8), splat)
vget = _word(F8(V8, I8), lambda builder, v, i: builder.extract_element(v, i))
# Halves are added, then quarters, then the last two.
vsum = _word(F8(V8), build_sum)
fma = _word(F8(F8, F8, F8), call_fma)
vfma = _word(V8(V8, V8, V8), call_fma)
vadd = _word(V8(V8, V8), lambda builder, a, b: builder.fadd(a, b))
vsub = _word(V8(V8, V8), lambda builder, a, b: builder.fsub(a, b))
vmul = _word(V8(V8, V8), lambda builder, a, b: builder.fmul(a, b))
vdiv = _word(V8(V8, V8), lambda builder, a, b: builder.fdiv(a, b))
vmax = _word(V8(V8, V8), _pick(">"))
vmin = _word(V8(V8, V8), _pick("<"))
# a where it is above b, else 0.
vabove = _word(V8(V8, V8), lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, ZERO))
vexp = _word(V8(V8), _build_exp)
vlog = _word(V8(V8), _build_log)
slog = _word(F8(F8), _build_log)
sexp = _word(F8(F8), _build_exp)
# The first lanes, each two or four times.
vspread2, vspread4 = _word(V8(V8), _spread(2)), _word(V8(V8), _spread(4))
# Neighbours, pairs or halves exchanged.
vswap1, vswap2, vswap4 = (_word(V8(V8), _swap(step)) for step in (1, 2, 4))


# Four sums side by side, which begin with x, 0, 0, 0.
qset = _word(
    V4(F8), lambda builder, x: builder.insert_element(ir.Constant(_FOUR, [ir.Constant(_DOUBLE, 0.0)] * 4), x, ir.Constant(_I32, 0))
)
qfirst = _word(F8(V4), lambda builder, v: builder.extract_element(v, ir.Constant(_I32, 0)))


def _build_sum_of_four(builder: Any, v: Any, first: Any) -> Any:
    v = builder.insert_element(v, first, ir.Constant(_I32, 0))
    halves = [builder.shuffle_vector(v, v, ir.Constant(ir.VectorType(_I32, 2), order)) for order in ([0, 1], [2, 3])]
    both = builder.fadd(*halves)
    return builder.fadd(*(builder.extract_element(both, ir.Constant(_I32, lane)) for lane in range(2)))


# (x0 + x2) + (x1 + x3), the first of them given anew.
qsum = _word(F8(V4, F8), _build_sum_of_four)


def _gather(builder: Any, values: Elements, start: Any, positions: list[Any]) -> Any:
    v = ir.Constant(ir.VectorType(_DOUBLE, len(positions)), ir.Undefined)
    for m, j in enumerate(positions):
        v = builder.insert_element(v, values.read_from(start, j), ir.Constant(_I32, m))
    return v


def _next(builder: Any, indices: Elements, p: Any, count: int) -> list[Any]:
    """Entries p, p + 1, ... of an array of positions."""
    return [indices.read(builder.add(p, ir.Constant(I64, m))) for m in range(count)]


@intrinsic
def vgather(typingctx: Any, v: Any, v0: Any, indices: Any, p: Any) -> Any:
    """Elements v0 + indices[p], ..., v0 + indices[p + 7] of a contiguous float64 array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values, positions = (Elements(context, builder, sig.args[i], args[i]) for i in (0, 2))
        return _gather(builder, values, args[1], _next(builder, positions, args[3], LANES))

    return V8(v, I8, indices, I8), generate


@intrinsic
def vgather_half(typingctx: Any, v: Any, v0: Any, halves: Any, p: Any) -> Any:
    """Elements v0 + j of a contiguous float64 array for the positions j that are the halves of halves[p // 2], ..., lower halves first.

    `p` is even.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values, words = (Elements(context, builder, sig.args[i], args[i]) for i in (0, 2))
        positions = []
        for both in _next(builder, words, builder.ashr(args[3], ir.Constant(I64, 1)), LANES // 2):
            positions += [builder.and_(both, ir.Constant(I64, 0xFFFF)), builder.lshr(both, ir.Constant(I64, 16))]
        return _gather(builder, values, args[1], positions)

    return V8(v, I8, halves, I8), generate


def _bytes(builder: Any, order: Any) -> list[Any]:
    return [builder.and_(builder.lshr(order, ir.Constant(I64, 8 * m)), ir.Constant(I64, 0xFF)) for m in range(LANES)]


@intrinsic
def vgather_bytes(typingctx: Any, v: Any, v0: Any, order: Any) -> Any:
    """Elements v0 + j of a contiguous float64 array for the eight bytes j of `order`, the lowest first."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _gather(builder, Elements(context, builder, sig.args[0], args[0]), args[1], _bytes(builder, args[2]))

    return V8(v, I8, I8), generate


@intrinsic
def vscatter_bytes(typingctx: Any, array: Any, start: Any, order: Any, v: Any) -> Any:
    """Write the lanes of `v` to elements start + j of a contiguous float64 array for the eight bytes j of `order`, the lowest first."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        for m, j in enumerate(_bytes(builder, args[2])):
            elements.put(builder.add(args[1], j), builder.extract_element(args[3], ir.Constant(_I32, m)))
        return context.get_dummy_value()

    return types.void(array, I8, I8, V8), generate


@intrinsic
def qask(typingctx: Any, v: Any, v0: Any, indices: Any, p: Any) -> Any:
    """Prefetch elements v0 + indices[p], ..., v0 + indices[p + 3] of `v`, which may lie beyond the array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values, positions = (Elements(context, builder, sig.args[i], args[i]) for i in (0, 2))
        first = values.address(args[1])
        for j in _next(builder, positions, args[3], 4):
            _ask(builder, builder.gep(first, [j]))
        return context.get_dummy_value()

    return types.void(v, I8, indices, I8), generate


@intrinsic
def qdot(typingctx: Any, data: Any, indices: Any, p: Any, v: Any, v0: Any, sums: Any) -> Any:
    """sums[m] += data[p + m] v[v0 + indices[p + m]] for m = 0..3."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        numbers, positions, values = (Elements(context, builder, sig.args[i], args[i]) for i in (0, 1, 3))
        gathered = _gather(builder, values, args[4], _next(builder, positions, args[2], 4))
        return call_fma(builder, numbers.load(args[2], _FOUR), gathered, args[5])

    return V4(data, indices, I8, v, I8, V4), generate


@intrinsic
def view(typingctx: Any, address: Any, size: Any, like: Any) -> Any:
    """The contiguous array of `size` numbers at an address, with the dtype of `like`. It does not keep the memory alive."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Numba itself loads this where it compiles, not where it is imported.
        from numba.np import arrayobj

        kind = context.get_data_type(like.dtype)
        array = context.make_array(like)(context, builder)
        itemsize = ir.Constant(I64, context.get_abi_sizeof(kind))
        pointer = builder.inttoptr(args[0], ir.PointerType(kind))
        arrayobj.populate_array(array, data=pointer, shape=[args[1]], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()

    return like(I8, I8, like), generate
