"""What one run of a fault showed, and the checks that every kind shares."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.support.processes import Died, ForkServer, Hang, Job, Message

NOTICE_LIMIT_MS = 100.0  # what the project promises; the median of all runs is held to it
LOADED_LIMIT_MS = 1000.0  # what one run may take on a machine that has other work to do


@dataclass
class Outcome:
    """The result of one run. `problems` is empty when everything that was promised was seen."""

    kind: str
    variant: str
    hang: bool = False
    named: bool | None = None  # every survivor named the culprit; None where there is no culprit
    notice_ms: list[float] = field(default_factory=list)  # one for each rank that had to notice
    leaks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not (self.hang or self.leaks or self.problems)

    def require(self, truth: bool, otherwise: str) -> None:
        if not truth:
            self.problems.append(otherwise)

    def name_culprit(self, rank: int, message: str, culprit: int, pid: int) -> None:
        """`message`, seen on `rank`, has to name the culprit by rank and process id."""
        truth = names_culprit(message, culprit, pid)
        self.named = truth if self.named is None else self.named and truth
        self.require(truth, f"rank {rank} does not name rank {culprit} (pid {pid}): {message!r}")

    def noticed(
        self, rank: int, since: float, at: float, limit_ms: float = LOADED_LIMIT_MS
    ) -> None:
        took = (at - since) * 1e3
        self.notice_ms.append(took)
        self.require(took <= limit_ms, f"rank {rank} noticed after {took:.0f} ms")


@dataclass
class Context:
    """What a driver of one run gets: the server and the randomness of this run."""

    server: ForkServer
    random: Random
    index: int  # which run of its kind this is, so that variants are covered evenly


Driver = Callable[[Context, Outcome], None]


def names_culprit(message: str, culprit: int, pid: int) -> bool:
    return re.search(rf"\brank {culprit}\b[^;\n]{{0,40}}\bpid {pid}\b", message) is not None


def describes_call(message: str, operation: str) -> list[str]:
    """What `message` lacks of operation, sequence number, group and advice."""
    parts = {
        f"the operation {operation}": operation,
        "the sequence number": r"\bseq \d+",
        "the group": r"\bgroup \S+",
        "what to do": r";\s*\S+ \S+",
    }
    return [what for what, pattern in parts.items() if not re.search(pattern, message)]


def names_missing(message: str, ranks: Sequence[int]) -> bool:
    """`message` says, after "missing" or "waiting for", that `ranks` and no others did not come."""
    one = r"(?:rank )?\d+(?: \([^)]*\))?"
    listed = re.search(
        rf"(?:missing|waiting for)[^;\n]*?\brank(?:s|\(s\))?:? ({one}(?:(?:, | and ){one})*)",
        message,
    )
    if listed is None:
        return False
    without_details = re.sub(r"\([^)]*\)", "", listed[1])
    return {int(number) for number in re.findall(r"\d+", without_details)} == set(ranks)


def call(function: Callable[[], Any]) -> Message:
    """Run `function` in a rank and describe how it ended, in a form that crosses to the harness."""
    import torch.distributed as dist

    began = time.monotonic()
    try:
        function()
    except Exception as error:
        at = time.monotonic()
        return {
            "began": began,
            "ended": at,
            "error": type(error).__name__,
            "backend_error": isinstance(error, dist.DistBackendError),
            "message": str(error),
        }
    return {"began": began, "ended": time.monotonic(), "error": None, "message": ""}


def check_error(outcome: Outcome, rank: int, result: Message, operation: str | None) -> None:
    """`result` of `call` has to be a DistBackendError whose message says what was going on."""
    if result["error"] is None:
        outcome.require(False, f"rank {rank}: the call succeeded")
        return
    outcome.require(
        result["backend_error"], f"rank {rank} raised {result['error']}: {result['message']!r}"
    )
    if operation is not None:
        lacks = describes_call(result["message"], operation)
        outcome.require(not lacks, f"rank {rank}: no {', '.join(lacks)} in {result['message']!r}")


@contextmanager
def watched_job(
    context: Context, outcome: Outcome, target: str, size: int, **options: Any
) -> Iterator[Job]:
    """A `Job` whose hangs, early deaths and leaks end up in `outcome`."""
    before = named_objects()
    with Job(context.server, target, size, **options) as job:
        try:
            yield job
        except Hang as hang:
            outcome.hang = True
            outcome.problems.append(str(hang))
        except Died as death:
            outcome.problems.append(str(death))
        else:
            # A leak is what is left when every rank has ended by itself.
            if len(job.status) == size:
                outcome.leaks += job.leftovers()
        for rank in job.ranks():
            if rank in job.status and (said := job.log(rank).strip()):
                outcome.notes[f"log of rank {rank}"] = said
        ended = len(job.status) == size
        if ended:
            outcome.leaks += [f"socket file {path}" for path in sockets_in(job.directory)]
    if ended:
        outcome.leaks += sorted(orphans(named_objects() - before))


def expect_exit(
    outcome: Outcome,
    job: Job,
    ranks: Sequence[int],
    status: int = 0,
    quiet: bool = True,
    warns: bool = False,
) -> None:
    """Ranks have to end by themselves with `status` and, if `quiet`, without a word.

    With `warns` the backend may have logged, once, what befell the group: one line, no more.
    """
    for rank, found in job.wait_exit(ranks, 20).items():
        log = job.log(rank)
        outcome.require(found == status, f"rank {rank} exited with {found}: {log!r}")
        said = re.sub(r"\A\[rank\d+\] tidegate WARN: .*\n", "", log) if warns else log
        outcome.require(not (quiet and said.strip()), f"rank {rank} printed {log!r}")


def sockets_in(directory: Path) -> list[str]:
    return [str(p) for p in directory.iterdir() if stat.S_ISSOCK(p.lstat().st_mode)]


def named_objects() -> set[str]:
    """Shared memory objects and socket files that have a name outside the directory of a job."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for place in ("/tmp", os.environ.get("XDG_RUNTIME_DIR", "/tmp")):
        for entry in os.scandir(place):
            try:
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    found.add(entry.path)
            except OSError:
                continue
    return found


def orphans(paths: set[str]) -> set[str]:
    """Those of `paths` that exist and that no living process maps, holds open or listens on."""
    left = {path for path in paths if os.path.lexists(path)}
    if not left:
        return left
    bound = Path("/proc/net/unix").read_text()
    left = {path for path in left if f" {path}\n" not in bound}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            held = (process / "maps").read_text()
            for fd in (process / "fd").iterdir():
                held += os.readlink(fd) + "\n"
        except OSError:
            continue
        left = {path for path in left if path not in held}
    return left
