"""A pool of rank processes that stays up while thousands of cases run in it.

Starting a rank costs seconds (importing torch); a conformance case costs milliseconds. So the ranks
of one world size are started once, from a fork server that has imported torch already, and take
calls over pipes. Calls and results never travel through the backend under test.

Life cycle:
  1. `WorkerPool(world_size)` starts the ranks; each joins the default group through a file store.
  2. `run(function, ...)` calls `function(context, ...)` on every rank at the same time and returns
     the results in rank order. `function` must be importable by name.
  3. An exception on any rank, a dead rank or a missed deadline raises `WorkerError`; the pool is
     then broken (ranks may disagree about the state of their groups) and must be closed.
  4. `close()` ends the ranks; ranks that do not end by themselves are killed.

Not thread-safe: one caller at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.backend import BACKEND

# Long enough for eight ranks on two busy cores, short enough that a hang is reported as one.
GROUP_TIMEOUT_S = 30.0
START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 4000


class WorkerError(RuntimeError):
    """A call failed on at least one rank; the message holds what each failing rank reported."""


@dataclass
class RankContext:
    """What a function run by the pool may know about its surroundings."""

    rank: int
    world_size: int


@dataclass
class _Rank:
    process: Any
    pipe: connection.Connection
    log: Path


class WorkerPool:
    """`world_size` rank processes joined in one default group of the backend under test."""

    def __init__(self, world_size: int, group_timeout_s: float = GROUP_TIMEOUT_S) -> None:
        self.world_size = world_size
        self.broken = False
        self._scratch = tempfile.TemporaryDirectory(prefix=f"pool{world_size}-")
        scratch = Path(self._scratch.name)
        spawn = multiprocessing.get_context("forkserver")
        spawn.set_forkserver_preload(["tests.support.preload"])
        self._ranks: list[_Rank] = []
        for rank in range(world_size):
            here, there = spawn.Pipe()
            log = scratch / f"rank{rank}.log"
            process = spawn.Process(
                target=_serve,
                args=(there, rank, world_size, str(scratch), str(log), group_timeout_s),
                name=f"rank{rank}/{world_size}",
                daemon=True,
            )
            process.start()
            there.close()
            self._ranks.append(_Rank(process, here, log))
        try:
            self._collect(START_TIMEOUT_S, "start")
        except WorkerError:
            self.close()
            raise

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        per_rank: Sequence[Sequence[Any]] | None = None,
        timeout_s: float = 120.0,
    ) -> list[Any]:
        """Calls `function(context, *arguments, *per_rank[rank])` on every rank."""
        if self.broken:
            raise WorkerError("the pool is broken by an earlier failure")
        for rank, worker in enumerate(self._ranks):
            extra = tuple(per_rank[rank]) if per_rank is not None else ()
            with contextlib.suppress(OSError):  # a dead rank is reported by _collect
                worker.pipe.send((function, (*arguments, *extra)))
        return self._collect(timeout_s, function.__name__)

    def close(self) -> None:
        """Ends the ranks: politely unless the pool is broken. Safe to call twice.

        Raises WorkerError if a healthy rank did not leave its group and exit with status 0.
        """
        problems = []
        for worker in self._ranks:
            if not self.broken:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
        deadline = time.monotonic() + (0.0 if self.broken else CLOSE_TIMEOUT_S)
        for rank, worker in enumerate(self._ranks):
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                if not self.broken:
                    problems.append(f"rank {rank} did not end{self._tail(rank)}")
                worker.process.kill()
                worker.process.join()
            elif worker.process.exitcode != 0 and not self.broken:
                code = worker.process.exitcode
                problems.append(f"rank {rank} ended with exit code {code}{self._tail(rank)}")
            worker.pipe.close()
        self._ranks = []
        self._scratch.cleanup()
        if problems:
            raise WorkerError(f"world size {self.world_size}: " + "\n".join(problems))

    def _collect(self, timeout_s: float, what: str) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: list[Any] = [None] * self.world_size
        problems: dict[int, str] = {}
        waiting = {worker.pipe: rank for rank, worker in enumerate(self._ranks)}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                problems.update(self._hung(waiting.values(), timeout_s))
                break
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[call-overload]
                try:
                    ok, value = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    process = self._ranks[rank].process
                    process.join(1.0)
                    problems[rank] = f"died with exit code {process.exitcode}{self._tail(rank)}"
                    continue
                if ok:
                    results[rank] = value
                else:
                    problems[rank] = value
        if problems:
            self.broken = True
            same: dict[str, list[int]] = {}
            for rank in sorted(problems):
                same.setdefault(problems[rank], []).append(rank)
            lines = [f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in same.items()]
            raise WorkerError(f"{what} failed at world size {self.world_size}\n" + "\n".join(lines))
        return results

    def _hung(self, ranks, timeout_s: float) -> dict[int, str]:
        """Asks the ranks that did not answer for their stacks, which faulthandler logs."""
        hung = list(ranks)
        for rank in hung:
            with contextlib.suppress(OSError):
                os.kill(self._ranks[rank].process.pid, signal.SIGUSR1)
        settle = time.monotonic() + 2.0
        while time.monotonic() < settle and not all("Thread" in self._tail(r) for r in hung):
            time.sleep(0.05)
        return {r: f"no answer after {timeout_s:.0f} s{self._tail(r)}" for r in hung}

    def _tail(self, rank: int) -> str:
        try:
            text = self._ranks[rank].log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return f"\n--- log of rank {rank} ---\n{text.strip()}" if text.strip() else ""


def _serve(
    pipe: connection.Connection,
    rank: int,
    world_size: int,
    scratch: str,
    log: str,
    group_timeout_s: float,
) -> None:
    """Body of a rank process: join the group, then answer calls until told to stop."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(file=2)  # type: ignore[arg-type]
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # type: ignore[arg-type]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when the pool ends
    torch.set_num_threads(1)
    context = RankContext(rank, world_size)

    def join() -> None:
        dist.init_process_group(
            BACKEND,
            init_method=f"file://{scratch}/store",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=group_timeout_s),
        )

    _answer(pipe, join)
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone: nobody is left to shut down for
        if message is None:
            break
        function, arguments = message
        _answer(pipe, lambda f=function, a=arguments: f(context, *a))
    if dist.is_initialized():
        dist.destroy_process_group()


def _answer(pipe: connection.Connection, call: Callable[[], Any]) -> None:
    try:
        reply = (True, call())
    except Exception:
        reply = (False, traceback.format_exc())
    try:
        pipe.send(reply)
    except Exception:
        pipe.send((False, f"result cannot be sent:\n{traceback.format_exc()}"))
