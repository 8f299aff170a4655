"""Ways in which one rank ends early, and what it and the others see of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
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
    watched_job,
)
from tests.support.processes import Rank

GROUP_TIMEOUT = 20.0
OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter", "barrier")
SHUTDOWN = {"TIDEGATE_SHUTDOWN_TIMEOUT": "1s"}  # how long an exit waits for work in flight
FATAL_WORDS = ("terminate called", "Fatal Python error", "Segmentation", "core dumped")


def undestroyed_main(rank: Rank) -> None:
    """Ends without destroy_process_group, with what `args` asks for still alive."""
    torch.set_num_threads(1)
    args = rank.args
    rank.join(GROUP_TIMEOUT)
    groups: list[Any] = [None]
    if args["groups"]:
        groups.append(dist.new_group())
        groups.append(dist.new_group([0]))
    for group in groups[:2]:
        operations = Operations(args["count"], group)
        operations.all_gather()
        work = operations.reduce_scatter(asynchronous=True)
        if args["wait"]:
            work.wait()
        else:
            # An unwaited Work whose tensors are global: both meet the end of the interpreter.
            globals().setdefault("kept", []).append((operations, work))
            del work
    if args["aim"] == "system_exit":
        sys.exit(0)


def undestroyed(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 4, 1)[context.index % 3]
    args = {
        "groups": random.random() < 0.5,
        "wait": random.random() < 0.5,
        "count": random.choice((16, 1 << 20)),
        "aim": random.choice(("return", "system_exit")),
    }
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:undestroyed_main", size, args=args) as job:
        expect_exit(outcome, job, job.ranks())


class Failure(Exception):
    """What the culprit raises."""


def early_main(rank: Rank) -> None:
    """Everybody loops over an operation; the culprit leaves the loop in its own way."""
    torch.set_num_threads(1)
    args = rank.args
    culprit = rank.rank == args["culprit"]
    rank.join(GROUP_TIMEOUT)
    operations = Operations(1 << 16)
    operation = getattr(operations, args["operation"])
    for _ in range(2):
        operation()
    rank.report("ready")
    rank.receive()
    if culprit:
        for _ in range(args["rounds"]):
            operation()
        rank.report("leaving")
        if args["in_flight"]:
            # Global, so that Works and tensors are the last things to go.
            globals()["kept"] = operations, [operation(asynchronous=True) for _ in range(2)]
        LEAVE[args["way"]](operations)
        return
    if args["alone"]:
        rank.receive()

    def loop() -> None:
        while True:
            operations.began = time.monotonic()
            operation()

    result = call(loop)
    rank.report("failed", result=result, began=operations.began)
    dist.destroy_process_group()


def _raise(_: Operations) -> None:
    raise Failure("this rank has had enough")


def _os_exit(_: Operations) -> None:
    os._exit(3)


def _sys_exit(_: Operations) -> None:
    sys.exit(4)


def _destroy(_: Operations) -> None:
    """Leave properly while the peers go on: for them it is an error all the same, not a hang."""
    dist.destroy_process_group()


# way -> what the culprit does and its exit status
LEAVE: dict[str, Callable[[Operations], None]] = {
    "exception": _raise,
    "os_exit": _os_exit,
    "sys_exit": _sys_exit,
    "destroy": _destroy,
}
STATUS = {"exception": 1, "os_exit": 3, "sys_exit": 4, "destroy": 0}


def early(way: str, in_flight: bool = False) -> Callable[[Context, Outcome], None]:
    """A driver: one rank leaves in `way`; if `in_flight`, amid operations not waited for."""

    def run(context: Context, outcome: Outcome) -> None:
        random = context.random
        size = (2, 3, 4)[context.index % 3]
        name = OPERATIONS[context.index % len(OPERATIONS)]
        culprit = random.randrange(size)
        # Alone: the others come to the operation only when the culprit is gone.
        alone = context.index % 2 == 1
        args = {
            "way": way,
            "in_flight": in_flight,
            "operation": name,
            "culprit": culprit,
            "alone": alone,
            "rounds": 0 if alone else random.randrange(20),
            "store": random.choice(("file", "tcp")),
        }
        outcome.variant = f"{size} ranks, {args}"
        target = f"{__name__}:early_main"
        with watched_job(context, outcome, target, size, args=args, env=SHUTDOWN) as job:
            job.expect("ready")
            others = job.ranks(culprit)
            job.send("go", job.ranks())
            leaving = job.expect("leaving", [culprit])[culprit]["at"]
            status = job.wait_exit([culprit], GROUP_TIMEOUT + 10)[culprit]
            gone = time.monotonic()
            outcome.require(status == STATUS[way], f"the culprit exited with {status}")
            outcome.notes["exit_ms"] = (gone - leaving) * 1e3
            if alone:
                job.send("go", others)
            for rank, report in job.expect("failed", others, GROUP_TIMEOUT + 10).items():
                result = report["result"]
                check_error(outcome, rank, result, IN_MESSAGES[name])
                outcome.name_culprit(rank, result["message"], culprit, job.pids[culprit])
                since = max(leaving, report["began"]) if alone else leaving
                outcome.noticed(rank, since, result["ended"])
            took = outcome.notes["exit_ms"]
            outcome.require(took <= 5000, f"the culprit needed {took:.0f} ms to exit")
            _check_last_words(outcome, way, job.log(culprit))
            expect_exit(outcome, job, others, warns=way == "os_exit")

    return run


def _check_last_words(outcome: Outcome, way: str, log: str) -> None:
    for words in FATAL_WORDS:
        outcome.require(words not in log, f"the culprit printed {log!r}")
    if way == "exception":
        outcome.require("Failure: this rank has had enough" in log, f"no traceback in {log!r}")
    else:
        outcome.require(not log.strip(), f"the culprit printed {log!r}")


def interrupted_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    rank.join(GROUP_TIMEOUT)
    operations = Operations(1 << 16)
    operation = getattr(operations, args["operation"])
    for _ in range(args["warm"]):
        dist.all_reduce(torch.ones(8))
    rank.report("ready")
    rank.receive()
    try:
        rank.report("entering")
        if args["asynchronous"]:
            operation(asynchronous=True).wait()
        else:
            operation()
    except KeyboardInterrupt:
        rank.report("ended", error="KeyboardInterrupt", message="")
        raise
    except dist.DistBackendError as error:
        rank.report("ended", error="DistBackendError", message=str(error))


def _interruption(context: Context) -> tuple[int, dict[str, Any]]:
    return (2, 3, 4)[context.index % 3], {
        "operation": OPERATIONS[context.index % len(OPERATIONS)],
        "asynchronous": bool(context.index // 2 % 2),
        "warm": context.random.choice((0, 2)),
    }


def interrupted(context: Context, outcome: Outcome) -> None:
    """Ctrl-C in one rank while all but one wait: a KeyboardInterrupt there, an error elsewhere."""
    random = context.random
    size, args = _interruption(context)
    absent, target = random.sample(range(size), 2)
    outcome.variant = f"{size} ranks, rank {target} interrupted, {args}"
    with watched_job(context, outcome, f"{__name__}:interrupted_main", size, args=args) as job:
        job.expect("ready")
        present = job.ranks(absent)
        job.send("go", present)
        job.expect("entering", present)
        time.sleep(random.uniform(0.02, 0.2))  # the stimulus
        at = job.signal(target, signal.SIGINT)
        for rank, report in job.expect("ended", present, GROUP_TIMEOUT + 10).items():
            outcome.noticed(rank, at, report["at"])
            expected = "KeyboardInterrupt" if rank == target else "DistBackendError"
            outcome.require(report["error"] == expected, f"rank {rank} raised {report['error']}")
            if rank != target:
                outcome.name_culprit(rank, report["message"], target, job.pids[target])
        job.send("go", [absent])
        late = job.expect("ended", [absent], GROUP_TIMEOUT + 10)[absent]
        entered = job.expect("entering", [absent])[absent]["at"]
        outcome.require(late["error"] == "DistBackendError", f"rank {absent}: {late}")
        took = (late["at"] - entered) * 1e3
        outcome.require(took <= LOADED_LIMIT_MS, f"rank {absent} learned it after {took:.0f} ms")
        expect_exit(outcome, job, job.ranks(target))
        expect_exit(outcome, job, [target], -signal.SIGINT, quiet=False)
        for words in FATAL_WORDS:
            outcome.require(words not in job.log(target), f"it printed {job.log(target)!r}")


def all_interrupted(context: Context, outcome: Outcome) -> None:
    """Ctrl-C in a terminal reaches all ranks at once, wherever they are; they end, and in order.

    What each sees first, its own interrupt or the end of another, is a matter of chance, and so is
    where Python raises: a second exception, in a handler or at exit, is not the backend's doing.
    """
    random = context.random
    size, args = _interruption(context)
    absent = random.randrange(size)
    outcome.variant = f"{size} ranks, all interrupted, {args}"
    with watched_job(context, outcome, f"{__name__}:interrupted_main", size, args=args) as job:
        job.expect("ready")
        job.send("go", job.ranks(absent))
        job.expect("entering", job.ranks(absent))
        time.sleep(random.uniform(0, 0.1))  # the stimulus
        at = max([job.signal(rank, signal.SIGINT) for rank in job.ranks()])
        for rank, status in job.wait_exit(None, GROUP_TIMEOUT + 10).items():
            outcome.require(status in (0, -signal.SIGINT), f"rank {rank} exited with {status}")
            for words in FATAL_WORDS:
                outcome.require(words not in job.log(rank), f"it printed {job.log(rank)!r}")
        took = time.monotonic() - at
        outcome.require(took <= 5, f"the last rank ended after {took:.1f} s")


def massacre_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    rank.join(GROUP_TIMEOUT)
    dist.new_group()
    operations = Operations(1 << 18)
    if rank.args["warm"]:
        operations.barrier()
    rank.report("ready")
    rank.receive()
    while True:
        operations.all_gather()
        work = operations.reduce_scatter(asynchronous=True)
        operations.all_reduce()
        work.wait()


def massacre(context: Context, outcome: Outcome) -> None:
    """kill -9 of all ranks leaves no shared memory, no socket file and no process."""
    random = context.random
    size = (4, 2, 8)[context.index % 3]
    args = {"warm": random.random() < 0.7}
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:massacre_main", size, args=args) as job:
        job.expect("ready")
        job.send("go", job.ranks())
        time.sleep(random.uniform(0, 0.3))  # the stimulus: right after the start, or in the middle
        for rank in job.ranks():
            job.kill(rank)
        for rank, status in job.wait_exit(None, 10).items():
            outcome.require(status == -signal.SIGKILL, f"rank {rank} ended by {status} before")
