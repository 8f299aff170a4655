"""Inputs of the ranks: seeded, different on every rank, and cheap to make on all of them.

Every rank can compute every other rank's input. To keep that affordable, one block of random
elements is made per (dtype, kind) and an input is a window of it whose position follows from the
case's seed, the rank and the part.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import torch

BLOCK = 1 << 19

# The carrier is the numpy type in which the bits of a torch dtype travel.
CARRIERS = {
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": np.uint16,
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "complex32": np.uint32,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
    "float4_e2m1fn_x2": np.uint8,
}
# The dtype of the real and imaginary parts.
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def itemsize(name: str) -> int:
    return np.dtype(CARRIERS[name]).itemsize


def kind_of(dtype: str, redop: str) -> str:
    """Which distribution suits a reduction; "bits" for operations that only move bytes."""
    if not redop:
        return "bits"
    if dtype == "bool":
        return "common" if redop in ("PRODUCT", "MIN", "BAND") else "rare"
    if dtype.startswith(("int", "uint")):
        return "small" if redop == "AVG" else "bits"
    if redop in ("MIN", "MAX"):
        return "ordered"
    return "near_one" if redop == "PRODUCT" else "wide"


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds fp32 or fp64 values to `dtype`, nearest even, and returns its carrier."""
    if dtype.startswith("float8"):  # torch's conversion of fp32 is what defines these
        floats = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        if dtype == "float8_e4m3fn":  # torch 2.11 made what is too large NaN, later ones saturate
            floats = floats.clamp(-448.0, 448.0)
        return floats.to(torch_dtype(dtype)).view(torch.uint8).numpy()
    if dtype != "bfloat16":
        return values.astype(CARRIERS[dtype])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def widen(carrier: np.ndarray, dtype: str, to: type) -> np.ndarray:
    """The values of a carrier as fp32 or fp64 (exact for every float dtype that fits)."""
    if dtype.startswith("float8"):
        codes = torch.from_numpy(np.ascontiguousarray(carrier).copy()).view(torch_dtype(dtype))
        with np.errstate(invalid="ignore"):  # signaling NaNs
            return codes.to(torch.float32).numpy().astype(to)
    if dtype != "bfloat16":
        return carrier.astype(to)
    return (carrier.astype(np.uint32) << 16).view(np.float32).astype(to)


def parts(carrier: np.ndarray, dtype: str) -> tuple[np.ndarray, str]:
    """Complex elements as twice as many of their parts, with the parts' dtype; others as is."""
    part = PARTS.get(dtype)
    return (carrier, dtype) if part is None else (carrier.view(CARRIERS[part]), part)


def _specials(dtype: str, kind: str) -> np.ndarray:
    info = torch.finfo(torch_dtype(dtype))
    values = [np.inf, -np.inf, np.nan, info.max, info.max, info.min, info.tiny]
    values += [info.smallest_normal / 4, info.max / 2]
    if dtype == "float8_e8m0fnu":
        return np.abs(np.array(values, dtype=np.float64))
    if kind != "ordered":  # which zero is the smaller one is not defined
        values += [0.0, -0.0]
    return np.array(values, dtype=np.float64)


@cache
def block(dtype: str, kind: str) -> np.ndarray:
    """BLOCK elements of one distribution, as a carrier array."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype}/{kind}".encode()))
    carrier = CARRIERS[dtype]
    if dtype == "bool":
        share = {"bits": 0.5, "rare": 0.15, "common": 0.85}[kind]
        return rng.random(BLOCK) < share
    if kind == "bits":
        return rng.integers(0, 256, BLOCK * itemsize(dtype), dtype=np.uint8).view(carrier)
    if kind == "small":
        return rng.integers(-128, 128, BLOCK).astype(carrier)
    if dtype in PARTS:
        pairs = np.concatenate([block(PARTS[dtype], kind), block(PARTS[dtype], kind)[::-1]])
        return pairs.view(carrier)
    spread = 6
    if kind == "near_one":
        spread = 0
    elif dtype.startswith("float8"):  # few of the sums leave the range
        spread = 2
    values = rng.uniform(1, 2, BLOCK)
    if dtype != "float8_e8m0fnu":  # has no sign
        values *= rng.choice([-1.0, 1.0], BLOCK)
    values *= np.exp2(rng.integers(-spread - 1, spread + 1, BLOCK))
    where = rng.choice(BLOCK, BLOCK // 97, replace=False)
    values[where] = rng.choice(_specials(dtype, kind), where.size)
    with np.errstate(over="ignore", under="ignore"):
        single = dtype == "bfloat16" or dtype.startswith("float8")
        narrowed = narrow(values.astype(np.float32) if single else values, dtype)
    narrowed.setflags(write=False)
    return narrowed


def values(dtype: str, kind: str, count: int, seed: int, rank: int, part: int = 0) -> np.ndarray:
    """`count` elements that are `rank`'s input for `part`."""
    source = block(dtype, kind)
    start = zlib.crc32(f"{seed}/{rank}/{part}".encode()) % (BLOCK - 1)
    if start + count <= BLOCK:
        return source[start : start + count]
    return np.take(source, np.arange(start, start + count), mode="wrap")


def to_tensor(carrier: np.ndarray, dtype: str) -> torch.Tensor:
    """A fresh tensor holding the bits of `carrier`."""
    raw = torch.from_numpy(np.ascontiguousarray(carrier).view(np.uint8).copy())
    return raw.view(torch_dtype(dtype))


def to_carrier(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The bits of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().view(CARRIERS[dtype])


def prepare() -> None:
    """Makes every block now: processes forked afterwards share them."""
    for dtype in CARRIERS:
        block(dtype, "bits")
        if dtype.startswith(("int", "uint")):
            block(dtype, "small")
        elif dtype == "bool":
            for kind in ("rare", "common"):
                block(dtype, kind)
        elif dtype != "float4_e2m1fn_x2":
            for kind in ("wide", "near_one", *(() if dtype in PARTS else ("ordered",))):
                block(dtype, kind)
