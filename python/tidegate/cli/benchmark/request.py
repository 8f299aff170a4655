"""What is asked of a run, and what it answers: plain data that travels between processes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

ALIGNMENT = 16  # bytes that the part of one rank is a multiple of
# nccl-tests' names of types, in its order, and how many bytes an element has.
TYPE_BYTES = {
    **{"int8": 1, "uint8": 1, "int32": 4, "int64": 8},
    **{"half": 2, "float": 4, "double": 8, "bfloat16": 2},
}
TYPE_ALIASES = {"float16": "half", "float32": "float", "float64": "double"}
OPS = ("sum", "prod", "max", "min", "avg")
MEMCPY = "memcpy"  # stands among the backends for the copies that set the roofline
NULL = "null"


@dataclass(frozen=True)
class Collective:
    """What nccl-tests' conventions say of a collective, and what c10d's interface makes of it."""

    by_parts: bool = True  # the size is that of all ranks' parts
    reduces: bool = False
    rooted: bool = False
    out_of_place: bool = True
    in_place: bool = True
    roofline: bool = False
    objects: bool = False  # of Python, which c10d pickles

    def count(self, size: int, ranks: int, type_bytes: int) -> int:
        """The elements in nccl-tests' column: of one rank's part where there are parts."""
        if not self.by_parts:
            return size // type_bytes
        step = max(1, ALIGNMENT // type_bytes)
        return size // type_bytes // ranks // step * step


COLLECTIVES = {
    "all_gather": Collective(roofline=True),
    "reduce_scatter": Collective(reduces=True, roofline=True),
    "all_reduce": Collective(by_parts=False, reduces=True, out_of_place=False),
    "broadcast": Collective(by_parts=False, rooted=True, out_of_place=False),
    "reduce": Collective(by_parts=False, reduces=True, rooted=True, out_of_place=False),
    "gather": Collective(rooted=True),
    "scatter": Collective(rooted=True),
    "all_to_all": Collective(in_place=False),
    "barrier": Collective(by_parts=False, in_place=False),
    "all_gather_object": Collective(in_place=False, objects=True),
    "broadcast_object_list": Collective(
        by_parts=False, rooted=True, out_of_place=False, objects=True
    ),
    "gather_object": Collective(rooted=True, in_place=False, objects=True),
    "scatter_object_list": Collective(rooted=True, in_place=False, objects=True),
}
# What is timed of no type, or of one alone.
_TYPES = {
    "barrier": ["float"],
    **{name: ["uint8"] for name, kind in COLLECTIVES.items() if kind.objects},
}


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw, as doc/PERFORMANCE.md of nccl-tests derives it."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if COLLECTIVES[collective].by_parts else 1.0


@dataclass(frozen=True)
class Cell:
    """One line of the tables."""

    collective: str
    ranks: int
    type: str
    redop: str  # "none" where nothing is reduced
    root: int  # -1 where there is none
    count: int

    @property
    def bytes(self) -> int:
        parts = self.ranks if COLLECTIVES[self.collective].by_parts else 1
        return self.count * TYPE_BYTES[self.type] * parts

    @property
    def copied_bytes(self) -> int:
        """The size of a memcpy that reads and writes together as much as a rank must.

        All-gather reads and writes the whole. Reduce-scatter reads its part on every rank, which
        makes a whole, and writes a part.
        """
        if self.collective == "reduce_scatter":
            return (self.bytes + self.bytes // self.ranks) // 2
        return self.bytes


@dataclass(frozen=True)
class Request:
    """A run but for its ranks. `calls` 0: as many in a round as fill ROUND_SECONDS."""

    collectives: list[str]
    sizes: list[int]
    types: list[str]
    ops: list[str]
    root: int
    backends: list[str]
    calls: int
    warmups: int
    checks: int
    rounds: int
    each_call: bool

    def cells(self, ranks: int) -> Iterator[Cell]:
        """In the order in which they are measured; a root of -1 is every rank in turn."""
        for name in self.collectives:
            kind = COLLECTIVES[name]
            for type_name in _TYPES.get(name, self.types):
                for op in self.ops if kind.reduces else ["none"]:
                    for root in self._roots(kind, ranks):
                        for size in self.sizes if name != "barrier" else [0]:
                            count = kind.count(size, ranks, TYPE_BYTES[type_name])
                            yield Cell(name, ranks, type_name, op, root, count)

    def _roots(self, kind: Collective, ranks: int) -> list[int]:
        if not kind.rooted:
            return [-1]
        return list(range(ranks)) if self.root == -1 else [self.root]

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Request:
        return Request(**json.loads(text))


@dataclass(frozen=True)
class Timing:
    """`seconds` of a call, by round; `each` those of every call, if asked for.

    `wrong` is None where nothing was checked.
    """

    calls: int
    seconds: list[float]
    wrong: int | None
    each: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Row:
    """What one backend did in one cell; `error` says why there are no times."""

    cell: Cell
    backend: str
    out_of_place: Timing | None = None
    in_place: Timing | None = None
    error: str = ""

    @property
    def timings(self) -> list[Timing]:
        return [timing for timing in (self.out_of_place, self.in_place) if timing is not None]

    @property
    def failed_checks(self) -> int:
        return sum(bool(timing.wrong) for timing in self.timings)


def dump_rows(rows: list[Row]) -> str:
    return json.dumps([asdict(row) for row in rows])


def load_rows(text: str) -> list[Row]:
    def timing(found: dict[str, Any] | None) -> Timing | None:
        return None if found is None else Timing(**found)

    return [
        Row(
            Cell(**row["cell"]),
            row["backend"],
            timing(row["out_of_place"]),
            timing(row["in_place"]),
            row["error"],
        )
        for row in json.loads(text)
    ]
