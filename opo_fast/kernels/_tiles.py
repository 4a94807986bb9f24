"""The operations of `_simd` on tiles, as intrinsics: each is unrolled into k operations in the kernel that calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._constants import LANES
from ._llvm import F8, I8, I64, V8, ZERO, Elements, build_sum, build_transpose, call_fma, splat

__all__ = [
    "clamped", "strided", "tadd", "tdot", "tfma", "tload", "tload_lines", "tmerge", "touter", "tput", "tread", "tset",
    "tstore", "tsum", "tzeros", "vtranspose",
]  # fmt: skip


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
        steps = [builder.mul(args[1], ir.Constant(I64, m)) for m in range(k.literal_value)]
        return _each(context, builder, sig, [builder.add(args[0], step) for step in steps])

    return _numbers(I8, k.literal_value)(I8, I8, k), generate


@intrinsic(prefer_literal=True)
def clamped(typingctx: Any, start: Any, stride: Any, first: Any, last: Any, k: Any) -> Any:
    """Positions start + min(first + m, last) * stride for m = 0..k-1; k is a number written in the source."""
    if not isinstance(k, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        begin, stride, first, last = args[:4]
        lines = [builder.add(first, ir.Constant(I64, m)) for m in range(k.literal_value)]
        lines = [builder.select(builder.icmp_signed("<", line, last), line, last) for line in lines]
        return _each(context, builder, sig, [builder.add(begin, builder.mul(line, stride)) for line in lines])

    return _numbers(I8, k.literal_value)(I8, I8, I8, I8, k), generate


@intrinsic(prefer_literal=True)
def tzeros(typingctx: Any, k: Any) -> Any:
    """k vectors of zeros; k is a number written in the source, or a tuple that has as many entries."""
    if not isinstance(k, types.IntegerLiteral | types.BaseTuple):
        return None
    count = k.literal_value if isinstance(k, types.IntegerLiteral) else k.count

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _each(context, builder, sig, [ZERO] * count)

    return _numbers(V8, count)(k), generate


@intrinsic
def tload(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The vectors at o + i of a contiguous float64 or float32 array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        return _each(context, builder, sig, [elements.load(position) for position in _at(builder, args[1], args[2])])

    return _numbers(V8, o.count)(array, o, I8), generate


@intrinsic
def tload_lines(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The vectors at column i of lines `o` of a contiguous float64 matrix."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        lines = cgutils.unpack_tuple(builder, args[1])
        return _each(context, builder, sig, [elements.load(elements.line(line, args[2])) for line in lines])

    return _numbers(V8, o.count)(array, o, I8), generate


@intrinsic
def tread(typingctx: Any, array: Any, o: Any, i: Any) -> Any:
    """The numbers at o + i of a contiguous array: float64, or int64 where the array holds integers."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        return _each(context, builder, sig, [elements.read(position) for position in _at(builder, args[1], args[2])])

    return _numbers(F8 if isinstance(array.dtype, types.Float) else I8, o.count)(array, o, I8), generate


@intrinsic
def tstore(typingctx: Any, array: Any, o: Any, i: Any, tile: Any) -> Any:
    """Write the vectors of a tile to o + i."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        for position, v in zip(_at(builder, args[1], args[2]), cgutils.unpack_tuple(builder, args[3]), strict=True):
            elements.store(position, v)
        return context.get_dummy_value()

    return types.void(array, o, I8, tile), generate


@intrinsic
def tput(typingctx: Any, array: Any, i: Any, tile: Any) -> Any:
    """Write the numbers of a tile to element i and those after it."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        for m, x in enumerate(cgutils.unpack_tuple(builder, args[2])):
            elements.put(builder.add(args[1], ir.Constant(I64, m)), x)
        return context.get_dummy_value()

    return types.void(array, I8, tile), generate


def _map_word(result: Any, build: Callable[..., Any]) -> Any:
    """An intrinsic that applies `build(builder, x)` to each entry of a tile."""

    @intrinsic
    def word(typingctx: Any, tile: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _each(context, builder, sig, [build(builder, x) for x in cgutils.unpack_tuple(builder, args[0])])

        return _numbers(result, tile.count)(tile), generate

    return word


# Vectors of eight times the same number; the sum of each vector, as `vsum` gives it.
tset, tsum = _map_word(V8, splat), _map_word(F8, build_sum)


def _entries(builder: Any, x: Any, kind: Any, count: int) -> list[Any]:
    return cgutils.unpack_tuple(builder, x) if isinstance(kind, types.BaseTuple) else [x] * count


# Operations that multiply read one entry, use it, and read the next: if a loop has more entries than the machine has
# registers, reading all of them first would store and load most again.


@intrinsic
def tfma(typingctx: Any, array: Any, o: Any, i: Any, x: Any, sums: Any) -> Any:
    """sums[m] + array[o[m] + i] * x[m], for vectors or numbers, whichever `sums` has; x may be one for all m."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        read = elements.load if sums.dtype == V8 else elements.read
        factors = _entries(builder, args[3], sig.args[3], sums.count)
        before = cgutils.unpack_tuple(builder, args[4])
        positions = _at(builder, args[1], args[2])
        entries = zip(positions, factors, before, strict=True)
        return _each(context, builder, sig, [call_fma(builder, read(position), y, z) for position, y, z in entries])

    return sums(array, o, I8, x, sums), generate


@intrinsic
def tdot(typingctx: Any, array: Any, o: Any, i: Any, x: Any, total: Any) -> Any:
    """total + array[o[0] + i] * x[0] + array[o[1] + i] * x[1] + ..., vectors, one multiply-add after the other."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        total = args[4]
        for position, y in zip(_at(builder, args[1], args[2]), cgutils.unpack_tuple(builder, args[3]), strict=True):
            total = call_fma(builder, elements.load(position), y, total)
        return total

    return V8(array, o, I8, x, V8), generate


@intrinsic
def touter(typingctx: Any, array: Any, o: Any, i: Any, x: Any, sums: Any) -> Any:
    """sums[m * len(x) + g] + array[o[m] + i] * x[g]: each number times each vector of the tile `x`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = Elements(context, builder, sig.args[0], args[0])
        vectors = cgutils.unpack_tuple(builder, args[3])
        before, after = cgutils.unpack_tuple(builder, args[4]), []
        for position in _at(builder, args[1], args[2]):
            y = splat(builder, elements.read(position))
            after += [call_fma(builder, y, v, before[len(after) + g]) for g, v in enumerate(vectors)]
        return _each(context, builder, sig, after)

    return sums(array, o, I8, x, sums), generate


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

    return _numbers(V8, tile.count // LANES)(tile), generate


@intrinsic
def vtranspose(typingctx: Any, tile: Any) -> Any:
    """Of eight vectors, those whose lane i is lane 0, 1, ... of the i-th."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _each(context, builder, sig, build_transpose(builder, cgutils.unpack_tuple(builder, args[0])))

    return tile(tile), generate
