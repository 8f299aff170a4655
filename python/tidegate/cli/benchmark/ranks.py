"""What a rank of `tidegate bench` runs: every cell, on a group of each backend.

Started under torchrun by the command, or called by it where the user has started torchrun.
Rank 0 prints a line of JSON for its devices and one for the rows of each cell.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tidegate.cli.benchmark.launch import DEVICES, ROWS
from tidegate.cli.benchmark.request import NULL, Request, Row, dump_rows
from tidegate.cli.benchmark.timing import rows_of

TIMEOUT = timedelta(seconds=300)


def measure(request: Request, begin: Callable[[list[dict[str, Any]]], None]) -> Iterator[list[Row]]:
    """The rows of each cell, on every rank; `begin` gets what is known of the ranks first.

    Makes the default group, by which the ranks agree, and destroys it.
    """
    torch.set_num_threads(1)
    control = "tidegate" if "tidegate" in request.backends else "gloo"
    dist.init_process_group(control, timeout=TIMEOUT)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    known: list[Any] = [None] * ranks
    dist.all_gather_object(known, {"pid": os.getpid(), "hostname": socket.gethostname()})
    begin([{"rank": number, **found} for number, found in enumerate(known)])
    groups = {
        name: dist.group.WORLD if name == control else _group(name) for name in request.backends
    }
    for cell in request.cells(ranks):
        yield rows_of(cell, rank, request, groups)
    dist.barrier()
    dist.destroy_process_group()


def _group(name: str) -> Any:
    if name == NULL:
        from tidegate import _null_backend

        _null_backend.register()
        name = _null_backend.NAME
    return dist.new_group(backend=name, timeout=TIMEOUT)


def main(request: Request) -> None:
    say = print if os.environ["RANK"] == "0" else lambda *words, **options: None
    for rows in measure(request, lambda devices: say(DEVICES + json.dumps(devices), flush=True)):
        say(ROWS + dump_rows(rows), flush=True)


if __name__ == "__main__":
    main(Request.loads(sys.argv[1]))
