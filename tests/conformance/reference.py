"""The documented results of the reductions, computed with numpy.

Canonical order: the contributions of rank 0, 1, ..., n-1, accumulated from the left. fp32, bf16,
fp16 and the 8-bit floats accumulate in fp32 and fp64 in fp64, each step rounded by itself (no fused
multiply-add), and the result is rounded to the output dtype once, to nearest even; to 8 bits as
torch converts fp32 (`tensor.to`). AVG divides the accumulated sum by n in the accumulation type;
PREMUL_SUM multiplies each input by the factor, given in the accumulation type, before adding it.
MIN and MAX propagate NaN. Complex numbers add by their parts; (a + bi)(c + di) is (ac - bd) +
(ad + bc)i, each step rounded. Integers wrap in their own width, and their AVG is the sum in 64 bits
divided with truncation toward zero. For bool, SUM, MAX and BOR are logical or, PRODUCT, MIN and
BAND logical and, BXOR exclusive or.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.conformance import data

FACTOR = 0.3

MANTISSA_BITS = {
    "float32": 24,
    "float64": 53,
    "bfloat16": 8,
    "float16": 11,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
    "float8_e4m3fnuz": 4,
    "float8_e5m2fnuz": 3,
    "float8_e8m0fnu": 1,
}
# Where spacing does not follow from that of fp32: the distance of the smallest numbers.
SMALLEST = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float64": 2.0**-1072,  # some steps of the accumulation
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
    "float8_e4m3fnuz": 2.0**-10,
    "float8_e5m2fnuz": 2.0**-17,
    "float8_e8m0fnu": 2.0**-126,
}
# Numbers beyond it are no numbers in these, or saturate.
GREATEST = {
    "float16": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}


@dataclass(frozen=True)
class Reduced:
    """The exact expected bits and, for float dtypes, an independent fp64 value with its bound."""

    bits: np.ndarray
    near: np.ndarray | None = None
    bound: np.ndarray | None = None


def is_float(dtype: str) -> bool:
    return dtype in MANTISSA_BITS


def factor_in(dtype: str, redop: str) -> float:
    """The PREMUL_SUM factor as the accumulation type sees it; `dtype` is not complex."""
    if redop == "PREMUL_TENSOR":  # the factor tensor has the dtype of the data
        rounded = data.narrow(np.array([FACTOR], dtype=np.float64), dtype)
        return float(data.widen(rounded, dtype, np.float64)[0])
    return float(np.float64(FACTOR) if dtype == "float64" else np.float32(FACTOR))


def reduce(inputs: list[np.ndarray], dtype: str, redop: str) -> Reduced:
    """Reduces the ranks' contributions, given as carriers in rank order."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            combine = np.logical_or if redop in ("SUM", "MAX", "BOR") else np.logical_and
            return Reduced(_fold(inputs, np.logical_xor if redop == "BXOR" else combine))
        if dtype in data.PARTS:
            return _reduce_complex(inputs, dtype, redop)
        if not is_float(dtype):
            return Reduced(_reduce_integers(inputs, dtype, redop))
        return _reduce_floats(inputs, dtype, redop)


def _fold(inputs, combine) -> np.ndarray:
    result = inputs[0].copy()
    for item in inputs[1:]:
        result = combine(result, item)
    return result


def _reduce_integers(inputs: list[np.ndarray], dtype: str, redop: str) -> np.ndarray:
    if redop == "AVG":
        if dtype == "uint64":
            return _fold(inputs, np.add) // np.uint64(len(inputs))
        total = _fold([item.astype(np.int64) for item in inputs], np.add)
        truncated = np.sign(total) * (np.abs(total) // len(inputs))
        return truncated.astype(data.CARRIERS[dtype])
    combine = {
        "SUM": np.add,
        "PRODUCT": np.multiply,
        "MIN": np.minimum,
        "MAX": np.maximum,
        "BAND": np.bitwise_and,
        "BOR": np.bitwise_or,
        "BXOR": np.bitwise_xor,
    }[redop]
    return _fold(inputs, combine)


def _reduce_complex(inputs: list[np.ndarray], dtype: str, redop: str) -> Reduced:
    """`near` and `bound` are those of the parts."""
    terms = [data.parts(item, dtype)[0] for item in inputs]
    part = data.PARTS[dtype]
    if redop != "PRODUCT":
        result = _reduce_floats(terms, part, redop)
        return Reduced(result.bits.view(data.CARRIERS[dtype]), result.near, result.bound)
    accumulator = np.float64 if part == "float64" else np.float32
    rounded = [data.widen(item, part, accumulator) for item in terms]
    real, imaginary = rounded[0][::2], rounded[0][1::2]
    exact = rounded[0].astype(np.float64).view(np.complex128)
    size = np.abs(exact)
    for item in rounded[1:]:
        c, d = item[::2], item[1::2]
        real, imaginary = real * c - imaginary * d, real * d + imaginary * c
        exact = exact * item.astype(np.float64).view(np.complex128)
        size = size * np.abs(item.astype(np.float64).view(np.complex128))
    result = np.stack([real, imaginary], axis=1).reshape(-1)
    near = exact.view(np.float64)
    # Each of the steps loses a few units in the last place of the product's magnitude.
    steps = np.exp2(-float(MANTISSA_BITS["float64" if part == "float64" else "float32"]))
    slack = np.repeat(size, 2) * steps * 8 * len(inputs)
    bound = slack + np.exp2(-float(MANTISSA_BITS[part])) * (np.abs(near) + slack)
    bound = bound + len(inputs) * SMALLEST.get(part, 2.0**-149)
    tame = np.repeat(_fold([_tame(item) for item in rounded], np.logical_and), 2)
    bound = np.where(tame & (np.repeat(size, 2) < GREATEST.get(part, np.inf) / 2), bound, np.inf)
    bits = data.narrow(result, part)
    return Reduced(bits.view(data.CARRIERS[dtype]), near, bound)


def _tame(parts: np.ndarray) -> np.ndarray:
    """Complex elements whose parts are near one, so that no product of them loses a part."""
    sizes = np.abs(parts.reshape(-1, 2))
    return ((sizes >= 0.5) & (sizes <= 4)).all(axis=1)


def _reduce_floats(inputs: list[np.ndarray], dtype: str, redop: str) -> Reduced:
    accumulator = np.float64 if dtype == "float64" else np.float32
    terms = [data.widen(item, dtype, accumulator) for item in inputs]
    exact = [item.astype(np.float64) for item in terms]
    if redop in ("MIN", "MAX"):
        combine = np.minimum if redop == "MIN" else np.maximum  # both propagate NaN
        near = _fold(exact, combine)
        return Reduced(data.narrow(_fold(terms, combine), dtype), near, np.zeros_like(near))
    count = len(inputs)
    scale = 1.0
    if redop.startswith("PREMUL"):
        scale = factor_in(dtype, redop)
        terms = [item * accumulator(scale) for item in terms]
        exact = [item * scale for item in exact]
    if redop == "PRODUCT":
        near = _fold(exact, np.multiply)
        slack = np.abs(near) * count
        result = _fold(terms, np.multiply)
    else:
        near = _fold(exact, np.add)
        slack = sum(np.abs(item) for item in exact) * count
        result = _fold(terms, np.add)
    if redop == "AVG":
        result = result / accumulator(count)
        near = near / count
        slack = slack / count
    # Each accumulation step rounds once by half an ulp of a partial result, the last rounding is
    # half an ulp of the output; below the smallest normal the spacing is constant.
    steps = np.exp2(-float(MANTISSA_BITS["float64" if dtype == "float64" else "float32"]))
    last = np.exp2(-float(MANTISSA_BITS[dtype]))
    smallest = SMALLEST.get(dtype, 2.0**-149)
    bound = 2 * steps * slack + last * (np.abs(near) + 2 * steps * slack) + count * smallest
    # Where a partial sum may overflow, only the bits are checked.
    limit = GREATEST.get(dtype, float(np.finfo(accumulator).max)) / 2
    bound = np.where(np.isfinite(near) & (slack < limit), bound, np.inf)
    if redop == "PRODUCT":  # a partial product that underflows has no such bound either
        tame = _fold(
            [(np.abs(item) >= 0.5) & (np.abs(item) <= 4) for item in exact], np.logical_and
        )
        bound = np.where(tame, bound, np.inf)
    return Reduced(data.narrow(result, dtype), near, bound)
