"""kill -9 of one rank in every phase of its life: every survivor learns at once who died."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.inspection import descriptors, held_by_groups
from tests.faults.operations import IN_MESSAGES, Operations
from tests.faults.outcome import Context, Outcome, call, check_error, expect_exit, watched_job
from tests.support.processes import Rank

GROUP_TIMEOUT = 20.0  # far above what detection may take: a survivor that waits for it is late
IDLE = "idle"  # killed between two operations, the survivors call the next one afterwards
BLOCKED = "blocked"  # the survivors wait in an operation that the victim never enters
BUSY = "busy"  # killed somewhere in a loop over operations


@dataclass(frozen=True)
class Phase:
    """When the victim dies: in which operation, after how many others, how late in it."""

    name: str
    when: str
    operation: str
    warm: int = 3
    spread: float = 0.2
    asynchronous: int = 0  # operations kept in flight; 0 for synchronous calls


PHASES = (
    Phase("mid_all_gather", BUSY, "all_gather"),
    Phase("idle", IDLE, "all_reduce"),
    Phase("blocked_reduce_scatter", BLOCKED, "reduce_scatter", spread=0.05),
    Phase("mid_coalesced", BUSY, "coalesced"),
    Phase("before_first_op", IDLE, "all_gather", warm=0),
    Phase("mid_async", BUSY, "all_gather", asynchronous=4),
    Phase("first_op", BUSY, "all_reduce", warm=0, spread=0.03),
    Phase("mid_reduce_scatter", BUSY, "reduce_scatter"),
    Phase("mid_all_reduce", BUSY, "all_reduce"),
    Phase("mid_broadcast", BUSY, "broadcast"),
    Phase("blocked_all_gather", BLOCKED, "all_gather", spread=0.05),
    Phase("blocked_async", BLOCKED, "all_reduce", spread=0.05, asynchronous=2),
    Phase("blocked_barrier", BLOCKED, "barrier", spread=0.05),
    Phase("blocked_recv", BLOCKED, "recv", spread=0.05),
    Phase("mid_all_to_all", BUSY, "all_to_all"),
    Phase("idle_recv", IDLE, "recv"),
)
SIZES = (2, 4, 3, 2, 8)
BYTES = (1 << 16, 1 << 20, 1 << 24)


def rank_main(rank: Rank) -> None:
    phase: Phase = rank.args["phase"]
    victim: int = rank.args["victim"]
    torch.set_num_threads(1)
    before = descriptors()
    rank.join(GROUP_TIMEOUT)
    others = [r for r in range(rank.world_size) if r != victim]
    spare = dist.new_group(others) if rank.args["spare"] else None
    operations = Operations(max(3, rank.args["bytes"] // 4 // rank.world_size))
    for _ in range(phase.warm):
        dist.all_reduce(torch.ones(8))
    if spare is not None and rank.rank != victim:
        dist.all_reduce(torch.ones(8), group=spare)
    rank.report("ready")
    rank.receive()
    if phase.when == BLOCKED and rank.rank == victim:
        rank.report("working")
        rank.receive()
    rank.report("working")

    first = call(lambda: _work(operations, phase, victim))
    again = call(lambda: dist.barrier())
    rank.report("failed", first=first, again=again, began=operations.began)
    if spare is not None:
        ones = torch.ones(8)
        result = call(lambda: dist.all_reduce(ones, group=spare))
        rank.report("spare", result=result, total=ones[0].item())
    dist.destroy_process_group()
    tcp = rank.args["store"] == "tcp"
    rank.report("done", held=held_by_groups(rank.world_size, before, tcp))


def _work(operations: Operations, phase: Phase, victim: int) -> None:
    """Call the operation of the phase until it fails (or, if nobody was killed in it, for ever)."""
    if phase.operation == "recv":
        operations.began = time.monotonic()
        dist.recv(operations.shard, src=victim)
        return
    operation = getattr(operations, phase.operation)
    while True:
        operations.began = time.monotonic()
        if phase.asynchronous:
            works = [operation(asynchronous=True) for _ in range(phase.asynchronous)]
            for work in works:
                work.wait()
        else:
            operation()


def run(context: Context, outcome: Outcome) -> None:
    random = context.random
    phase = PHASES[context.index % len(PHASES)]
    size = SIZES[context.index % len(SIZES)]
    victim = random.randrange(size)
    store = random.choice(("file", "file", "file", "tcp"))
    volume = random.choice(BYTES)
    args: dict[str, Any] = {
        "phase": phase,
        "victim": victim,
        "bytes": volume,
        "store": store,
        "spare": phase.warm > 0 and random.random() < 0.3,
    }
    outcome.variant = f"{phase.name}, {size} ranks, victim {victim}, {volume} bytes, {store} store"
    # A store that dies before ranks met through it takes along who its host was; torch says so.
    with_store = store == "tcp" and victim == 0 and phase.warm == 0
    with watched_job(context, outcome, f"{__name__}:rank_main", size, args=args, limit=90) as job:
        survivors = job.ranks(victim)
        pid = job.pids[victim]
        job.expect("ready")
        delay = random.uniform(0, phase.spread)
        if phase.when == IDLE:
            killed = job.kill(victim)
            job.wait_exit([victim])
            job.send("go", survivors)
        else:
            job.send("go", job.ranks())
            if phase.warm:
                job.expect("working")
            time.sleep(delay)  # the stimulus: where in the loop the kill lands
            killed = job.kill(victim)
        failed = job.expect("failed", survivors, GROUP_TIMEOUT + 15)
        for rank, report in failed.items():
            first, again = report["first"], report["again"]
            if with_store and "the c10d store" in first["message"]:
                check_error(outcome, rank, first, None)
            else:
                check_error(outcome, rank, first, IN_MESSAGES[phase.operation])
                outcome.name_culprit(rank, first["message"], victim, pid)
            since = max(killed, report["began"]) if phase.when == IDLE else killed
            outcome.noticed(rank, since, first["ended"])
            outcome.require(
                first["ended"] >= killed, f"rank {rank} failed before the kill: {first}"
            )
            check_error(outcome, rank, again, None)
            took = (again["ended"] - again["began"]) * 1e3
            outcome.require(took < 1000, f"rank {rank}: the next call took {took:.0f} ms to fail")
        if args["spare"]:
            for rank, report in job.expect("spare", survivors, 30).items():
                right = report["result"]["error"] is None and report["total"] == size - 1
                outcome.require(right, f"rank {rank}: a group without the victim failed: {report}")
        for rank, report in job.expect("done", survivors, 30).items():
            outcome.leaks += [f"rank {rank} holds {what}" for what in report["held"]]
        expect_exit(outcome, job, survivors, quiet=not with_store, warns=True)
