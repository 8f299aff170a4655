"""Threads that wait for no peer are not woken by what peers signal to others of their process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.jobs import expect_right

COUNTING = """
import os, threading
import torch
import torch.distributed as dist
import tidegate

CALLS = 2000

def thread_named(name):
    for task in os.listdir("/proc/self/task"):
        if open(f"/proc/self/task/{task}/comm").read().strip() == name:
            return task
    raise LookupError(name)

def naps(task):
    for line in open(f"/proc/self/task/{task}/status"):
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])

def naps_during_calls(task, group=None):
    part, whole = torch.ones(64), torch.ones(64 * dist.get_world_size())
    dist.barrier(group)
    before = naps(task)
    for _ in range(CALLS):
        dist.reduce_scatter_tensor(part, whole, group=group)
    return naps(task) - before
"""

IDLE = (
    COUNTING
    + """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    dist.all_reduce(torch.ones(100), async_op=True).wait()
    task = thread_named("tidegate-run")
    naps_during_calls(task)  # It polls a little after it has done something.
    found = naps_during_calls(task)
    assert found < CALLS // 20, found
    os.write(1, b"right\\n")
    dist.destroy_process_group()
"""
)

HELD = (
    COUNTING
    + """
if __name__ == "__main__":
    dist.init_process_group("tidegate")
    group = dist.new_group()
    whole = torch.ones(1 << 23)
    part = whole.chunk(dist.get_world_size())[0].clone()
    dist.barrier()
    dist.barrier(group)
    gather = threading.Thread(target=dist.all_gather_into_tensor, args=(whole, part, group))
    gather.start()
    task = str(gather.native_id)
    naps_during_calls(task)  # After which the first of its 16 MiB have been read.
    found = naps_during_calls(task)
    assert gather.is_alive()
    tidegate.set_limits()
    gather.join()
    assert found < CALLS // 2, found
    os.write(1, b"right\\n")
    dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_idle_progress_thread_sleeps_through_calls_of_others(ranks: int, tmp_path: Path) -> None:
    expect_right(IDLE, tmp_path, ranks)


def test_what_is_held_to_a_rate_sleeps_through_calls_of_others(tmp_path: Path) -> None:
    expect_right(HELD, tmp_path, 2, TIDEGATE_AG_RATE="1M", TIDEGATE_AG_BURST="4K")
