"""Starts the ranks of a command under torchrun, tells why they failed, and ends them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TERMINATION_SECONDS = 40  # torchrun allows its ranks 30
FAILURE = "tidegate rank failed "  # what the lines of tidegate.cli.rank begin with
_MOST_FAILURES = 3
_MOST_CHARACTERS = 2000


def torchrun(module: str, ranks: int, *arguments: str) -> list[str]:
    """The command line that runs `module` on so many ranks of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={ranks}", "-m", "tidegate.cli.rank", module, *arguments]


def failure(errors: str) -> str:
    """Of what `torchrun` left on stderr, the exceptions of the ranks, the first of them first.

    Where no rank could say one, as a signal ends it, the end of it all.
    """
    ranks: dict[str, int] = {}
    for line in errors.splitlines():
        # Not at its beginning, where another rank's line was cut off.
        _, found, text = line.partition(FAILURE)
        if found:
            rank, said = json.loads(text)
            ranks.setdefault(said, rank)
    if not ranks:
        return errors.strip()[-_MOST_CHARACTERS:]
    first = list(ranks.items())[:_MOST_FAILURES]
    return "; ".join(f"rank {rank}: {said}"[:_MOST_CHARACTERS] for said, rank in first)


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a torchrun that still runs, with its ranks; blocks until it is gone.

    Not by a signal to its group: its ranks are sessions of their own, which torchrun alone knows.
    """
    if process.poll() is not None:
        return
    process.terminate()  # torchrun ends its ranks first, and kills those that do not listen
    try:
        process.wait(timeout=TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
