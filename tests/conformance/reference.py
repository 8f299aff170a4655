"""The documented results of the reductions, computed with numpy.

Canonical order: the contributions of rank 0, 1, ..., n-1, accumulated from the left. fp32, bf16 and
fp16 accumulate in fp32 and fp64 in fp64, each step rounded by itself (no fused multiply-add), and
the result is rounded to the output dtype once, to nearest even. AVG divides the accumulated sum by
n in the accumulation type; PREMUL_SUM multiplies each input by the factor, given in the
accumulation type, before adding it. MIN and MAX propagate NaN. Integers wrap in their own width,
and their AVG is the sum in 64 bits divided with truncation toward zero. For bool, SUM and MAX are
logical or, PRODUCT and MIN logical and.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.conformance import data

FACTOR = 0.3

MANTISSA_BITS = {"float32": 24, "float64": 53, "bfloat16": 8, "float16": 11}


@dataclass(frozen=True)
class Reduced:
    """The exact expected bits and, for float dtypes, an independent fp64 value with its bound."""

    bits: np.ndarray
    near: np.ndarray | None = None
    bound: np.ndarray | None = None


def is_float(dtype: str) -> bool:
    return dtype in MANTISSA_BITS


def factor_in(dtype: str, redop: str) -> float:
    """The PREMUL_SUM factor as the accumulation type sees it."""
    if redop == "PREMUL_TENSOR":  # the factor tensor has the dtype of the data
        rounded = data.narrow(np.array([FACTOR], dtype=np.float64), dtype)
        return float(data.widen(rounded, dtype, np.float64)[0])
    return float(np.float64(FACTOR) if dtype == "float64" else np.float32(FACTOR))


def reduce(inputs: list[np.ndarray], dtype: str, redop: str) -> Reduced:
    """Reduces the ranks' contributions, given as carriers in rank order."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            combine = np.logical_or if redop in ("SUM", "MAX") else np.logical_and
            return Reduced(_fold(inputs, combine))
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
        total = _fold([item.astype(np.int64) for item in inputs], np.add)
        truncated = np.sign(total) * (np.abs(total) // len(inputs))
        return truncated.astype(data.CARRIERS[dtype])
    combine = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}[redop]
    return _fold(inputs, combine)


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
    smallest = float(np.finfo(np.float16 if dtype == "float16" else np.float32).smallest_subnormal)
    if dtype == "bfloat16":
        smallest *= 2.0**16
    if dtype == "float64":
        smallest = float(np.finfo(np.float64).smallest_subnormal) * 4
    bound = 2 * steps * slack + last * (np.abs(near) + 2 * steps * slack) + count * smallest
    # Where a partial sum may overflow, only the bits are checked.
    limit = float(np.finfo(np.float16 if dtype == "float16" else accumulator).max) / 2
    bound = np.where(np.isfinite(near) & (slack < limit), bound, np.inf)
    if redop == "PRODUCT":  # a partial product that underflows has no such bound either
        tame = _fold(
            [(np.abs(item) >= 0.5) & (np.abs(item) <= 4) for item in exact], np.logical_and
        )
        bound = np.where(tame, bound, np.inf)
    return Reduced(data.narrow(result, dtype), near, bound)
