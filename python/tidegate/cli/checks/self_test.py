"""Two processes, a group, two collectives, a clean end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tidegate.cli.checks.finding import Finding, fail, ok
from tidegate.cli.checks.machine_view import MachineView

_RANKS = 2
_SCRIPT = Path(__file__).with_name("self_test_rank.py")
_SHOWN_LINES = 3


def check_self_test(view: MachineView) -> Finding:
    """all_reduce and all_gather between two new processes, within `self_test_seconds`."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as folder:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(_RANKS)]
        ranks = [_start(view, Path(folder) / "store", rank, log) for rank, log in enumerate(logs)]
        try:
            statuses = [_wait(rank, begin + view.self_test_seconds) for rank in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        texts = [_end_of(log) for log in logs]
    seconds = time.monotonic() - begin
    for rank, status in enumerate(statuses):
        if status not in (0, None):
            return fail(
                f"rank {rank} ended with status {status}: {texts[rank]}",
                "if no check above explains it, run it with TIDEGATE_DEBUG=INFO and report both"
                " outputs",
                statuses=statuses,
                output=texts,
            )
    if None in statuses:
        late = [rank for rank, status in enumerate(statuses) if status is None]
        return fail(
            f"ranks {late} did not end within {view.self_test_seconds:g} s: {texts[late[0]]}",
            "on a busy or slow machine allow more (--self-test-seconds); a hang is a bug: report it"
            " with the output of TIDEGATE_DEBUG=TRACE",
            statuses=statuses,
            output=texts,
        )
    return ok(f"2 processes, all_reduce and all_gather right, {seconds:.1f} s", seconds=seconds)


def _start(view: MachineView, store: Path, rank: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(store), str(rank), str(_RANKS)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(view.environment),
        )


def _wait(process: subprocess.Popen[bytes], until: float) -> int | None:
    """Exit status, negative for a signal; None if it is still running then."""
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _end_of(log: Path) -> str:
    """The last lines of what a rank printed: the error is there."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_SHOWN_LINES:]) or "it printed nothing"
