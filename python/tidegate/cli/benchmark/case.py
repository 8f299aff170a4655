"""The tensors of one cell on one rank, the call of torch.distributed, and the check of its result.

In place means what it means for nccl-tests: a rank's part lies where it belongs in the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tidegate.cli.benchmark.request import COLLECTIVES, Cell
from tidegate.cli.benchmark.values import TYPES, Values, count_wrong, tile

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "avg": dist.ReduceOp.AVG,
}
# The old names are all that torch before 2.13 has.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Case:
    """Vectors `source` and `target`, which overlap in place; `call(group)` is what is timed."""

    call: Callable[[Any], object]

    def __init__(self, cell: Cell, rank: int, in_place: bool) -> None:
        self._cell = cell
        self._rank = rank
        self._values = Values(cell.type, cell.redop, cell.ranks)
        self._at_root = cell.root in (-1, rank)
        self._in_place = in_place
        # Called once more, it would reduce its own result.
        self.accumulates = in_place and COLLECTIVES[cell.collective].reduces
        getattr(self, f"_make_{cell.collective}")()

    def fill(self) -> None:
        """Makes the data new, and every element that the call must write wrong."""
        if self._cell.collective == "barrier":
            return
        self.target.fill_(self._values.poison)
        if self._cell.collective != "broadcast" or self._at_root:
            tile(self.source, self._values.of(self._rank), 0)

    def clear(self) -> None:
        """Zeros instead: what accumulates stays finite and of one speed."""
        self.source.zero_()
        self.target.zero_()

    def wrong(self) -> int | None:
        """Elements of the result that are not the exact ones; None where there is nothing."""
        name, count = self._cell.collective, self._cell.count
        if name == "barrier":
            return None
        if name in ("all_reduce", "reduce"):
            return self._wrong(self.target, self._values.reduced(), 0) if self._at_root else 0
        if name == "reduce_scatter":
            return self._wrong(self.target, self._values.reduced(), self._rank * count)
        if name == "broadcast":
            return self._wrong(self.target, self._values.of(self._cell.root), 0)
        if name == "scatter":
            return self._wrong(self.target, self._values.of(self._cell.root), self._rank * count)
        if name == "gather" and not self._at_root:
            return 0
        start = self._rank * count if name == "all_to_all" else 0
        return sum(
            self._wrong(part, self._values.of(peer), start)
            for peer, part in enumerate(self._parts(self.target))
        )

    def _wrong(self, actual: Any, period: Any, start: int) -> int:
        return count_wrong(actual, period, start, self._values.tolerance)

    def _vector(self, count: int) -> Any:
        return torch.zeros(count, dtype=TYPES[self._cell.type])

    def _parts(self, whole: Any) -> list[Any]:
        count = self._cell.count
        return [whole[count * rank : count * (rank + 1)] for rank in range(self._cell.ranks)]

    def _part_and_whole(self, with_whole: bool = True) -> tuple[Any, Any]:
        """Without a whole, the rank has its part alone."""
        whole = self._vector(self._cell.count * self._cell.ranks if with_whole else 0)
        if self._in_place and with_whole:
            return self._parts(whole)[self._rank], whole
        return self._vector(self._cell.count), whole

    def _make_all_gather(self) -> None:
        self.source, self.target = self._part_and_whole()
        self.call = lambda group: _all_gather(self.target, self.source, group=group)

    def _make_reduce_scatter(self) -> None:
        self.target, self.source = self._part_and_whole()
        op = _REDUCTIONS[self._cell.redop]
        self.call = lambda group: _reduce_scatter(self.target, self.source, op=op, group=group)

    def _make_all_reduce(self) -> None:
        self.source = self.target = self._vector(self._cell.count)
        op = _REDUCTIONS[self._cell.redop]
        self.call = lambda group: dist.all_reduce(self.target, op=op, group=group)

    def _make_broadcast(self) -> None:
        self.source = self.target = self._vector(self._cell.count)
        self.call = lambda group: dist.broadcast(self.target, self._cell.root, group=group)

    def _make_reduce(self) -> None:
        self.source = self.target = self._vector(self._cell.count)
        op, root = _REDUCTIONS[self._cell.redop], self._cell.root
        self.call = lambda group: dist.reduce(self.target, root, op=op, group=group)

    def _make_gather(self) -> None:
        self.source, self.target = self._part_and_whole(self._at_root)
        parts = self._parts(self.target) if self._at_root else None
        root = self._cell.root
        self.call = lambda group: dist.gather(self.source, parts, root, group=group)

    def _make_scatter(self) -> None:
        self.target, self.source = self._part_and_whole(self._at_root)
        parts = self._parts(self.source) if self._at_root else None
        root = self._cell.root
        self.call = lambda group: dist.scatter(self.target, parts, root, group=group)

    def _make_all_to_all(self) -> None:
        self.source = self._vector(self._cell.count * self._cell.ranks)
        self.target = torch.zeros_like(self.source)
        self.call = lambda group: dist.all_to_all_single(self.target, self.source, group=group)

    def _make_barrier(self) -> None:
        self.source = self.target = self._vector(0)
        self.call = lambda group: dist.barrier(group=group)
