"""A rank that stops or does not come: the others fail at the deadline and say who was missing."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.operations import IN_MESSAGES, Operations
from tests.faults.outcome import (
    LOADED_LIMIT_MS,
    Context,
    Outcome,
    call,
    check_error,
    expect_exit,
    names_missing,
    watched_job,
)
from tests.support.processes import Message, Rank

OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter", "broadcast", "barrier")
TIMEOUT = 1.5
LONG_TIMEOUT = 60.0  # of the default group where the deadline under test is that of new_group


def stopped_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    rank.join(TIMEOUT)
    operations = Operations(1 << 16)
    operation = getattr(operations, rank.args["operation"])
    for _ in range(2):
        dist.all_reduce(torch.ones(8))
    rank.report("ready")
    rank.receive()

    def loop() -> None:
        while True:
            operations.began = time.monotonic()
            operation()

    result = call(loop)
    rank.report("failed", result={**result, "began": operations.began})
    rank.receive()
    rank.report("failed_again", result=call(operation))
    dist.destroy_process_group()


def stop(context: Context, outcome: Outcome) -> None:
    """SIGSTOP while all loop over an operation; the victim itself learns it after SIGCONT."""
    random = context.random
    size = (2, 3, 4)[context.index % 3]
    name = OPERATIONS[context.index % 3]
    victim = random.randrange(size)
    outcome.variant = f"{name}, {size} ranks, rank {victim} stopped"
    args = {"operation": name}
    with watched_job(context, outcome, f"{__name__}:stopped_main", size, args=args) as job:
        job.expect("ready")
        others = job.ranks(victim)
        job.send("go", job.ranks())
        time.sleep(random.uniform(0, 0.2))  # the stimulus
        stopped = job.signal(victim, signal.SIGSTOP)
        failed = job.expect("failed", others, TIMEOUT + 10)
        job.signal(victim, signal.SIGCONT)
        continued = time.monotonic()
        failed_victim = job.expect("failed", [victim], TIMEOUT + 10)[victim]
        _check_deadline(outcome, {r: m["result"] for r, m in failed.items()}, [victim], name)
        for rank, report in failed.items():
            late = (report["result"]["ended"] - stopped - TIMEOUT) * 1e3
            outcome.require(late <= LOADED_LIMIT_MS, f"rank {rank} failed {late:.0f} ms late")
        check_error(outcome, victim, failed_victim["result"], IN_MESSAGES[name])
        # The group has failed while the victim slept, so it has nothing to wait for.
        took = (failed_victim["at"] - continued) * 1e3
        outcome.require(took <= LOADED_LIMIT_MS, f"rank {victim} learned it after {took:.0f} ms")
        job.send("go", job.ranks())
        for rank, report in job.expect("failed_again", None, 10).items():
            check_error(outcome, rank, report["result"], None)
        expect_exit(outcome, job, job.ranks())


def missing_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    group: Any = None
    if args["new_group"]:
        rank.join(LONG_TIMEOUT)
        group = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    else:
        rank.join(TIMEOUT)
    operations = Operations(1 << 14, group)
    operation = getattr(operations, args["operation"])
    for _ in range(args["warm"]):
        dist.all_reduce(torch.ones(8), group=group)
    rank.report("ready")
    rank.receive()
    if args["asynchronous"]:
        result = call(lambda: operation(asynchronous=True).wait())
    else:
        result = call(operation)
    rank.report("failed", result=result)
    dist.destroy_process_group()


def missing(context: Context, outcome: Outcome) -> None:
    """One or two ranks do not call what all others are in; later they find the group failed."""
    random = context.random
    size = (2, 4, 3, 4)[context.index % 4]
    absent = sorted(random.sample(range(size), 2 if context.index % 4 == 1 else 1))
    args: dict[str, Any] = {
        "operation": OPERATIONS[context.index % len(OPERATIONS)],
        "warm": (2, 0)[context.index // 2 % 2],
        "new_group": bool(context.index % 2),
        "asynchronous": random.random() < 0.5,
    }
    name = args["operation"]
    if name == "broadcast" and 0 not in absent:
        # A root may be done before its receivers come; a receiver cannot be without its root.
        absent[0] = 0
    outcome.variant = f"{size} ranks, {absent} missing, {args}"
    with watched_job(context, outcome, f"{__name__}:missing_main", size, args=args) as job:
        job.expect("ready")
        present = job.ranks(*absent)
        job.send("go", present)
        failed = job.expect("failed", present, TIMEOUT + 10)
        _check_deadline(outcome, {r: m["result"] for r, m in failed.items()}, absent, name)
        job.send("go", absent)
        for rank, report in job.expect("failed", absent, TIMEOUT + 10).items():
            result = report["result"]
            check_error(outcome, rank, result, None)
            took = (result["ended"] - result["began"]) * 1e3
            limit = TIMEOUT * 1e3 + LOADED_LIMIT_MS if args["warm"] == 0 else LOADED_LIMIT_MS
            outcome.require(
                took <= limit, f"rank {rank}, late: its call failed after {took:.0f} ms"
            )
        expect_exit(outcome, job, job.ranks())


def _check_deadline(
    outcome: Outcome, results: dict[int, Message], absent: list[int], name: str
) -> None:
    """All fail at the deadline: the first to give up not before it, nobody much after its own."""
    took = {rank: result["ended"] - result["began"] for rank, result in results.items()}
    first = min(result["ended"] for result in results.values())
    start = min(result["began"] for result in results.values())
    outcome.require(
        first - start >= TIMEOUT - 0.01, f"failed {first - start:.2f} s after its start"
    )
    for rank, result in results.items():
        check_error(outcome, rank, result, IN_MESSAGES[name])
        late = (took[rank] - TIMEOUT) * 1e3
        outcome.notice_ms.append(max(0.0, late))
        outcome.require(late <= LOADED_LIMIT_MS, f"rank {rank} failed {late:.0f} ms late")
        truth = names_missing(result["message"], absent)
        outcome.named = truth if outcome.named is None else outcome.named and truth
        outcome.require(
            truth, f"rank {rank} does not say that {absent} missed: {result['message']!r}"
        )
