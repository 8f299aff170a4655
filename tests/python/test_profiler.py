"""Operations show up in torch's profiler under tidegate's name."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tests.python.jobs import expect_right
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


OUTLIVED = """
import os
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

def issue():
    parts = [torch.full((10,), float(call)) for call in range(4)]
    return [(dist.all_reduce(part, async_op=True), part) for part in parts]

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    store = dist.distributed_c10d._get_default_store()
    for turn in range(40):
        if dist.get_rank() == 0:
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                pending = issue()
            names = [event.name for event in profiler.events()]
            assert names.count("record_param_comms") == 4, names
            store.set(f"stopped {turn}", "1")
        else:
            store.wait([f"stopped {turn}"])
            pending = issue()
        # Half of them are done while another profiler runs.
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for work, _ in pending[turn % 2 * 4:]:
                work.wait()
        for call, (work, part) in enumerate(pending):
            work.wait()
            assert torch.equal(part, torch.full((10,), 2.0 * call))
    dist.destroy_process_group()
    os.write(1, b"right\\n")
"""


def test_operations_may_outlive_the_profiler_they_began_under(tmp_path: Path) -> None:
    """Their ends must not write to what it has freed: gloo's do, and the process dies of that."""
    expect_right(OUTLIVED, tmp_path, 2)
