"""What the ranks of one run of the product do; `product_run` is the harness's side of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.inspection import descriptors, held_by_groups
from tests.faults.operations import Operations, Works
from tests.faults.outcome import call
from tests.faults.product import ASYNC, EXCHANGE, FIRST, INSIDE, P2P, SHUTDOWN, Case
from tests.support.processes import Rank

GROUP_TIMEOUT = 20.0  # far above what detection may take: a rank that waits for it is late
SHORT_TIMEOUT = 0.6  # of the operations that a rank misses
IN_FLIGHT = 3
# Of each kind, for all groups together.
BACKEND_THREADS = {"tidegate-run": 1, "tidegate-reap": 2, "tidegate-node": 1}
EXIT_STATUS = {"raise": 1, "os_exit": 3, "sys_exit": 4}


class Failure(Exception):
    """What a rank raises whose fault is an exception."""


class Runner:
    """One rank of one run."""

    def __init__(self, rank: Rank) -> None:
        self.line = rank
        self.case: Case = rank.args["case"]
        self.is_victim = rank.rank == self.case.victim
        self.operations = Operations(self.case.count)
        self.is_odd = self.is_victim and self.case.fault == "mismatch"
        # Some ranks call synchronously, others not, in an order of the run's own.
        self.is_sync = Random(f"{self.case}/{rank.rank}").random() < 0.5
        self.began = 0.0  # when the first call began that cannot complete
        self.submitted = 0.0  # when the last one of them had been made

    def usual(self, asynchronous: bool) -> Any:
        return getattr(self.operations, self.case.operation)(asynchronous)

    def odd(self, asynchronous: bool) -> Any:
        """What the victim calls instead of the operation of the run."""
        case = self.case
        name, count, dtype = case.operation, case.count, torch.float32
        if case.way == "other_lane" or name == "barrier":
            name = other_lane(name)
        elif case.way == "count":
            count += 3
        else:
            dtype = torch.float64
        return getattr(Operations(count, dtype=dtype), name)(asynchronous)

    def once(self, odd: bool = False) -> None:
        """The operation, or what the victim calls instead, synchronously or not."""
        self.began = self.submitted = time.monotonic()
        if self.is_sync:
            (self.odd if odd else self.usual)(False)
            return
        work = (self.odd if odd else self.usual)(True)
        self.submitted = time.monotonic()
        work.wait()

    def loop(self) -> None:
        """The operation again and again, until something happens."""
        rounds = 0
        while True:
            if self.is_victim and self.case.fault == "timeout" and rounds == self.case.rounds:
                self.line.report("absent")
                self.line.receive()
            self.once(self.is_odd and rounds == self.case.rounds)
            rounds += 1

    def several(self, number: int) -> Works:
        works = []
        self.began = time.monotonic()
        for item in range(number):
            odd = self.is_odd and item == self.case.joined % number
            works.append((self.odd if odd else self.usual)(True))
        self.submitted = time.monotonic()
        return Works(works)

    def transfers(self) -> Works:
        """Sends or receives with the victim that it does not answer, or answers wrongly."""
        case = self.case
        data = self.operations.shard
        self.began = time.monotonic()
        if case.operation == EXCHANGE:
            works = (self.odd if self.is_odd else self.usual)(True)
        elif self.is_victim:
            wrong = torch.zeros(data.numel() + 3)
            peer = (self.line.rank + 1) % case.ranks
            receives = case.operation == "send"
            works = Works([(dist.irecv if receives else dist.isend)(wrong, peer)])
        elif case.operation == "recv_any":
            works = Works([dist.irecv(data)])
        else:
            start = dist.irecv if case.operation == "recv" else dist.isend
            works = Works([start(data, case.victim)])
        self.submitted = time.monotonic()
        return works


def other_lane(operation: str) -> str:
    """A collective that the backend runs in the lane that `operation` does not use."""
    reduces = operation in ("reduce_scatter", "all_reduce", "reduce", "coalesced_scatter")
    return "all_gather" if reduces else "reduce_scatter"


def rank_main(rank: Rank) -> None:
    torch.set_num_threads(1)
    case: Case = rank.args["case"]
    before, threads = descriptors(), _threads()
    rank.join(GROUP_TIMEOUT)
    runner = Runner(rank)
    if case.phase != FIRST:
        for _ in range(2):
            dist.all_reduce(torch.ones(8))
    if case.fault in ("stop", "timeout"):
        world: Any = dist.group.WORLD
        # _set_pg_timeout of distributed_c10d knows two backends by name.
        world.set_timeout(timedelta(seconds=SHORT_TIMEOUT))
    rank.report("ready")
    if runner.is_victim and case.fault not in ("mismatch",):
        _victim(runner)
    else:
        rank.receive()
        _usual(runner)
    if runner.case.store == "tcp" and rank.rank == 0:
        # The store ends with this process, and a rank may yet have to look up the group in it that
        # the others are done with: torchrun's agent, too, stays until all ranks have ended.
        rank.receive()
    if dist.is_initialized():
        dist.destroy_process_group()
    _report_done(rank, before, threads)


def _usual(runner: Runner) -> None:
    """Do the operation of the run in the way of its phase, and report how that ended."""
    rank, phase = runner.line, runner.case.phase
    destroyed = None
    if phase == INSIDE:
        rank.report("working")
        result = call(runner.loop)
    elif phase in (ASYNC, P2P, SHUTDOWN):
        works: list[Works] = []

        def start() -> None:
            if phase == P2P:
                works.append(runner.transfers())
            else:
                works.append(runner.several(1 if phase == SHUTDOWN else IN_FLIGHT))

        result = call(start)
        rank.report("working")
        if phase == SHUTDOWN:
            destroyed = call(dist.destroy_process_group)
        if result["error"] is None:
            result = call(works[0].wait)
            if destroyed is not None:
                result["ended"] = destroyed["ended"]
    else:
        result = call(lambda: runner.once(runner.is_odd))
    again = None if phase == SHUTDOWN else call(lambda: dist.barrier())
    rank.report(
        "failed",
        result={**result, "began": runner.began or result["began"]},
        submitted=runner.submitted,
        destroyed=destroyed,
        again=again,
    )


def _victim(runner: Runner) -> None:
    """The victim of all faults but a mismatch, in which it is a rank like the others."""
    rank, case = runner.line, runner.case
    rank.receive()
    if case.phase == INSIDE:
        if case.fault in ("exception", "exit"):
            signal.signal(signal.SIGUSR2, lambda *_: _leave(case.way))
        aborter = threading.Thread(target=_abort_when_told, args=(runner,), daemon=True)
        if case.fault == "abort":
            aborter.start()
        rank.report("working")
        if case.fault in ("exception", "exit"):
            runner.loop()  # what the signal handler raises ends the process
        rank.report("late", result=call(runner.loop))
        if case.fault == "abort":
            aborter.join()
        return
    joined = None
    if case.phase == ASYNC and case.joined:
        joined = runner.several(case.joined)
    rank.report("working")
    rank.receive()  # where it is killed or stopped, or stays
    if case.fault == "abort":
        _abort(runner)
    elif case.fault in ("exception", "exit"):
        rank.report("leaving")
        globals()["kept"] = joined
        _leave(case.way)
    rank.report("late", result=call(lambda: _late(runner)))


def _late(runner: Runner) -> None:
    if runner.case.phase == P2P:
        dist.barrier()
    else:
        runner.once()


def _leave(way: str) -> None:
    if way == "raise":
        raise Failure("this rank has had enough")
    if way == "os_exit":
        os._exit(EXIT_STATUS["os_exit"])
    sys.exit(EXIT_STATUS["sys_exit"])


def _abort_when_told(runner: Runner) -> None:
    runner.line.receive()
    _abort(runner)


def _abort(runner: Runner) -> None:
    group: Any = dist.group.WORLD
    abort: Callable[[], None] = group.abort
    if runner.case.way == "backend":
        abort = group._get_backend(torch.device("cpu")).abort
    runner.line.report("aborted", result=call(abort))


def _threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue
    return names


def _spare_threads(before: list[str]) -> list[str]:
    """What of the backend's threads is more than it keeps; torch's own are not looked at."""
    ours = Counter(name for name in _threads() if name.startswith("tidegate"))
    ours.subtract(before)
    return [
        f"{count} threads {name}"
        for name, count in ours.items()
        if count > BACKEND_THREADS.get(name, 0)
    ]


def _report_done(rank: Rank, before: dict[str, int], threads: list[str]) -> None:
    held = held_by_groups(rank.world_size, before, rank.args["case"].store == "tcp")
    # A new thread bears the name of the one that started it until it runs for the first time.
    deadline = time.monotonic() + 2
    while _spare_threads(threads) and time.monotonic() < deadline:
        os.sched_yield()
    rank.report("done", held=held + _spare_threads(threads))
