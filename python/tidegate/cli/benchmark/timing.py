"""Times one cell on one rank: rounds in which each backend has its turn on the same tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from tidegate.cli.benchmark.case import Case
from tidegate.cli.benchmark.object_case import ObjectCase
from tidegate.cli.benchmark.request import COLLECTIVES, MEMCPY, NULL, Cell, Request, Row, Timing

# Long enough for the clock and the scheduler, short enough for many sizes.
ROUND_SECONDS = 0.05
MOST_CALLS = 2000

Call = Callable[[], object]


def rows_of(cell: Cell, rank: int, request: Request, groups: Mapping[str, Any]) -> list[Row]:
    """A row for each backend, and one for MEMCPY where that is the roofline; the same order on
    all ranks, whose control group is c10d's default."""
    kind = COLLECTIVES[cell.collective]
    out_of_place, errors = _place(cell, rank, request, groups, False) if kind.out_of_place else _NO
    in_place, more = _place(cell, rank, request, groups, True) if kind.in_place else _NO
    errors = {**more, **errors}
    names = [*groups, MEMCPY] if kind.roofline else list(groups)
    return [
        Row(cell, name, out_of_place.get(name), in_place.get(name), errors.get(name, ""))
        for name in names
    ]


_NO: tuple[dict[str, Timing], dict[str, str]] = ({}, {})


def _place(
    cell: Cell, rank: int, request: Request, groups: Mapping[str, Any], in_place: bool
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Timings and errors by backend."""
    kind = COLLECTIVES[cell.collective]
    case = ObjectCase(cell, rank) if kind.objects else Case(cell, rank, in_place)
    turns = {name: _Turn(request, case, groups[name], checked=name != NULL) for name in groups}
    if kind.roofline and not in_place:
        turns[MEMCPY] = _Turn(request, None, _copy(cell.copied_bytes), checked=False)
    errors: dict[str, str] = {}
    if kind.objects and turns.pop(NULL, None) is not None:
        errors[NULL] = "no object can be made of what was not communicated"
    for name, turn in list(turns.items()):
        if error := turn.prepare():
            errors[name] = error
            del turns[name]
    for number in range(request.rounds):
        # None always runs on the caches that the same other left.
        for turn in list(turns.values())[:: -1 if number % 2 else 1]:
            turn.run()
    return {name: turn.result() for name, turn in turns.items()}, errors


def _copy(size: int) -> Call:
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


class _Turn:
    """The calls of one backend, or the copies that stand beside them."""

    def __init__(
        self, request: Request, case: Case | ObjectCase | None, group: Any, checked: bool
    ) -> None:
        self._request = request
        self._case = case
        self._call: Call = group if case is None else lambda: case.call(group)
        self._checks = request.checks if checked else 0
        self._calls = request.calls
        self._seconds: list[float] = []
        self._each: list[float] = []
        self._wrong: int | None = None

    def prepare(self) -> str:
        """Warms up and decides how many calls a round has; returns why it cannot be done."""
        self._fill()
        error = ""
        try:
            self._call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as failure:
            error = str(failure).splitlines()[0] if str(failure) else repr(failure)
        failed = _agree(1.0 if error else 0.0, dist.ReduceOp.MAX)
        if failed:
            return error or "it failed on another rank"
        for _ in range(self._request.warmups):
            self._call()
        if self._calls == 0:
            estimate = self._estimate(1)
            if estimate < ROUND_SECONDS / 10:  # one short call says little
                estimate = self._estimate(10)
            self._calls = max(1, min(MOST_CALLS, round(ROUND_SECONDS / estimate)))
        return ""

    def run(self) -> None:
        self._fill()
        dist.barrier()
        if self._request.each_call:
            ends = [time.perf_counter()]
            for _ in range(self._calls):
                self._call()
                ends.append(time.perf_counter())
            seconds = (ends[-1] - ends[0]) / self._calls
            own = torch.tensor(ends, dtype=torch.float64).diff()
            dist.all_reduce(own, op=dist.ReduceOp.MAX)
            self._each += own.tolist()
        else:
            seconds = self._time(self._calls)
        self._seconds.append(_agree(seconds, dist.ReduceOp.SUM) / dist.get_world_size())
        self._check()

    def result(self) -> Timing:
        wrong = self._wrong
        if wrong is not None:
            wrong = int(_agree(wrong, dist.ReduceOp.SUM))
        return Timing(self._calls, self._seconds, wrong, self._each)

    def _fill(self) -> None:
        if self._case is not None:
            self._case.clear() if self._case.accumulates else self._case.fill()

    def _time(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self._call()
        return (time.perf_counter() - start) / calls

    def _estimate(self, calls: int) -> float:
        dist.barrier()
        return max(1e-9, _agree(self._time(calls), dist.ReduceOp.MAX))

    def _check(self) -> None:
        """The first check is of the call that was timed last, where that does not accumulate."""
        if self._case is None:
            return
        for number in range(self._checks):
            if number > 0 or self._case.accumulates:
                self._case.fill()
                self._call()
            wrong = self._case.wrong()
            if wrong is not None:
                self._wrong = (self._wrong or 0) + wrong


def _agree(value: float, op: Any) -> float:
    """The same on all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return float(tensor.item())
