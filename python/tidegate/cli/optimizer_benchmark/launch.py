"""Starts the process that answers a request, with as many processors and threads as it names."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tidegate.cli.checks.machine_view import MachineView
from tidegate.cli.errors import CommandError
from tidegate.cli.optimizer_benchmark.request import Found, Request

#: A launcher's, which would make tidegate share the processors with ranks that are not there.
_DROPPED = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "LOCAL_RANK")


def answer(request: Request) -> Found:
    """Blocks for as long as it takes. CommandError, with what the process said, if it fails."""
    variables = {name: text for name, text in os.environ.items() if name not in _DROPPED}
    # Libraries that bring an OpenMP of their own know of no torch.set_num_threads.
    for name in ("OMP_NUM_THREADS", "TIDEGATE_OFFLOAD_THREADS"):
        variables[name] = str(request.threads)
    command = [sys.executable, "-m", "tidegate.cli.optimizer_benchmark.measure", request.dumps()]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables,
                preexec_fn=lambda: os.sched_setaffinity(0, request.cpus),
            )
        except OSError as error:
            raise CommandError(f"the measuring process cannot be started: {error}") from error
        if done.returncode != 0:
            errors.seek(0)
            said = errors.read().strip()[-2000:]
            raise CommandError(
                f"{request.scenario} with {request.threads} threads failed"
                f" (status {done.returncode}): {said}"
            )
    return Found.loads(done.stdout.splitlines()[-1])


def processors(usable: Iterable[int], view: MachineView | None = None) -> list[int]:
    """`usable` in the order in which threads take them: one of each core first."""
    view = view or MachineView()
    rank_in_core: dict[str, int] = {}
    order = []
    for cpu in sorted(usable):
        folder = Path("sys/devices/system/cpu") / f"cpu{cpu}" / "topology"
        core = view.read(str(folder / "thread_siblings_list")) or f"cpu{cpu}"
        rank_in_core[core] = rank_in_core.get(core, -1) + 1
        order.append((rank_in_core[core], cpu))
    return [cpu for _, cpu in sorted(order)]


def last_level_cache(view: MachineView | None = None) -> int:
    """Bytes of the largest cache of processor 0; 0: not known."""
    view = view or MachineView()
    largest = 0
    for index in range(8):
        text = view.read(f"sys/devices/system/cpu/cpu0/cache/index{index}/size") or ""
        if text.endswith("K") and text[:-1].isdigit():
            largest = max(largest, int(text[:-1]) << 10)
    return largest
