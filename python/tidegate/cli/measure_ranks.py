"""What a rank of `tidegate measure` runs under torchrun: times the algorithms in TIDEGATE_ALGO.

Rank 0 writes rows [collective, size class, seconds] to the file that it is given. A size class k
holds the sizes whose binary form has k digits; it is measured at its middle.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS = 5
ROUND_SECONDS = 0.01
ALIGNMENT = 64


def calls(rank: int, ranks: int, size: int) -> dict[str, Callable[[], object]]:
    """A call of each collective of `size` bytes, as the planner counts them."""
    part = size // ranks // ALIGNMENT * ALIGNMENT
    whole = torch.zeros(part * ranks, dtype=torch.uint8)
    shard = torch.zeros(part, dtype=torch.uint8)
    tensor = torch.zeros(size, dtype=torch.uint8)
    parts = [torch.zeros(size, dtype=torch.uint8) for _ in range(ranks)] if rank == 0 else None
    # What is too short to be cut by the ranks is of another size class.
    by_parts: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
    }
    same_class = (part * ranks).bit_length() == size.bit_length()
    return {
        **(by_parts if same_class else {}),
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 0),
        "gather": lambda: dist.gather(tensor, parts, 0),
        "scatter": lambda: dist.scatter(tensor, parts, 0),
    }


def repetitions(call: Callable[[], object]) -> int:
    """How often a round makes the call: the same on all ranks."""
    call()
    start = time.perf_counter()
    call()
    longest = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return max(1, min(200, int(ROUND_SECONDS / longest.item())))


def seconds_of(call: Callable[[], object]) -> float:
    count = repetitions(call)
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count)
    slowest = torch.tensor([statistics.median(rounds)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def main(output: str, first_class: int, last_class: int, collectives: list[str]) -> None:
    dist.init_process_group("tidegate")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = []
    for size_class in range(first_class, last_class + 1):
        size = 3 * 2 ** (size_class - 2)
        for name, call in calls(rank, ranks, size).items():
            if name in collectives:
                rows.append([name, size_class, seconds_of(call)])
    if rank == 0:
        Path(output).write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
