"""The null backend serves what benchmarks call, at once and without a byte moved."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from tidegate import _null_backend

_null_backend.register()
_null_backend.register()
assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
store = dist.HashStore()
dist.init_process_group("tidegate_null", store=store, rank=1, world_size=3)
assert dist.get_backend() == "tidegate_null"
whole, part = torch.full((6,), 7.0), torch.arange(2.0)
for call in (
    lambda: dist.all_gather_into_tensor(whole, part, async_op=True),
    lambda: dist.reduce_scatter_tensor(part, whole, async_op=True),
    lambda: dist.all_reduce(whole, async_op=True),
    lambda: dist.broadcast(whole, 0, async_op=True),
    lambda: dist.reduce(whole, 0, async_op=True),
    lambda: dist.all_gather([whole] * 3, whole, async_op=True),
    lambda: dist.gather(part, None, dst=0, async_op=True),
    lambda: dist.scatter(part, None, src=0, async_op=True),
    lambda: dist.all_to_all_single(whole, whole.clone(), async_op=True),
    lambda: dist.all_to_all([part] * 3, [part] * 3, async_op=True),
    lambda: dist.barrier(async_op=True),
):
    work = call()
    assert work.is_completed() and work.wait()
    work.get_future().wait()
assert whole.eq(7).all() and part.tolist() == [0.0, 1.0]
model = fully_shard(torch.nn.Linear(6, 6))
model(torch.ones(1, 6)).sum().backward()
assert model.weight.grad is not None
dist.destroy_process_group()
"""


def test_serves_what_benchmarks_and_fsdp_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_is_unknown_until_registered() -> None:
    script = "import torch.distributed as d; assert 'tidegate_null' not in d.Backend.backend_list"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
