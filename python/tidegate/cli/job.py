"""Ends what a command has started."""

from __future__ import annotations

import subprocess
from typing import Any

TERMINATION_SECONDS = 40  # torchrun allows its ranks 30


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
