"""fork: a child may not use its parent's groups, and whatever it does leaves them as they were."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from tests.faults.operations import Operations
from tests.faults.outcome import Context, Outcome, call, expect_exit, watched_job
from tests.support.processes import Message, Rank, count_threads

GROUP_TIMEOUT = 10.0
CHILD_LIMIT = 8.0  # below the group timeout: an error that comes only with it is late


def forked_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    args = rank.args
    rank.join(GROUP_TIMEOUT)
    operations = Operations(1 << 14)
    if args["warm"]:
        _check_sum(rank)
    work = operations.all_gather(asynchronous=True) if args["in_flight"] else None
    results = []
    for way in args["ways"]:
        results.append(_fork(way))
        _check_sum(rank)
    if work is not None:
        work.wait()
        expected = torch.arange(1, rank.world_size + 1).repeat_interleave(1 << 14)
        assert torch.equal(operations.out_whole, expected.float()), "the gathered data is wrong"
    rank.report("forked", results=results, threads=count_threads())
    dist.destroy_process_group()


def _check_sum(rank: Rank) -> None:
    tensor = torch.full((1 << 12,), float(rank.rank + 1))
    dist.all_reduce(tensor)
    expected = rank.world_size * (rank.world_size + 1) / 2
    assert bool((tensor == expected).all()), f"sum is {tensor[0]}, expected {expected}"


def _fork(way: str) -> Message:
    """Fork a child that ends in `way`; what it saw of the group comes back through a pipe."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        result: Message = {}
        if way != "silent":
            started = time.monotonic()
            result = call(_use_group)
            result["asynchronous"] = call(
                lambda: dist.all_gather(
                    [torch.ones(4) for _ in range(dist.get_world_size())],
                    torch.ones(4),
                    async_op=True,
                ).wait()
            )
            result["seconds"] = time.monotonic() - started
        if way == "destroy":
            result["destroy"] = call(dist.destroy_process_group)
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        if way in ("silent", "os_exit"):
            os._exit(0)
        sys.exit(0)  # the whole way: atexit handlers, destructors, the end of the interpreter
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        pidfd = os.pidfd_open(pid)
        if not connection.wait([pidfd], CHILD_LIMIT):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.2)  # for the stacks to be written; the run has failed already
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        data = pipe.read()
    return {"way": way, "status": status, "result": pickle.loads(data) if data else None}


def _use_group() -> None:
    dist.all_reduce(torch.ones(16))


def run(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 3)[context.index % 2]
    args = {
        "warm": random.random() < 0.7,
        "in_flight": random.random() < 0.5,
        "ways": random.sample(("silent", "os_exit", "exit", "destroy"), 3),
    }
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:forked_main", size, args=args) as job:
        for rank, report in job.expect("forked", None, 4 * CHILD_LIMIT).items():
            for child in report["results"]:
                _check_child(outcome, rank, child)
        expect_exit(outcome, job, job.ranks())


def _check_child(outcome: Outcome, rank: int, child: Message) -> None:
    who = f"the {child['way']} child of rank {rank}"
    outcome.require(child["status"] == 0, f"{who} ended with {child['status']}")
    result = child["result"]
    if child["way"] == "silent" or result is None:
        return
    for call_result in (result, result["asynchronous"]):
        outcome.require(call_result["error"] is not None, f"{who} could use the group")
        said = call_result["message"]
        outcome.require("fork" in said.lower(), f"{who} is not told of the fork: {said!r}")
    outcome.require(result["seconds"] < 1, f"{who}: the errors took {result['seconds']:.1f} s")


class Numbers(Dataset[torch.Tensor]):  # type: ignore[misc]
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), float(self.rank * 1000 + index))


def loader_main(rank: Rank) -> None:
    """Training as people write it: fork workers feed batches while the group is in use."""
    torch.set_num_threads(1)
    rank.join(GROUP_TIMEOUT)
    if rank.args["warm"]:
        _check_sum(rank)
    seen: list[float] = []
    for _ in range(2):
        loader: Any = DataLoader(
            Numbers(rank.rank), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for batch in loader:
            seen += batch[:, 0].tolist()
            work = dist.all_reduce(batch, async_op=True)
            _check_sum(rank)
            work.wait()
    expected = [rank.rank * 1000.0 + i for i in range(24)] * 2
    rank.report("loaded", right=seen == expected)
    dist.destroy_process_group()


def data_loader(context: Context, outcome: Outcome) -> None:
    size = (2, 3)[context.index % 2]
    args = {"warm": context.random.random() < 0.7}
    outcome.variant = f"{size} ranks, {args}"
    with watched_job(context, outcome, f"{__name__}:loader_main", size, args=args) as job:
        for rank, report in job.expect("loaded", None, 40).items():
            outcome.require(report["right"], f"rank {rank} read wrong batches")
        expect_exit(outcome, job, job.ranks())
