"""Ranks that disagree about a call: an error everywhere, with both sides, and nothing written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.outcome import (
    LOADED_LIMIT_MS,
    Context,
    Outcome,
    call,
    check_error,
    expect_exit,
    watched_job,
)
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.processes import Rank

GROUP_TIMEOUT = 20.0
SENTINEL = 77.0

FLOAT = r"\b(float32|fp32|f32|float)\b"
DOUBLE = r"\b(float64|fp64|f64|double)\b"


class Call:
    """One collective over fresh buffers, and the buffers that it may write."""

    def __init__(self, rank: Rank, count: int, dtype: torch.dtype = torch.float32) -> None:
        size = rank.world_size
        self.shard = torch.full((count,), SENTINEL, dtype=dtype)
        self.whole = torch.full((count * size,), SENTINEL, dtype=dtype)
        self.source_shard = torch.full((count,), float(rank.rank), dtype=dtype)
        self.source_whole = torch.full((count * size,), float(rank.rank), dtype=dtype)

    def all_gather(self, asynchronous: bool) -> Any:
        return all_gather_single(self.whole, self.source_shard, async_op=asynchronous)

    def reduce_scatter(self, asynchronous: bool, op: Any = dist.ReduceOp.SUM) -> Any:
        return reduce_scatter_single(self.shard, self.source_whole, op, async_op=asynchronous)

    def all_reduce(self, asynchronous: bool, op: Any = dist.ReduceOp.SUM) -> Any:
        return dist.all_reduce(self.whole, op=op, async_op=asynchronous)

    def broadcast(self, asynchronous: bool, root: int = 0) -> Any:
        return dist.broadcast(self.whole, src=root, async_op=asynchronous)

    def reduce(self, asynchronous: bool, root: int = 0) -> Any:
        return dist.reduce(self.whole, dst=root, async_op=asynchronous)

    def all_to_all(self, asynchronous: bool, unequal: bool = False) -> Any:
        """Even splits, or (of 3 ranks) one element more for one peer and one less for the other."""
        size = dist.get_world_size()
        count = self.shard.numel()
        sends = [count] * size
        if unequal:
            others = [r for r in range(size) if r != dist.get_rank()]
            sends[others[0]], sends[others[1]] = count + 1, count - 1
        return dist.all_to_all_single(
            self.whole, self.source_whole, [count] * size, sends, async_op=asynchronous
        )

    def written(self) -> bool:
        """Whether a buffer that an operation may write has changed."""
        return not all(bool((t == SENTINEL).all()) for t in (self.shard, self.whole))


@dataclass(frozen=True)
class Mismatch:
    """What everybody calls, what the odd rank calls, and what a message has to show of each."""

    name: str
    usual: Callable[[Rank, int, bool], tuple[Call, Callable[[], Any]]]
    odd: Callable[[Rank, int, bool], tuple[Call, Callable[[], Any]]]
    shows: tuple[str, str]


def _calls(name: str, *, more: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    def make(rank: Rank, count: int, asynchronous: bool) -> tuple[Call, Callable[[], Any]]:
        buffers = Call(rank, count + more, dtype)
        return buffers, lambda: getattr(buffers, name)(asynchronous, **options)

    return make


COUNT = "{count}"  # replaced by the count of the run
MORE = "{more}"

MISMATCHES = (
    Mismatch(
        "op", _calls("all_gather"), _calls("reduce_scatter"), (r"all_?gather", r"reduce_scatter")
    ),
    Mismatch(
        "dtype", _calls("all_reduce"), _calls("all_reduce", dtype=torch.float64), (FLOAT, DOUBLE)
    ),
    Mismatch("count", _calls("all_gather"), _calls("all_gather", more=3), (COUNT, MORE)),
    Mismatch(
        "reduce_op",
        _calls("all_reduce"),
        _calls("all_reduce", op=dist.ReduceOp.MAX),
        (r"(?i)\bsum\b", r"(?i)\bmax\b"),
    ),
    Mismatch(
        "root",
        _calls("broadcast"),
        _calls("broadcast", root=1),
        (r"\broot\W{0,3}0\b", r"\broot\W{0,3}1\b"),
    ),
    Mismatch(
        "dtype_of_the_same_bytes",
        _calls("all_gather"),
        _calls("all_gather", dtype=torch.int32),
        (FLOAT, r"\b(int32|i32|int)\b"),
    ),
    Mismatch("splits", _calls("all_to_all"), _calls("all_to_all", unequal=True), (COUNT, MORE)),
    Mismatch(
        "reduce_op_of_reduce_scatter",
        _calls("reduce_scatter"),
        _calls("reduce_scatter", op=dist.ReduceOp.AVG),
        (r"(?i)\bsum\b", r"(?i)\bavg\b"),
    ),
    Mismatch(
        "root_of_reduce",
        _calls("reduce"),
        _calls("reduce", root=1),
        (r"\broot\W{0,3}0\b", r"\broot\W{0,3}1\b"),
    ),
    Mismatch(
        "count_of_all_reduce", _calls("all_reduce"), _calls("all_reduce", more=1), (COUNT, MORE)
    ),
)


def rank_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    mismatch = MISMATCHES[args["mismatch"]]
    rank.join(GROUP_TIMEOUT)
    for _ in range(args["warm"]):
        dist.all_reduce(torch.ones(8))
    side = mismatch.odd if rank.rank == args["odd"] else mismatch.usual
    buffers, start = side(rank, args["count"], args["asynchronous"])
    rank.report("ready")
    rank.receive()

    def run_it() -> None:
        work = start()
        if work is not None:
            work.wait()

    result = call(run_it)
    rank.report("failed", result=result, written=buffers.written())
    rank.report("again", result=call(lambda: dist.all_reduce(torch.ones(8))))
    dist.destroy_process_group()


def run(context: Context, outcome: Outcome) -> None:
    random = context.random
    index = context.index % len(MISMATCHES)
    mismatch = MISMATCHES[index]
    size = 3 if mismatch.name == "splits" else (2, 4, 3)[context.index % 3]
    count = random.choice((1000, 250_001))
    args = {
        "mismatch": index,
        "odd": random.randrange(size),
        "count": count,
        "asynchronous": random.random() < 0.5,
        "warm": random.choice((0, 2)),
    }
    outcome.variant = f"{mismatch.name}, {size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:rank_main", size, args=args) as job:
        job.expect("ready")
        job.send("go", job.ranks())
        failed = job.expect("failed", None, GROUP_TIMEOUT + 10)
        complete = max(report["result"]["began"] for report in failed.values())
        for rank, report in failed.items():
            result = report["result"]
            check_error(outcome, rank, result, None)
            outcome.noticed(rank, complete, max(complete, result["ended"]), LOADED_LIMIT_MS)
            outcome.require(not report["written"], f"rank {rank}: a buffer was written")
            missing = [
                p for p in _patterns(mismatch, count, size) if not re.search(p, result["message"])
            ]
            outcome.require(not missing, f"rank {rank}: {missing} not in {result['message']!r}")
        for rank, report in job.expect("again", None, 10).items():
            check_error(outcome, rank, report["result"], None)
        expect_exit(outcome, job, job.ranks())


def _patterns(mismatch: Mismatch, count: int, size: int) -> list[str]:
    """Counts may be shown in elements of a shard or of all shards, or in bytes (4 a float)."""

    def any_unit(*counts: int) -> str:
        numbers = "|".join(str(n * unit) for n in counts for unit in (1, size, 4, 4 * size))
        return rf"\b({numbers})\b"

    others = {"count": [count + 3], "splits": [count + 1, count - 1]}.get(
        mismatch.name, [count + 1]
    )
    replaced = {COUNT: any_unit(count), MORE: any_unit(*others)}
    return [replaced.get(pattern, pattern) for pattern in mismatch.shows]
