"""What offloaded optimizers promise where ranks, settings or memory are not as usual."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tidegate import offload

from tests.python.jobs import expect_right

#: Rank 1 has no gradients, then one of a dtype that is refused; rank 0 must neither hang nor step.
NORM_JOB = """
import torch, datetime, warnings
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from tidegate import offload

warnings.simplefilter("ignore")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))

def check(sharded, limit):
    def spread(local):
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False) if sharded else local

    def here():
        data = parameter.detach()
        return (data.to_local() if sharded else data).clone()

    parameter = torch.nn.Parameter(spread(torch.ones(2)))
    parameter.grad_dtype = None
    group = None if sharded else dist.group.WORLD
    optimizer = offload.SGD([parameter], lr=0.5, max_grad_norm=limit, norm_group=group)
    if rank == 0:
        parameter.grad = spread(torch.ones(2))
    optimizer.step()
    assert abs(optimizer.grad_norm - 2 ** 0.5) < 1e-6, optimizer.grad_norm
    assert torch.equal(here(), torch.full((2,), 0.5 if rank == 0 else 1.0))
    before = here()
    parameter.grad = spread(torch.ones(2, dtype=torch.float64 if rank == 1 else torch.float32))
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        assert type(error) is (RuntimeError if rank == 0 else TypeError), error
    else:
        raise AssertionError("no error")
    if limit < 1e9 or rank == 1:
        assert torch.equal(here(), before)
    parameter.grad = spread(torch.ones(2))
    optimizer.step()
    assert abs(optimizer.grad_norm - 2) < 1e-6, optimizer.grad_norm

for sharded in (True, False):
    for limit in (2e6, float("inf")):
        check(sharded, limit)
dist.barrier()
print("right")
"""


def test_all_ranks_take_part_in_the_norm(tmp_path: Path) -> None:
    expect_right(NORM_JOB, tmp_path, 2)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_twice_in_a_group_is_refused() -> None:
    """Two threads would update it at once."""
    one, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="the same parameter twice"):
        offload.SGD([one, one], lr=0.1)
    optimizer = offload.SGD([one], lr=0.1)
    with pytest.raises(ValueError, match="the same parameter twice"):
        optimizer.add_param_group({"params": (it for it in [other, other])})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": other})
    with pytest.raises(ValueError, match="not differentiable"):
        optimizer.add_param_group({"params": torch.nn.Parameter(one), "differentiable": True})
