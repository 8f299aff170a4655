"""The conformance matrix: which cases exist, and which of them a run takes.

A case is plain data; the same list is built in the parent (which parametrises pytest) and sent to
the ranks. Everything random in a case follows from its `seed`.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections import Counter
from dataclasses import dataclass

RANKS = (1, 2, 3, 4, 5, 8)

FLOATS = ("float32", "float64", "bfloat16", "float16")
FLOAT8S = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COMPLEX = ("complex32", "complex64", "complex128")
REDUCED_DTYPES = (*FLOATS, *FLOAT8S, *INTEGERS, *COMPLEX, "bool")
# The last one stands for those that are a byte to us and have no arithmetic.
MOVED_DTYPES = (*REDUCED_DTYPES, "float4_e2m1fn_x2")

# PREMUL_SUM twice: its factor is a number or a one-element tensor.
PREMULS = ("PREMUL_NUMBER", "PREMUL_TENSOR")
FLOAT_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *PREMULS)
INTEGER_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
COMPLEX_OPS = ("SUM", "AVG", "PRODUCT", *PREMULS)
BOOL_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

LARGE = 300_007
HUGE = 10_000_019  # fp32: 40 MB
# Elements of a whole message for "large" and "huge", of one rank's part otherwise.
COUNTS = ("0", "1", "7", "1027", "large")


@dataclass(frozen=True)
class Op:
    """One row of the matrix. `slots`: a buffer of the operation holds a part for every rank."""

    name: str
    reduces: bool = False
    slots: bool = False
    modes: tuple[bool, ...] = (False, True)
    least_ranks: int = 1


OPS = {
    op.name: op
    for op in (
        Op("all_gather_single", slots=True),
        Op("all_gather_single_in_place", slots=True),
        Op("all_gather_list_adjacent", slots=True),
        Op("all_gather_list_separate", slots=True),
        Op("all_gather_list_uneven", slots=True),
        Op("all_gather_coalesced", slots=True),
        Op("broadcast"),
        Op("gather", slots=True),
        Op("scatter", slots=True),
        Op("all_to_all_single", slots=True),
        Op("all_to_all_single_uneven", slots=True),
        Op("all_to_all_list", slots=True),
        Op("send_recv", modes=(False,), least_ranks=2),
        Op("isend_irecv", modes=(True,), least_ranks=2),
        Op("send_recv_any_source", least_ranks=2),
        Op("barrier"),
        Op("all_reduce", reduces=True),
        Op("all_reduce_coalesced", reduces=True),
        Op("reduce", reduces=True),
        Op("reduce_scatter_single", reduces=True, slots=True),
        Op("reduce_scatter_single_in_place", reduces=True, slots=True),
        Op("reduce_scatter_list", reduces=True, slots=True),
        Op("reduce_scatter_list_uneven", reduces=True, slots=True),
        Op("reduce_scatter_coalesced", reduces=True, slots=True),
    )
}

HUGE_OPS = ("all_gather_single", "reduce_scatter_single", "all_reduce", "broadcast")
HUGE_RANKS = (2, 4)


@dataclass(frozen=True)
class Case:
    """One call of one collective by every rank of the default group."""

    op: str
    dtype: str
    redop: str  # "" for operations that only move bytes
    count_name: str
    ranks: int
    is_async: bool
    seed: int

    @property
    def count(self) -> int:
        """Elements of one rank's part."""
        if self.count_name not in ("large", "huge"):
            return int(self.count_name)
        whole = LARGE if self.count_name == "large" else HUGE
        return whole // self.ranks if OPS[self.op].slots else whole

    @property
    def offset(self) -> int:
        """Elements between an aligned address and the first element of each buffer."""
        return (0, 1, 3)[self.seed % 3]

    def describe(self) -> str:
        reduction = f" {self.redop}" if self.redop else ""
        mode = "async" if self.is_async else "sync"
        return (
            f"{self.op} {self.dtype}{reduction} count={self.count} ranks={self.ranks} {mode} "
            f"offset={self.offset} seed={self.seed}"
        )


def base_seed() -> int:
    """Seed of the slice and of all data; set TIDEGATE_TEST_SEED to repeat a run."""
    return int(os.environ.get("TIDEGATE_TEST_SEED", "20261121"))


def run_all() -> bool:
    return os.environ.get("TIDEGATE_TEST_ALL", "0") not in ("", "0")


def redops(dtype: str) -> tuple[str, ...]:
    if dtype in FLOATS or dtype in FLOAT8S:
        return FLOAT_OPS
    if dtype in COMPLEX:
        return COMPLEX_OPS
    return BOOL_OPS if dtype == "bool" else INTEGER_OPS


def _make(op: str, dtype: str, redop: str, count: str, ranks: int, is_async: bool) -> Case:
    key = f"{base_seed()}/{op}/{dtype}/{redop}/{count}/{ranks}/{is_async}"
    return Case(op, dtype, redop, count, ranks, is_async, zlib.crc32(key.encode()))


def matrix(ranks: int, op_name: str) -> list[Case]:
    """Every case of one operation at one world size."""
    op = OPS[op_name]
    if ranks < op.least_ranks:
        return []
    if op_name == "barrier":
        pairs = [("uint8", "")]
        counts: tuple[str, ...] = ("0",)
    elif op.reduces:
        pairs = [(dtype, redop) for dtype in REDUCED_DTYPES for redop in redops(dtype)]
        counts = COUNTS
    else:
        pairs = [(dtype, "") for dtype in MOVED_DTYPES]
        counts = COUNTS
    cases = [
        _make(op_name, dtype, redop, count, ranks, is_async)
        for (dtype, redop), count, is_async in itertools.product(pairs, counts, op.modes)
    ]
    if op_name in HUGE_OPS and ranks in HUGE_RANKS:
        cases.append(_make(op_name, "float32", "SUM" if op.reduces else "", "huge", ranks, False))
    return cases


def _spread(cases: list[Case], wanted: list[tuple[str, str]], rng: random.Random) -> list[Case]:
    """A case for each (dtype, reduce op) of `wanted`, with counts and modes spread evenly."""
    seen: Counter[object] = Counter()
    chosen: list[Case] = []
    for dtype, redop in wanted:
        rest = [
            case
            for case in cases
            if (case.dtype, case.redop) == (dtype, redop)
            and case.count_name != "huge"
            and case not in chosen
        ]
        rng.shuffle(rest)
        if rest:
            best = min(rest, key=lambda case: seen[case.count_name] + seen[case.is_async])
            chosen.append(best)
            seen.update((best.count_name, best.is_async))
    return chosen


# Cases of one (ranks, operation) pair in the slice. 128 pairs, 5 of them barriers with 2 cases.
SLICE_MOVED = 8
SLICE_REDUCED = 11


def selection(ranks: int, op_name: str) -> list[Case]:
    """The cases this run takes: all of them, or a seeded slice.

    The slices of the operations of one kind follow each other through one shuffled list of (dtype,
    reduce op) pairs, so that together they hold every pair.
    """
    cases = matrix(ranks, op_name)
    if run_all():
        return cases
    reduces = OPS[op_name].reduces
    take = SLICE_REDUCED if reduces else SLICE_MOVED
    kinds = list(dict.fromkeys((case.dtype, case.redop) for case in cases))
    random.Random(f"{base_seed()}/{reduces}").shuffle(kinds)
    place = [pair for pair in pairs() if OPS[pair[1]].reduces == reduces].index((ranks, op_name))
    cycle = itertools.islice(itertools.cycle(kinds), place * take, (place + 1) * take)
    return _spread(cases, list(cycle), random.Random(f"{base_seed()}/{ranks}/{op_name}"))


def pairs() -> list[tuple[int, str]]:
    """The (ranks, operation) pairs that have cases, ranks outermost: one launch per world size."""
    return [(n, name) for n in RANKS for name, op in OPS.items() if n >= op.least_ranks]
