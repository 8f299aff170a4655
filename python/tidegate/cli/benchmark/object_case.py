"""The Python objects of one cell on one rank: what `Case` is for tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from tidegate.cli.benchmark.request import Cell
from tidegate.cli.benchmark.values import PERIOD, Values


class ObjectCase:
    """`bytes` objects, pickled and sent by c10d's functions of the collectives' names.

    There is no other place than the list that a function is given, so nothing accumulates.
    """

    accumulates = False
    call: Callable[[Any], object]

    def __init__(self, cell: Cell, rank: int) -> None:
        self._cell = cell
        self._rank = rank
        self._at_root = rank == cell.root
        self._own = self._object(rank)
        self._results: list[Any] = []
        getattr(self, f"_make_{cell.collective}")()

    def fill(self) -> None:
        """Takes away what an earlier call has left."""
        self._results[:] = [None] * len(self._results)
        if self._cell.collective == "broadcast_object_list" and self._at_root:
            self._results[0] = self._own

    clear = fill

    def wrong(self) -> int:
        """Bytes of the results that are not the right ones."""
        name, root = self._cell.collective, self._cell.root
        if name == "broadcast_object_list":
            expected = [self._object(root)]
        elif name == "scatter_object_list":
            expected = [self._object(root, self._rank)]
        else:
            expected = [self._object(peer) for peer in range(len(self._results))]
        return sum(map(_wrong_bytes, self._results, expected))

    def _object(self, rank: int, part: int = 0) -> bytes:
        """Part `part` of what a rank has for all, which goes on where the part before it ends."""
        start, count = part * self._cell.count % PERIOD, self._cell.count
        period = bytes(Values("uint8", "none", self._cell.ranks).of(rank).tolist())
        return (period * (-(-(start + count) // PERIOD)))[start : start + count]

    def _make_all_gather_object(self) -> None:
        self._results = [None] * self._cell.ranks
        self.call = lambda group: dist.all_gather_object(self._results, self._own, group=group)

    def _make_broadcast_object_list(self) -> None:
        self._results = [None]
        root = self._cell.root
        self.call = lambda group: dist.broadcast_object_list(self._results, root, group=group)

    def _make_gather_object(self) -> None:
        self._results = [None] * (self._cell.ranks if self._at_root else 0)
        results, root = self._results if self._at_root else None, self._cell.root
        self.call = lambda group: dist.gather_object(self._own, results, root, group=group)

    def _make_scatter_object_list(self) -> None:
        self._results = [None]
        root, ranks = self._cell.root, range(self._cell.ranks)
        parts = [self._object(root, rank) for rank in ranks] if self._at_root else None
        self.call = lambda group: dist.scatter_object_list(self._results, parts, root, group=group)


def _wrong_bytes(actual: Any, expected: bytes) -> int:
    if actual == expected:
        return 0
    if not isinstance(actual, bytes) or len(actual) != len(expected):
        return len(expected)
    return sum(a != b for a, b in zip(actual, expected, strict=True))
