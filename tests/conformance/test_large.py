"""Tensors beyond 4 GiB: byte counts and offsets do not fit in 32 bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

BYTES = (4 << 30) + 4099
# One tensor a rank, and what torch and the test need beside it.
NEEDED_KB = 2 * (BYTES >> 10) + (2 << 20)
MARKS = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, BYTES - 1]


def available_kb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise AssertionError("/proc/meminfo has no MemAvailable")


def exchange(context: RankContext) -> list[list[int]]:
    """Broadcasts from rank 1 and adds up, in place; returns the marked elements after each."""
    tensor = torch.zeros(BYTES, dtype=torch.uint8)
    seen = []
    if context.rank == 1:
        for i, mark in enumerate(MARKS):
            tensor[mark] = i + 1
    dist.broadcast(tensor, src=1)
    seen.append([int(tensor[mark]) for mark in MARKS] + [int(tensor.count_nonzero())])
    if context.rank == 1:
        tensor.zero_()
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    seen.append([int(tensor[mark]) for mark in MARKS] + [int(tensor.count_nonzero())])
    return seen


@pytest.mark.skipif(
    os.environ.get("TIDEGATE_TEST_ALL") != "1", reason="8 GiB of tensors: with TIDEGATE_TEST_ALL=1"
)
def test_tensors_beyond_4_gib(pools: PoolKeeper) -> None:
    if available_kb() < NEEDED_KB:
        pytest.skip(f"needs {NEEDED_KB >> 20} GiB of free memory, has {available_kb() >> 20}")
    expected = [*range(1, len(MARKS) + 1), len(MARKS)]
    for seen in pools.get(2).run(exchange, timeout_s=300.0):
        assert seen == [expected, expected]
