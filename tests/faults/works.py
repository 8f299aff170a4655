"""Works: timeouts of wait(), Works that nobody waits for, and how long buffers live."""

from __future__ import annotations

import statistics
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.outcome import Context, Outcome, expect_exit, watched_job
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.processes import Message, Rank

GROUP_TIMEOUT = 20.0
WAIT_PRECISION_MS = 10.0
RELEASE_LIMIT_S = 5.0


def _start(name: str, rank: Rank, count: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Start `name`; returns the Work, the buffer that it writes and what that has to hold then."""
    size = rank.world_size
    total = float(size * (size + 1) // 2)
    mine = float(rank.rank + 1)
    if name == "all_reduce":
        out = torch.full((count,), mine)
        return dist.all_reduce(out, async_op=True), out, torch.full((count,), total)
    if name == "all_gather":
        out = torch.zeros(count * size)
        work = all_gather_single(out, torch.full((count,), mine), async_op=True)
        return work, out, torch.arange(1.0, size + 1).repeat_interleave(count)
    out = torch.zeros(count)
    source = torch.full((count * size,), mine)
    work = reduce_scatter_single(out, source, dist.ReduceOp.SUM, async_op=True)
    return work, out, torch.full((count,), total)


def wait_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    rank.join(GROUP_TIMEOUT)
    dist.all_reduce(torch.ones(8))
    rank.report("ready")
    rank.receive()
    work, out, expected = _start(args["operation"], rank, args["count"])
    waits = []
    if rank.rank != args["late"]:
        for seconds in args["timeouts"]:
            waits.append(_timed_wait(work, seconds))
        rank.report("waited", waits=waits)
    work.wait()
    rank.report("completed", right=torch.equal(out, expected), completed=work.is_completed())
    dist.destroy_process_group()


def _timed_wait(work: Any, seconds: float) -> Message:
    began = time.monotonic()
    raised = None
    try:
        work.wait(timedelta(seconds=seconds))
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    took = time.monotonic() - began
    return {
        "over_ms": (took - seconds) * 1e3,
        "raised": raised,
        "completed": work.is_completed(),
    }


def wait_timeout(context: Context, outcome: Outcome) -> None:
    """wait(timeout) raises within 10 ms of its timeout; the Work completes later all the same."""
    random = context.random
    size = (2, 3)[context.index % 2]
    late = random.randrange(size)
    args = {
        "operation": ("all_gather", "all_reduce", "reduce_scatter")[context.index % 3],
        "count": random.choice((16, 1 << 20)),
        "late": late,
        "timeouts": [random.uniform(0.005, 0.1) for _ in range(12)],
    }
    outcome.variant = f"{size} ranks, {args['operation']} of {args['count']}, rank {late} late"
    with watched_job(context, outcome, f"{__name__}:wait_main", size, args=args) as job:
        job.expect("ready")
        early = job.ranks(late)
        job.send("go", early)
        over = []
        for rank, report in job.expect("waited", early, 20).items():
            for wait in report["waits"]:
                outcome.require(wait["raised"] is not None, f"rank {rank}: wait did not raise")
                outcome.require(not wait["completed"], f"rank {rank}: the Work is completed")
                outcome.require(
                    wait["over_ms"] > -1,
                    f"rank {rank}: wait raised {-wait['over_ms']:.1f} ms early",
                )
                over.append(wait["over_ms"])
        outcome.notes["over_ms"] = (statistics.median(over), max(over))
        outcome.require(
            statistics.median(over) <= WAIT_PRECISION_MS,
            f"waits overran their timeouts by {statistics.median(over):.1f} ms (median)",
        )
        job.send("go", [late])
        for rank, report in job.expect("completed", None, GROUP_TIMEOUT + 5).items():
            outcome.require(report["right"], f"rank {rank}: the result is wrong")
            outcome.require(report["completed"], f"rank {rank}: wait returned, not completed")
        expect_exit(outcome, job, job.ranks())


class Watched:
    """A tensor over memory whose release can be waited for.

    The memory belongs to a Python object, so torch's deleter needs the GIL when the backend gives
    its last reference back: the hardest case for a thread that must not need it.
    """

    def __init__(self, count: int, value: float) -> None:
        class Memory(bytearray):
            pass

        memory = Memory(count * 4)
        self.tensor: torch.Tensor | None = torch.frombuffer(memory, dtype=torch.float32)
        self.tensor.fill_(value)
        self.released = threading.Event()
        weakref.finalize(memory, self.released.set)


def buffers_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    size, count = rank.world_size, args["count"]
    late = rank.rank == args["late"]
    rank.join(GROUP_TIMEOUT)
    dist.all_reduce(torch.ones(8))
    problems = []

    # Waited for: the input lives until the operation is done and no longer.
    source = Watched(count * size, float(rank.rank + 1))
    out = torch.zeros(count)
    rank.report("ready")
    rank.receive()
    work = reduce_scatter_single(out, source.tensor, dist.ReduceOp.SUM, async_op=True)
    source.tensor = None
    if not late:
        if source.released.is_set():
            problems.append("an input was released before its operation was done")
        rank.report("started")
    work.wait()
    if not bool((out == size * (size + 1) // 2).all()):
        problems.append(f"the sum is {out[0]}")
    if not source.released.wait(RELEASE_LIMIT_S):
        problems.append("an input was not released by wait()")
    del work

    # Never waited for: it finishes, and its buffers are released, without the Work.
    rank.report("ready")
    rank.receive()
    dropped = Watched(count * size, float(rank.rank + 1))
    result = torch.zeros(count)
    reduce_scatter_single(result, dropped.tensor, dist.ReduceOp.SUM, async_op=True)
    dropped.tensor = None
    lost = Watched(count, 1.0)
    dist.all_reduce(lost.tensor, async_op=True)
    lost.tensor = None
    if not late:
        if dropped.released.is_set() or lost.released.is_set():
            problems.append("a buffer was released before its operation was done")
        rank.report("started")
    for what, watched in (("reduce_scatter", dropped), ("all_reduce", lost)):
        if not watched.released.wait(RELEASE_LIMIT_S):
            problems.append(f"a buffer of a dropped {what} was not released")
    if not bool((result == size * (size + 1) // 2).all()):
        problems.append(f"the sum of a dropped Work is {result[0]}")
    dist.barrier()
    rank.report("done", problems=problems)
    dist.destroy_process_group()


def buffers(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 3)[context.index % 2]
    late = random.randrange(size)
    args = {"late": late, "count": random.choice((64, 1 << 18))}
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:buffers_main", size, args=args) as job:
        for _ in range(2):
            job.expect("ready")
            early = job.ranks(late)
            job.send("go", early)
            job.expect("started", early, 10)
            job.send("go", [late])
        for rank, report in job.expect("done", None, 40).items():
            outcome.problems += [f"rank {rank}: {problem}" for problem in report["problems"]]
        expect_exit(outcome, job, job.ranks())
