"""abort() from another thread returns at once and wakes what is blocked, here and on every peer."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.faults.operations import IN_MESSAGES, Operations
from tests.faults.outcome import Context, Outcome, call, check_error, expect_exit, watched_job
from tests.support.processes import Message, Rank

GROUP_TIMEOUT = 20.0
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "barrier", "recv")
WAYS = ("group", "backend", "abort_process_group")


def _abort(way: str) -> None:
    group: Any = dist.group.WORLD
    if way == "group":
        group.abort()
    elif way == "backend":
        group._get_backend(torch.device("cpu")).abort()
    else:
        distributed_c10d._abort_process_group()


def rank_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    rank.join(GROUP_TIMEOUT)
    operations = Operations(1 << 18)
    for _ in range(args["warm"]):
        dist.all_reduce(torch.ones(8))
    aborter: threading.Thread | None = None
    aborted: Message = {}
    if rank.rank == args["aborter"]:

        def abort_when_told() -> None:
            rank.receive()
            aborted.update(call(lambda: _abort(args["way"])))
            aborted["again"] = call(lambda: _abort(args["way"]) if dist.is_initialized() else None)

        aborter = threading.Thread(target=abort_when_told)

    rank.report("ready")
    rank.receive()
    if aborter is not None:
        aborter.start()
    rank.report("entering")
    result = call(lambda: _operate(operations, args, rank))
    if aborter is not None:
        aborter.join()
    rank.report("woken", result=result, aborted=aborted)
    rank.receive()
    if dist.is_initialized():
        rank.report("again", result=call(lambda: dist.barrier()))
        dist.destroy_process_group()
    else:
        rank.report("again", result=None)


def _operate(operations: Operations, args: Message, rank: Rank) -> None:
    if args["operation"] == "recv":
        absent = args["absent"]
        dist.recv(operations.shard, src=args["aborter"] if rank.rank == absent else absent)
    elif args["asynchronous"]:
        works = [getattr(operations, args["operation"])(asynchronous=True) for _ in range(3)]
        for work in works:
            work.wait()
    else:
        getattr(operations, args["operation"])()


def run(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 3, 4)[context.index % 3]
    absent, aborter = random.sample(range(size), 2)
    args: dict[str, Any] = {
        "operation": OPERATIONS[context.index % len(OPERATIONS)],
        "way": WAYS[context.index // 2 % len(WAYS)],
        "asynchronous": random.random() < 0.5,
        "absent": absent,
        "aborter": aborter,
        "warm": random.choice((0, 2)),
    }
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:rank_main", size, args=args) as job:
        job.expect("ready")
        present = job.ranks(absent)
        job.send("go", present)
        job.expect("entering", present)
        time.sleep(random.uniform(0, 0.1))  # the stimulus: how deep in the operation they are
        job.send("abort", [aborter])
        woken = job.expect("woken", present, GROUP_TIMEOUT + 10)
        aborted = woken[aborter]["aborted"]
        outcome.require(aborted["error"] is None, f"abort() raised {aborted['message']!r}")
        took = (aborted["ended"] - aborted["began"]) * 1e3
        outcome.notes["abort_ms"] = took
        outcome.require(took <= 100, f"abort() took {took:.0f} ms")
        again = aborted["again"]
        outcome.require(again["error"] is None, f"a second abort() raised {again['message']!r}")
        name = IN_MESSAGES[args["operation"]]
        for rank, report in woken.items():
            check_error(outcome, rank, report["result"], name)
            outcome.noticed(rank, aborted["began"], report["result"]["ended"])
            outcome.require(
                "abort" in report["result"]["message"].lower(),
                f"rank {rank} is not told of an abort: {report['result']['message']!r}",
            )
        job.send("go", [absent])
        job.expect("entering", [absent])
        late = job.expect("woken", [absent], GROUP_TIMEOUT + 10)[absent]["result"]
        check_error(outcome, absent, late, name)
        took = (late["ended"] - late["began"]) * 1e3
        outcome.require(took <= 1000, f"rank {absent} learned it {took:.0f} ms after its call")
        job.send("go", job.ranks())
        for rank, report in job.expect("again", None, 10).items():
            if report["result"] is not None:
                check_error(outcome, rank, report["result"], None)
        expect_exit(outcome, job, job.ranks())
