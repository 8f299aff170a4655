"""Operations show up in torch's profiler under tidegate's name."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tests.support.backend import all_gather_single, reduce_scatter_single

SUM = dist.ReduceOp.SUM
TITLES = {
    "tidegate:all_gather_single",
    "tidegate:reduce_scatter_single",
    "tidegate:all_reduce",
    "tidegate:broadcast",
    "tidegate:barrier",
}


def test_sync_and_async_operations_are_named(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("tidegate", store=store, rank=0, world_size=1)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for async_op in (False, True):
                tensor = torch.ones(4)
                works = [
                    all_gather_single(torch.empty(4), tensor, async_op=async_op),
                    reduce_scatter_single(torch.empty(4), tensor, SUM, async_op=async_op),
                    dist.all_reduce(torch.ones(4), async_op=async_op),
                    dist.broadcast(torch.ones(4), src=0, async_op=async_op),
                    dist.barrier(async_op=async_op),
                ]
                for work in works:
                    if work is not None:
                        work.wait()
    finally:
        dist.destroy_process_group()
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert {title: counts.get(title) for title in TITLES} == dict.fromkeys(TITLES, 2)
