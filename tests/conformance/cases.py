"""The conformance matrix: which cases exist, and which of them a run takes.

A case is plain data; the same list is built in the parent (which parametrises pytest) and sent to
the ranks. Everything random in a case follows from its `seed`.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from dataclasses import dataclass

RANKS = (1, 2, 3, 4, 5, 8)

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
REDUCED_DTYPES = (*FLOATS, *INTEGERS, "bool")
MOVED_DTYPES = (*REDUCED_DTYPES, "complex64", "float8_e4m3fn")

# PREMUL_SUM twice: its factor is a number or a one-element tensor.
FLOAT_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_NUMBER", "PREMUL_TENSOR")
INTEGER_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BOOL_OPS = ("SUM", "PRODUCT", "MIN", "MAX")

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
    if dtype in FLOATS:
        return FLOAT_OPS
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


def _spread(cases: list[Case], take: int, rng: random.Random) -> list[Case]:
    """`take` cases in which every dtype, reduce op, count and mode occurs as early as it can."""
    rest = [case for case in cases if case.count_name != "huge"]
    rng.shuffle(rest)
    seen: dict[tuple[str, object], int] = {}
    chosen: list[Case] = []

    def traits(case: Case):
        return (
            ("dtype", case.dtype),
            ("redop", case.redop),
            ("count", case.count_name),
            ("mode", case.is_async),
        )

    while rest and len(chosen) < take:
        best = min(rest, key=lambda case: sum(seen.get(trait, 0) for trait in traits(case)))
        rest.remove(best)
        chosen.append(best)
        for trait in traits(best):
            seen[trait] = seen.get(trait, 0) + 1
    return chosen


# Cases of one (ranks, operation) pair in the slice. 128 pairs, 5 of them barriers with 2 cases.
SLICE_MOVED = 8
SLICE_REDUCED = 11


def selection(ranks: int, op_name: str) -> list[Case]:
    """The cases this run takes: all of them, or a seeded slice."""
    cases = matrix(ranks, op_name)
    if run_all():
        return cases
    rng = random.Random(f"{base_seed()}/{ranks}/{op_name}")
    return _spread(cases, SLICE_REDUCED if OPS[op_name].reduces else SLICE_MOVED, rng)


def pairs() -> list[tuple[int, str]]:
    """The (ranks, operation) pairs that have cases, ranks outermost: one launch per world size."""
    return [(ranks, op) for ranks in RANKS for op in OPS if matrix(ranks, op)]
