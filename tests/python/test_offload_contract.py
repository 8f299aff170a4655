"""What offloaded optimizers promise where ranks, settings or memory are not as usual."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tidegate import offload

from tests.python.jobs import expect_right

#: How each job of several ranks begins and ends.
BEGINNING = """
import datetime, warnings
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from tidegate import offload

warnings.simplefilter("ignore")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
everyone = DeviceMesh("cpu", list(range(dist.get_world_size())))

def spread(local, mesh=everyone, **whole):
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, **whole)
"""
END = """
dist.barrier()
dist.destroy_process_group()
print("right")
"""

#: Rank 1 has no gradients, then one of a dtype that is refused; rank 0 must neither hang nor step.
NORM_JOB = """
def check(sharded, limit):
    def part(local):
        return spread(local) if sharded else local

    def here():
        data = parameter.detach()
        return (data.to_local() if sharded else data).clone()

    parameter = torch.nn.Parameter(part(torch.ones(2)))
    parameter.grad_dtype = None
    group = None if sharded else dist.group.WORLD
    optimizer = offload.SGD([parameter], lr=0.5, max_grad_norm=limit, norm_group=group)
    if rank == 0:
        parameter.grad = part(torch.ones(2))
    optimizer.step()
    assert abs(optimizer.grad_norm - 2 ** 0.5) < 1e-6, optimizer.grad_norm
    assert torch.equal(here(), torch.full((2,), 0.5 if rank == 0 else 1.0))
    before = here()
    parameter.grad = part(torch.ones(2, dtype=torch.float64 if rank == 1 else torch.float32))
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        assert type(error) is (RuntimeError if rank == 0 else TypeError), error
    else:
        raise AssertionError("no error")
    assert torch.equal(here(), before)
    assert optimizer.grad_norm is None
    parameter.grad = part(torch.ones(2))
    optimizer.step()
    assert abs(optimizer.grad_norm - 2) < 1e-6, optimizer.grad_norm

for sharded in (True, False):
    for limit in (2e6, float("inf")):
        check(sharded, limit)

whole = torch.nn.Parameter(torch.ones(3))
whole.grad = torch.ones(3)
over_ranks = offload.SGD([whole], max_grad_norm=2.0, shard_over=dist.group.WORLD)
over_ranks.step()
assert over_ranks.grad_norm is not None
over_ranks.found_inf = torch.tensor(float(rank))
over_ranks.step()
assert over_ranks.grad_norm is None
"""


def test_all_ranks_take_part_in_the_norm(tmp_path: Path) -> None:
    expect_right(BEGINNING + NORM_JOB + END, tmp_path, 2)


#: The second parameter is on a mesh that rank 2 is not in.
SUBMESH_JOB = """
two = DeviceMesh("cpu", [0, 1])

def on_two(count):
    return spread(torch.ones(count), two, shape=(4,), stride=(1,))

for limit in (1e6, float("inf")):
    wide = torch.nn.Parameter(spread(torch.ones(2)))
    narrow = torch.nn.Parameter(on_two(2 if rank < 2 else 0))
    optimizer = offload.SGD([wide, narrow], max_grad_norm=limit)
    wide.grad = spread(torch.ones(2))
    if rank < 2:
        narrow.grad = on_two(2)
    for _ in range(2):
        optimizer.step()
        expected = (10 if rank < 2 else 6) ** 0.5
        assert abs(optimizer.grad_norm - expected) < 1e-6, optimizer.grad_norm
"""


def test_a_mesh_may_be_of_some_ranks_only(tmp_path: Path) -> None:
    expect_right(BEGINNING + SUBMESH_JOB + END, tmp_path, 3)


#: The shard of rank 1 and the parameter after it have the same numbers, but not the same rounding.
STREAM_JOB = """
shard = torch.nn.Parameter(spread(torch.ones(5000)))
others = [torch.nn.Parameter(torch.ones(5000)) for _ in range(2)]
optimizer = offload.AdamW([shard, *others], states="bf16")
gradient = torch.linspace(1, 2, 5000)
shard.grad = spread(gradient)
for other in others:
    other.grad = gradient
optimizer.step()
squares = [optimizer.state[it]["exp_avg_sq"] for it in (shard, *others)]
squares[0] = squares[0].to_local()
for one in range(3):
    for other in range(one):
        assert not torch.equal(squares[one], squares[other]), (one, other)
"""


def test_shards_and_whole_parameters_are_rounded_by_different_numbers(tmp_path: Path) -> None:
    expect_right(BEGINNING + STREAM_JOB + END, tmp_path, 2)


#: A parameter of FSDP1 does not tell whether it is a shard.
FSDP1_JOB = """
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

alone, _ = dist.new_subgroups(1)
for strategy, group in (("NO_SHARD", alone), ("FULL_SHARD", dist.group.WORLD)):
    for original in (True, False):
        torch.manual_seed(0)
        model = FullyShardedDataParallel(
            torch.nn.Linear(9, 7),
            sharding_strategy=ShardingStrategy[strategy],
            use_orig_params=original,
            device_id=torch.device("cpu"),
        )
        model(torch.ones(2, 9)).square().sum().backward()
        optimizer = offload.SGD(model.parameters(), lr=0.1, max_grad_norm=1e9)
        try:
            optimizer.step()
        except ValueError as error:
            assert "of NO_SHARD, a group of this rank alone" in str(error), error
        else:
            raise AssertionError("no error")
        optimizer.norm_group = group
        optimizer.step()
        theirs = model.clip_grad_norm_(1e9).item()
        assert abs(optimizer.grad_norm - theirs) < 1e-5 * theirs, (optimizer.grad_norm, theirs)
"""


def test_the_norm_of_fsdp1_is_torchs_whether_it_shards_or_not(tmp_path: Path) -> None:
    expect_right(BEGINNING + FSDP1_JOB + END, tmp_path, 2)


#: States are in memory that a child shares, parameters are copied when either writes to them.
FORK_JOB = """
import copy, os, traceback

def stepped(optimizer_class, dtype=torch.float32, **arguments):
    parameter = torch.nn.Parameter(torch.ones(5000, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    optimizer = optimizer_class([parameter], **arguments)
    optimizer.step()
    return parameter, optimizer

def refuses(call):
    try:
        call()
    except RuntimeError as error:
        assert "before the fork" in str(error), error
    else:
        raise AssertionError("no error")

parameter, optimizer = stepped(offload.AdamW)
_, with_master = stepped(offload.SGD, dtype=torch.bfloat16, lr=0.1)
_, stateless = stepped(offload.SGD, lr=0.1)
_, over_ranks = stepped(offload.AdamW, shard_over=dist.group.WORLD)
taken = offload.offload_states(stepped(torch.optim.AdamW)[1])
saved = copy.deepcopy(optimizer.state_dict())

def child():
    before = parameter.detach().clone()
    for one in (optimizer, with_master, over_ranks):
        refuses(one.step)
        refuses(one.state_dict)
    refuses(lambda: copy.deepcopy(optimizer))
    refuses(taken.give_back)
    assert torch.equal(parameter, before)
    stateless.step()
    for again in (optimizer, offload.AdamW([parameter])):
        again.load_state_dict(saved)
        again.step()
        assert again.state_dict()["state"][0]["step"] == 2

pid = os.fork()
if pid == 0:
    status = 1
    try:
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
_, status = os.waitpid(pid, 0)
assert status == 0
for one in (optimizer, with_master, stateless, over_ranks):
    one.step()
assert optimizer.state_dict()["state"][0]["step"] == 2
"""


def test_a_forked_child_does_not_take_its_parents_states_for_its_own(tmp_path: Path) -> None:
    expect_right(BEGINNING + FORK_JOB + END, tmp_path, 1)


#: Each rank maps the slices of all, beside the arena of its own.
ADDRESSES_JOB = """
import resource

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (8 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for arguments in ({}, {"shard_over": dist.group.WORLD}, {"shard_over": dist.new_group()}):
    parameter = torch.nn.Parameter(torch.ones(5000))
    parameter.grad = torch.ones(5000)
    offload.AdamW([parameter], **arguments).step()
"""


def test_ranks_share_memory_where_addresses_are_limited(tmp_path: Path) -> None:
    expect_right(BEGINNING + ADDRESSES_JOB + END, tmp_path, 3)


#: States of 256 MiB, twice while they are loaded.
TRIM_JOB = """
def committed():
    return offload.stats()["arena"]["committed_bytes"] >> 20

parameter = torch.nn.Parameter(torch.zeros(32 << 20))
parameter.grad = torch.zeros(32 << 20)
optimizer = offload.AdamW([parameter])
optimizer.step()
assert committed() == 256, committed()
saved = optimizer.state_dict()
optimizer.load_state_dict(saved)
assert committed() == 512, committed()
del saved
assert committed() == 256, committed()
del optimizer
assert committed() == 0, committed()
"""


def test_memory_that_is_no_longer_needed_goes_back_to_the_machine(tmp_path: Path) -> None:
    expect_right(BEGINNING + TRIM_JOB + END, tmp_path, 1)


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


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan")])
def test_a_limit_of_the_norm_is_checked_whenever_it_is_set(value: float) -> None:
    optimizer = offload.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="max_grad_norm must be above 0"):
        optimizer.max_grad_norm = value
    assert optimizer.max_grad_norm == 1.0
    optimizer.max_grad_norm = None


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_is_checked_before_there_are_steps(seed: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=rf"seed must be 0 to 2\*\*64 - 1; got {seed}"):
        offload.AdamW([parameter], seed=seed)
    parameter.grad = torch.ones(3)
    offload.AdamW([parameter], seed=(1 << 64) - 1).step()


@pytest.mark.parametrize("limit", [1.0, float("inf")])
def test_the_norm_is_that_of_the_last_step(limit: float) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = offload.SGD([parameter], lr=0.1, max_grad_norm=limit)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))  # Which makes the scale.

    def step(gradient: torch.Tensor) -> None:
        parameter.grad = gradient
        scaler.step(optimizer)
        scaler.update()

    step(torch.ones(4))
    assert optimizer.grad_norm == 2.0
    step(torch.full((4,), torch.inf))
    assert optimizer.grad_norm is None
    step(torch.ones(4))
    assert optimizer.grad_norm is not None
    parameter.grad = torch.ones(4)
    parameter.grad.data = torch.ones(5)
    with pytest.raises(ValueError, match="shape"):
        optimizer.step()
    assert optimizer.grad_norm is None
    parameter.grad = torch.ones(4)
    optimizer.step()
    optimizer.max_grad_norm = None
    optimizer.step()
    assert optimizer.grad_norm is None


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_a_scale_of_zero_is_no_error(found: float) -> None:
    results = []
    for optimizer_class, how in ((offload.SGD, {}), (torch.optim.SGD, {"fused": True})):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer: Any = optimizer_class([parameter], lr=0.1, **how)
        parameter.grad = torch.tensor([1.0, -1.0, 0.0])
        optimizer.grad_scale = torch.tensor(0.0)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()
        results.append(parameter.detach())
    assert torch.equal(*(torch.nan_to_num(result, nan=7.0) for result in results))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_does_not_take_its_ranks_part_for_the_norm(copied: Any, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = offload.SGD([parameter], lr=0.1, max_grad_norm=1.0, norm_group=dist.group.WORLD)
        parameter.grad = torch.ones(4)
        optimizer.step()
        twin = copied(copied(optimizer))
        assert twin.grad_norm is None
        assert not twin._step_supports_amp_scaling
        (other,) = twin.param_groups[0]["params"]
        other.grad = torch.ones(4)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"set optimizer\.norm_group"):
                twin.step()
        assert torch.equal(other, parameter)
        twin.norm_group = dist.group.WORLD
        twin.step()
        assert twin.grad_norm == 2.0
    finally:
        dist.destroy_process_group()
