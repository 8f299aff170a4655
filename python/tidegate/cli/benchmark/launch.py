"""Starts the ranks of a run and reads what they measure, or joins the job that torchrun started."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.cli.benchmark.request import Request, Row, load_rows
from tidegate.cli.errors import CommandError
from tidegate.cli.job import end, failure, torchrun

DEVICES, ROWS = "devices ", "rows "  # what the lines of rank 0 begin with


@dataclass(frozen=True)
class Devices:
    """What is known of the ranks, in their order."""

    devices: list[dict[str, Any]]


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def devices_and_rows(request: Request, ranks: int) -> Iterator[Devices | list[Row]]:
    """First the devices, then the rows of each cell as soon as it is measured."""
    if under_torchrun():
        from tidegate.cli.benchmark.ranks import measure

        known: list[Devices] = []
        for rows in measure(request, lambda found: known.append(Devices(found))):
            yield from known
            known.clear()
            yield rows
        return
    for line in lines_of_rank_0("tidegate.cli.benchmark.ranks", request.dumps(), ranks):
        if line.startswith(DEVICES):
            yield Devices(json.loads(line[len(DEVICES) :]))
        elif line.startswith(ROWS):
            yield load_rows(line[len(ROWS) :])


def lines_of_rank_0(
    module: str, request: str, ranks: int, folder: Path | None = None
) -> Iterator[str]:
    """Runs `module` with the argument `request` on so many ranks, from `folder`.

    CommandError, with their exceptions, if they fail.
    """
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own: Ctrl-C reaches only the command, which then ends it in order.
        process = subprocess.Popen(
            torchrun(module, ranks, request),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        try:
            yield from process.stdout
            status = process.wait()
        finally:
            end(process)
            process.stdout.close()
        if status != 0:
            errors.seek(0)
            raise CommandError(f"{ranks} ranks failed: " + failure(errors.read()))
