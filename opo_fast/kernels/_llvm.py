"""The words of `_simd` as intrinsics: each writes its LLVM instructions into the kernel that calls it.

With ``NUMBA_BOUNDSCHECK=1`` every position that is read or written is checked, as Numba checks its own.
"""

# pragma: no cover file - compiled words do not run where coverage is measured

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np import arrayobj

from ._constants import EXP_MIN, LANES

__all__ = [
    "clamped", "fma", "prefetch", "sexp", "slog", "strided", "tadd", "tdot", "tfma", "tload", "tload_lines", "tmerge", "touter",
    "tpanel", "tput", "tread", "tset", "tstore", "tsum", "tzeros", "vabove", "vadd", "vdiv", "vexp", "vfma", "vget", "view",
    "vload", "vload_line", "vlog", "vmax", "vmin", "vmul", "vset", "vspread2", "vspread4", "vstore", "vsub", "vsum", "vswap1",
    "vswap2", "vswap4", "vtranspose",
]  # fmt: skip

_DOUBLE, _FLOAT = ir.DoubleType(), ir.FloatType()
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_DOUBLE, LANES)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
_ZERO = ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, 0.0)] * LANES)

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


_v8, _f8, _i8 = _V8(), types.float64, types.int64


@register_model(_V8)
class _V8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VECTOR)


# -- instructions ----------------------------------------------------------------------------------------------------


def _splat(builder: Any, x: Any) -> Any:
    v = builder.insert_element(_UNDEFINED, x, ir.Constant(_I32, 0))
    return _shuffle(builder, v, [0] * LANES)


def _shuffle(builder: Any, v: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(v, _UNDEFINED, ir.Constant(ir.VectorType(_I32, LANES), order))


def _call_fma(builder: Any, *args: Any) -> Any:
    kind = args[0].type
    name = "llvm.fma.v8f64" if kind == _VECTOR else "llvm.fma.f64"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, args)


def _build_exp(builder: Any, x: Any) -> Any:
    vector = x.type == _VECTOR
    integer = ir.VectorType(_I64, LANES) if vector else _I64

    def const(c: float) -> Any:
        return ir.Constant(_VECTOR, [ir.Constant(_DOUBLE, c)] * LANES) if vector else ir.Constant(_DOUBLE, c)

    z = _call_fma(builder, x, const(_LOG2E), const(_SHIFT))
    n = builder.fsub(z, const(_SHIFT))
    r = _call_fma(builder, n, const(-_LN2_HI), x)
    r = _call_fma(builder, n, const(-_LN2_LO), r)
    p = const(_COEFFICIENTS[0])
    for c in _COEFFICIENTS[1:]:
        p = _call_fma(builder, p, r, const(c))
    bits = builder.shl(builder.bitcast(z, integer), ir.Constant(integer, [52] * LANES if vector else 52))
    result = builder.bitcast(builder.add(builder.bitcast(p, integer), bits), x.type)
    return builder.select(builder.fcmp_ordered(">", x, const(EXP_MIN)), result, const(0.0))


# log(x) = n log 2 + log(m) with m between sqrt(1/2) and sqrt(2): log(m) = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
_HALF_ROOT = 0x3FE6A09E667F3BCD
_ATANH = [2.0 / (2 * _k + 1) for _k in range(11, 0, -1)]


def _build_log(builder: Any, x: Any) -> Any:
    vector = x.type == _VECTOR
    integer = ir.VectorType(_I64, LANES) if vector else _I64

    def const(c: Any, kind: Any = _DOUBLE) -> Any:
        one = ir.Constant(kind, c)
        return ir.Constant(ir.VectorType(kind, LANES), [one] * LANES) if vector else one

    bits = builder.bitcast(x, integer)
    n = builder.ashr(builder.sub(bits, const(_HALF_ROOT, _I64)), const(52, _I64))
    m = builder.bitcast(builder.sub(bits, builder.shl(n, const(52, _I64))), x.type)
    s = builder.fdiv(builder.fsub(m, const(1.0)), builder.fadd(m, const(1.0)))
    z = builder.fmul(s, s)
    p = const(_ATANH[0])
    for c in _ATANH[1:]:
        p = _call_fma(builder, p, z, const(c))
    twice = builder.fadd(s, s)
    exponent = builder.sitofp(n, x.type)
    small = _call_fma(builder, exponent, const(_LN2_LO), _call_fma(builder, builder.fmul(s, z), p, twice))
    return _call_fma(builder, exponent, const(_LN2_HI), small)


def _build_sum(builder: Any, v: Any) -> Any:
    for step in (4, 2, 1):
        v = builder.fadd(v, _shuffle(builder, v, [(lane + step) % LANES for lane in range(LANES)]))
    return builder.extract_element(v, ir.Constant(_I32, 0))


def _build_transpose(builder: Any, vectors: list[Any]) -> list[Any]:
    for step in (1, 2, 4):
        # Vector i keeps the lanes that agree with it in this bit and takes the others from its partner.
        orders = [[lane if lane & step == i & step else LANES + (lane ^ step) for lane in range(LANES)] for i in range(LANES)]
        constants = [ir.Constant(ir.VectorType(_I32, LANES), order) for order in orders]
        vectors = [builder.shuffle_vector(vectors[i], vectors[i ^ step], constants[i]) for i in range(LANES)]
    return vectors


class _Elements:
    """Elements of one contiguous array, in the kernel that is being compiled."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any) -> None:
        self.context, self.builder, self.dtype = context, builder, array_type.dtype
        self.array = context.make_array(array_type)(context, builder, array)

    def address(self, i: Any) -> Any:
        return self.builder.gep(self.array.data, [i])

    def line(self, line: Any, i: Any) -> Any:
        """Position of element i of a line of a matrix."""
        self._check(line, 1, self.builder.extract_value(self.array.shape, 0))
        width = self.builder.extract_value(self.array.shape, 1)
        self._check(i, LANES, width)
        return self.builder.add(self.builder.mul(line, width), i)

    def _check(self, i: Any, count: int, size: Any) -> None:
        if self.context.enable_boundscheck:
            for position in (i, self.builder.add(i, ir.Constant(_I64, count - 1))):
                cgutils.do_boundscheck(self.context, self.builder, position, size)

    def load(self, i: Any) -> Any:
        """Eight elements from i on, as doubles."""
        self._check(i, LANES, self.array.nitems)
        single = self.dtype == types.float32
        vector = ir.VectorType(_FLOAT, LANES) if single else _VECTOR
        v = self.builder.load(self.builder.bitcast(self.address(i), ir.PointerType(vector)), align=4 if single else 8)
        return self.builder.fpext(v, _VECTOR) if single else v

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
            return self.builder.zext(value, _I64)
        return value

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
    return lambda builder, v: _shuffle(builder, v, [lane ^ step for lane in range(LANES)])


def _spread(step: int) -> Callable[..., Any]:
    return lambda builder, v: _shuffle(builder, v, [lane // step for lane in range(LANES)])


def _pick(comparison: str) -> Callable[..., Any]:
    return lambda builder, a, b: builder.select(builder.fcmp_ordered(comparison, a, b), a, b)


@intrinsic
def vload(typingctx: Any, array: Any, i: Any) -> Any:
    """Elements i..i+7 of a contiguous float64 or float32 array, as doubles."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _Elements(context, builder, sig.args[0], args[0]).load(args[1])

    return _v8(array, _i8), generate


@intrinsic
def vload_line(typingctx: Any, array: Any, line: Any, i: Any) -> Any:
    """Elements i..i+7 of one line of a contiguous float64 matrix."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        return elements.load(elements.line(args[1], args[2]))

    return _v8(array, _i8, _i8), generate


@intrinsic
def vstore(typingctx: Any, array: Any, i: Any, v: Any) -> Any:
    """Write the eight lanes of `v` to elements i..i+7 of a contiguous float64 array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _Elements(context, builder, sig.args[0], args[0]).store(args[1], args[2])
        return context.get_dummy_value()

    return types.void(array, _i8, _v8), generate


@intrinsic
def prefetch(typingctx: Any, array: Any, i: Any) -> Any:
    """Start to load the line of element `i`, which may lie beyond the array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _Elements(context, builder, sig.args[0], args[0]).address(args[1])
        pointer = builder.bitcast(address, ir.PointerType(ir.IntType(8)))
        function = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        read, near, is_data = (ir.Constant(_I32, x) for x in (0, 3, 1))
        builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8"), [pointer, read, near, is_data])
        return context.get_dummy_value()

    return types.void(array, _i8), generate


vset = _word(_v8(_f8), _splat)
vget = _word(_f8(_v8, _i8), lambda builder, v, i: builder.extract_element(v, i))
# Halves are added, then quarters, then the last two.
vsum = _word(_f8(_v8), _build_sum)
fma = _word(_f8(_f8, _f8, _f8), _call_fma)
vfma = _word(_v8(_v8, _v8, _v8), _call_fma)
vadd = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fadd(a, b))
vsub = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fsub(a, b))
vmul = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fmul(a, b))
vdiv = _word(_v8(_v8, _v8), lambda builder, a, b: builder.fdiv(a, b))
vmax = _word(_v8(_v8, _v8), _pick(">"))
vmin = _word(_v8(_v8, _v8), _pick("<"))
# a where it is above b, else 0.
vabove = _word(_v8(_v8, _v8), lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, _ZERO))
vexp = _word(_v8(_v8), _build_exp)
vlog = _word(_v8(_v8), _build_log)
slog = _word(_f8(_f8), _build_log)
sexp = _word(_f8(_f8), _build_exp)
# The first lanes, each two or four times.
vspread2, vspread4 = _word(_v8(_v8), _spread(2)), _word(_v8(_v8), _spread(4))
# Neighbours, pairs or halves exchanged.
vswap1, vswap2, vswap4 = (_word(_v8(_v8), _swap(step)) for step in (1, 2, 4))


# -- tiles -----------------------------------------------------------------------------------------------------------


def _numbers(kind: Any, count: int) -> Any:
    return types.UniTuple(kind, count)


def _each(context: Any, builder: Any, sig: Any, values: list[Any]) -> Any:
    return context.make_tuple(builder, sig.return_type, values)


def _at(builder: Any, positions: Any, i: Any) -> list[Any]:
    return [builder.add(position, i) for position in cgutils.unpack_tuple(builder, positions)]


@intrinsic(prefer_literal=True)
def strided(typingctx: Any, start: Any, stride: Any, k: Any) -> Any:
    """Positions start, start + stride, ..., k of them; k is a number written in the source."""
    if not isinstance(k, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        steps = [builder.mul(args[1], ir.Constant(_I64, m)) for m in range(k.literal_value)]
        return _each(context, builder, sig, [builder.add(args[0], step) for step in steps])

    return _numbers(_i8, k.literal_value)(_i8, _i8, k), generate


@intrinsic(prefer_literal=True)
def clamped(typingctx: Any, start: Any, stride: Any, first: Any, last: Any, k: Any) -> Any:
    """Positions start + min(first + m, last) * stride for m = 0..k-1; k is a number written in the source."""
    if not isinstance(k, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        begin, stride, first, last = args[:4]
        lines = [builder.add(first, ir.Constant(_I64, m)) for m in range(k.literal_value)]
        lines = [builder.select(builder.icmp_signed("<", line, last), line, last) for line in lines]
        return _each(context, builder, sig, [builder.add(begin, builder.mul(line, stride)) for line in lines])

    return _numbers(_i8, k.literal_value)(_i8, _i8, _i8, _i8, k), generate


@intrinsic(prefer_literal=True)
def tzeros(typingctx: Any, k: Any) -> Any:
    """k vectors of zeros; k is a number written in the source, or a tuple that has as many entries."""
    count = k.literal_value if isinstance(k, types.IntegerLiteral) else k.count

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _each(context, builder, sig, [_ZERO] * count)

    return _numbers(_v8, count)(k), generate


@intrinsic
def tload(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The vectors at o + i of a contiguous float64 or float32 array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        return _each(context, builder, sig, [elements.load(position) for position in _at(builder, args[1], args[2])])

    return _numbers(_v8, o.count)(array, o, _i8), generate


@intrinsic
def tload_lines(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The vectors at column i of lines `o` of a contiguous float64 matrix."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        lines = cgutils.unpack_tuple(builder, args[1])
        return _each(context, builder, sig, [elements.load(elements.line(line, args[2])) for line in lines])

    return _numbers(_v8, o.count)(array, o, _i8), generate


@intrinsic
def tread(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The numbers at o + i of a contiguous array: float64, or int64 where the array holds integers."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        return _each(context, builder, sig, [elements.read(position) for position in _at(builder, args[1], args[2])])

    return _numbers(_f8 if isinstance(array.dtype, types.Float) else _i8, o.count)(array, o, _i8), generate


@intrinsic
def tstore(typingctx: Any, array: Any, o: Any, i: Any, tile: Any) -> Any:
    """Write the vectors of a tile to o + i."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        for position, v in zip(_at(builder, args[1], args[2]), cgutils.unpack_tuple(builder, args[3]), strict=True):
            elements.store(position, v)
        return context.get_dummy_value()

    return types.void(array, o, _i8, tile), generate


@intrinsic
def tput(typingctx: Any, array: Any, i: Any, tile: Any) -> Any:
    """Write the numbers of a tile to element i and those after it."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        for m, x in enumerate(cgutils.unpack_tuple(builder, args[2])):
            elements.put(builder.add(args[1], ir.Constant(_I64, m)), x)
        return context.get_dummy_value()

    return types.void(array, _i8, tile), generate


def _map_word(result: Any, build: Callable[..., Any]) -> Any:
    """An intrinsic that applies `build(builder, x)` to each entry of a tile."""

    @intrinsic
    def word(typingctx: Any, tile: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _each(context, builder, sig, [build(builder, x) for x in cgutils.unpack_tuple(builder, args[0])])

        return _numbers(result, tile.count)(tile), generate

    return word


# Vectors of eight times the same number; the sum of each vector, as `vsum` gives it.
tset, tsum = _map_word(_v8, _splat), _map_word(_f8, _build_sum)


def _entries(builder: Any, x: Any, kind: Any, count: int) -> list[Any]:
    return cgutils.unpack_tuple(builder, x) if isinstance(kind, types.BaseTuple) else [x] * count


# The words that multiply read one entry, use it and read the next: where a loop has more entries than the machine has
# registers, reading all of them first would store and load most again.


@intrinsic
def tfma(typingctx: Any, array: Any, o: Any, i: Any, x: Any, sums: Any) -> Any:
    """sums[m] + array[o[m] + i] * x[m], for vectors or numbers, whichever `sums` has; x may be one for all m."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        read = elements.load if sums.dtype == _v8 else elements.read
        factors = _entries(builder, args[3], sig.args[3], sums.count)
        before = cgutils.unpack_tuple(builder, args[4])
        positions = _at(builder, args[1], args[2])
        entries = zip(positions, factors, before, strict=True)
        return _each(context, builder, sig, [_call_fma(builder, read(position), y, z) for position, y, z in entries])

    return sums(array, o, _i8, x, sums), generate


@intrinsic
def tdot(typingctx: Any, array: Any, o: Any, i: Any, x: Any, total: Any) -> Any:
    """total + array[o[0] + i] * x[0] + array[o[1] + i] * x[1] + ..., vectors, one multiply-add after the other."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        total = args[4]
        for position, y in zip(_at(builder, args[1], args[2]), cgutils.unpack_tuple(builder, args[3]), strict=True):
            total = _call_fma(builder, elements.load(position), y, total)
        return total

    return _v8(array, o, _i8, x, _v8), generate


@intrinsic
def touter(typingctx: Any, array: Any, o: Any, i: Any, x: Any, sums: Any) -> Any:
    """sums[m * len(x) + g] + array[o[m] + i] * x[g]: each number times each vector of the tile `x`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        vectors = cgutils.unpack_tuple(builder, args[3])
        before, after = cgutils.unpack_tuple(builder, args[4]), []
        for position in _at(builder, args[1], args[2]):
            y = _splat(builder, elements.read(position))
            after += [_call_fma(builder, y, v, before[len(after) + g]) for g, v in enumerate(vectors)]
        return _each(context, builder, sig, after)

    return sums(array, o, _i8, x, sums), generate


@intrinsic
def tpanel(typingctx: Any, array: Any, o: Any, i: Any, w: Any, p: Any, sums: Any) -> Any:
    """sums[m * len(o) + j] + array[o[j] + i + m] * (the vector of `w` at p + 8 m), for m = 0..7."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = _Elements(context, builder, sig.args[0], args[0])
        weights = _Elements(context, builder, sig.args[3], args[3])
        before, after = cgutils.unpack_tuple(builder, args[5]), []
        positions = _at(builder, args[1], args[2])
        for m in range(LANES):
            v = weights.load(builder.add(args[4], ir.Constant(_I64, LANES * m)))
            for position in positions:
                y = _splat(builder, elements.read(builder.add(position, ir.Constant(_I64, m))))
                after.append(_call_fma(builder, y, v, before[len(after)]))
        return _each(context, builder, sig, after)

    return sums(array, o, _i8, w, _i8, sums), generate


@intrinsic
def tadd(typingctx: Any, x: Any, tile: Any) -> Any:
    """x + tile[0] + tile[1] + ..., in this order."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x = args[0]
        for v in cgutils.unpack_tuple(builder, args[1]):
            x = builder.fadd(x, v)
        return x

    return x(x, tile), generate


@intrinsic
def tmerge(typingctx: Any, tile: Any) -> Any:
    """Of 8 k vectors the k sums of every k-th, added as `vsum` adds its lanes."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vectors = cgutils.unpack_tuple(builder, args[0])
        while len(vectors) > sig.return_type.count:
            half = len(vectors) // 2
            vectors = [builder.fadd(vectors[m], vectors[m + half]) for m in range(half)]
        return _each(context, builder, sig, vectors)

    return _numbers(_v8, tile.count // LANES)(tile), generate


@intrinsic
def vtranspose(typingctx: Any, tile: Any) -> Any:
    """Of eight vectors, those whose lane i is lane 0, 1, ... of the i-th."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _each(context, builder, sig, _build_transpose(builder, cgutils.unpack_tuple(builder, args[0])))

    return tile(tile), generate


@intrinsic
def view(typingctx: Any, address: Any, size: Any, like: Any) -> Any:
    """The contiguous array of `size` numbers at an address, of the type of `like`. Who holds the memory is not this array's concern."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = context.get_data_type(like.dtype)
        array = context.make_array(like)(context, builder)
        itemsize = ir.Constant(_I64, context.get_abi_sizeof(kind))
        pointer = builder.inttoptr(args[0], ir.PointerType(kind))
        arrayobj.populate_array(array, data=pointer, shape=[args[1]], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()

    return like(_i8, _i8, like), generate
