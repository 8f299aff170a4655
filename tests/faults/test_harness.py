"""The harness itself: it sees hangs, early deaths and what ranks leave behind."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.outcome import Context, Outcome, expect_exit, watched_job
from tests.support.processes import ForkServer, Rank


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer([__name__]) as running:
        yield running


def hang_main(rank: Rank) -> None:
    if rank.rank == 1:
        threading.Event().wait()


def die_main(rank: Rank) -> None:
    raise RuntimeError("out of luck")


def litter_main(rank: Rank) -> None:
    """Leaves a process, a socket file and a shared memory object that nobody uses."""
    if rank.rank == 1:
        return
    subprocess.Popen(["sleep", "600"])
    socket.socket(socket.AF_UNIX).bind(str(rank.directory / "left.sock"))
    Path("/dev/shm", rank.args["name"]).touch()


def run(server: ForkServer, target: str, size: int, **args: str) -> Outcome:
    outcome = Outcome(target, "")
    context = Context(server, Random(0), 0)
    with watched_job(context, outcome, f"{__name__}:{target}", size, args=args, limit=15) as job:
        if target == "hang_main":
            job.wait_exit(limit=2)
        else:
            expect_exit(outcome, job, job.ranks())
    return outcome


def test_hang_is_reported_with_the_stack_of_the_rank_that_hangs(server: ForkServer) -> None:
    outcome = run(server, "hang_main", 2)
    assert outcome.hang
    assert "ranks [1] did not exit" in outcome.problems[0]
    assert "in hang_main" in outcome.problems[0]


def test_death_is_reported_with_its_traceback(server: ForkServer) -> None:
    outcome = run(server, "die_main", 1)
    assert not outcome.ok
    assert "RuntimeError: out of luck" in outcome.problems[0]


def test_whatever_a_rank_leaves_behind_is_a_leak(server: ForkServer) -> None:
    name = f"harness-{Path(server.directory).name}"
    try:
        outcome = run(server, "litter_main", 2, name=name)
    finally:
        Path(f"/dev/shm/{name}").unlink(missing_ok=True)
    patterns = (r"process \d+ of rank 0", r"socket file .*/left\.sock", rf"/dev/shm/{name}")
    assert len(outcome.leaks) == len(patterns), outcome.leaks
    for leak, pattern in zip(outcome.leaks, patterns, strict=True):
        assert re.fullmatch(pattern, leak)
