"""What `fully_shard` offers around training: accumulation, clipping, offload, groups, hooks."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from tests.integration import models
from tests.integration.models import STEPS, UNITS, Recipe
from tests.integration.rows.base import (
    Calls,
    Meter,
    Outcome,
    Row,
    compare,
    each_step,
    local_parameters,
    needs,
)
from tests.integration.rows.fsdp2 import FULL, fsdp2, on_each
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.workers import RankContext

MICRO = Recipe(micro_batches=3)
CLIPPED = Recipe(max_norm=0.05)


# --- accumulation and clipping --------------------------------------------------------------------


def _accumulate(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """Gradients stay on the rank, unsharded, until the last micro-batch."""

    def micro_batch(last: bool):
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _accumulate_gathered(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """Parameters stay gathered, too: one gather of each unit a step."""
    model.set_reshard_after_forward(False)  # type: ignore[operator]

    def micro_batch(last: bool):
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        model.set_reshard_after_backward(last)  # type: ignore[operator]
        return nullcontext()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _accumulate_shards(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """HSDP: each micro-batch is reduced over the shards, only the last over the replicas."""

    def micro_batch(last: bool):
        model.set_requires_all_reduce(last)  # type: ignore[operator]
        return nullcontext()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _clip(model: nn.Module, rank: int, recipe: Recipe) -> None:
    def clip(max_norm: float) -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        assert isinstance(norm, DTensor)  # of shards: the clipping itself made it whole

    models.train(model, rank, recipe, clip=clip)


# --- offload -------------------------------------------------------------------------------------


def _offloaded(model: nn.Module) -> None:
    """Of the CPU to the CPU, which moves nothing: FSDP2 must at least have taken it so."""
    for module in (model, *model.blocks):  # type: ignore[misc]
        group = module._get_fsdp_state()._fsdp_param_group
        assert isinstance(group.offload_policy, CPUOffloadPolicy), group.offload_policy
        for managed in group.fsdp_params:
            assert managed.offload_to_cpu, managed
            assert managed.sharded_param.device.type == "cpu", managed


OFFLOAD = CPUOffloadPolicy(pin_memory=False)


# --- who gathers, and when ------------------------------------------------------------------------


def _unshard_by_hand(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """All gathers of a forward pass are issued before it and waited for by handle."""

    def micro_batch(last: bool):
        units = (model, *model.blocks)  # type: ignore[misc]
        handles = [unit.unshard(async_op=True) for unit in units]  # type: ignore[operator]
        for handle in reversed(handles):
            handle.wait()
        return nullcontext()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _in_two_groups(model: nn.Module, rank: int, recipe: Recipe) -> None:
    model.set_separate_reduce_scatter_group()  # type: ignore[operator]
    with Meter() as meter:
        models.train(model, rank, recipe)
    if meter.used is not None:
        assert sorted(map(sorted, meter.used.groups.values())) == [
            ["all_gather"],
            ["reduce_scatter"],
        ]


def _keep_gathered(model: nn.Module) -> None:
    model.set_reshard_after_forward(False)  # type: ignore[operator]


class _Gather:
    """A custom all-gather: through a buffer of its own, asynchronously, waited for at once."""

    used = 0

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(tuple(size), -1, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        _Gather.used += 1
        work = all_gather_single(output_tensor, input_tensor.clone(), group, async_op=True)
        if async_op:
            return work
        work.wait()
        return None


class _Scatter(_Gather):
    """A custom reduce-scatter, likewise."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        _Gather.used += 1
        work = reduce_scatter_single(output_tensor, input_tensor, op, group, async_op=True)
        if async_op:
            return work
        work.wait()
        return None


def _custom_comm(model: nn.Module) -> None:
    on_each("set_custom_all_gather", _Gather())(model)
    on_each("set_custom_reduce_scatter", _Scatter())(model)


def _with_custom_comm(model: nn.Module, rank: int, recipe: Recipe) -> None:
    _Gather.used = 0
    models.train(model, rank, recipe)
    assert _Gather.used == sum(FULL.values()), _Gather.used


# --- shapes ---------------------------------------------------------------------------------------


class Columns(nn.Sequential):
    """Three layers; the second dimension of the last two weights divides by 2, 3 and 4."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(models.FEATURES, 12),
            nn.Tanh(),
            nn.Linear(12, 24),
            nn.Tanh(),
            nn.Linear(24, models.TARGETS),
        )


def _by_columns(context: RankContext) -> Outcome:
    """Weights are split by columns where they divide, everything else by rows."""
    n, rank = context.world_size, context.rank
    recipe = Recipe(network=Columns)
    model = recipe.build()

    def dim(value: torch.Tensor) -> int:
        return 1 if value.dim() == 2 and value.shape[1] % n == 0 else 0

    assert [dim(value) for value in model.parameters()] == [0, 0, 1, 0, 1, 0]
    mesh = init_device_mesh("cpu", (n,))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda value: Shard(dim(value)))
    with Meter() as meter:
        models.train(model, rank, recipe)
    wanted = {}
    for name, value in models.union_oracle(n, recipe).items():
        chunks = torch.chunk(value, n, dim=dim(value))
        wanted[name] = chunks[rank] if rank < len(chunks) else value[:0]
    return compare(local_parameters(model), wanted, meter.used)


def _all_reduce_hook(context: RankContext) -> Outcome:
    """Replicas made by hand: shards within pairs, and a hook that reduces over the pairs."""
    n = context.world_size
    mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = models.build()
    replicas = mesh.get_group("replicate")
    hooked = 0

    def hook(reduced: torch.Tensor) -> None:
        nonlocal hooked
        hooked += 1
        dist.all_reduce(reduced, op=dist.ReduceOp.AVG, group=replicas)

    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["shard"])
        module.set_all_reduce_hook(hook)
    with Meter() as meter:
        models.train(model, context.rank)
    assert hooked == STEPS * UNITS, hooked
    full = models.union_oracle(n)
    index = mesh.get_local_rank("shard")
    wanted = {name: torch.chunk(value, 2, dim=0) for name, value in full.items()}
    parts = {
        name: chunks[index] if index < len(chunks) else chunks[0][:0]
        for name, chunks in wanted.items()
    }
    return compare(local_parameters(model), parts, meter.used)


def _micro(gathers: int, scatters: int = UNITS, **others: int) -> Calls:
    return each_step(all_gather=gathers, reduce_scatter=scatters, **others)


_HSDP = {**FULL, **each_step(all_reduce=UNITS)}
_PER_MICRO = 3 * (2 * UNITS - 1)

ROWS = (
    Row(
        "fsdp2_accumulate",
        2,
        fsdp2(recipe=MICRO, train=_accumulate),
        "set_requires_gradient_sync: 3 micro-batches, one reduction",
        _micro(_PER_MICRO),
    ),
    Row(
        "fsdp2_accumulate_gathered",
        3,
        fsdp2(recipe=MICRO, train=_accumulate_gathered),
        "set_reshard_after_backward: parameters stay gathered between micro-batches",
        _micro(UNITS),
    ),
    Row(
        "fsdp2_hsdp_accumulate",
        4,
        fsdp2(recipe=MICRO, train=_accumulate_shards, mesh_shape=(2, 2)),
        "set_requires_all_reduce: 3 micro-batches reduced over shards, one over replicas",
        _micro(_PER_MICRO, 3 * UNITS, all_reduce=UNITS),
    ),
    Row(
        "fsdp2_clip",
        3,
        fsdp2(recipe=CLIPPED, train=_clip),
        "clip_grad_norm_ of DTensors",
        {**FULL, **each_step(all_reduce=1)},
    ),
    Row(
        "fsdp2_hsdp_clip",
        4,
        fsdp2(recipe=CLIPPED, train=_clip, mesh_shape=(2, 2)),
        "clip_grad_norm_ on a 2 x 2 mesh",
        {**FULL, **each_step(all_reduce=UNITS + 1)},
    ),
    Row(
        "fsdp2_cpu_offload",
        2,
        fsdp2(_offloaded, offload_policy=OFFLOAD),
        "CPUOffloadPolicy(pin_memory=False)",
        FULL,
    ),
    Row(
        "fsdp2_cpu_offload_clip",
        3,
        fsdp2(_offloaded, recipe=CLIPPED, train=_clip, offload_policy=OFFLOAD),
        "CPUOffloadPolicy and clip_grad_norm_",
        {**FULL, **each_step(all_reduce=1)},
    ),
    Row(
        "fsdp2_separate_group",
        3,
        fsdp2(train=_in_two_groups),
        "set_separate_reduce_scatter_group: gathers and reductions in two groups",
        FULL,
        lacking=needs(FSDPModule, "set_separate_reduce_scatter_group"),
    ),
    Row(
        "fsdp2_unshard_by_hand",
        3,
        fsdp2(train=_unshard_by_hand),
        "module.unshard(async_op=True): all gathers of a forward pass in flight at once",
        FULL,
    ),
    Row(
        "fsdp2_keep_gathered",
        3,
        fsdp2(_keep_gathered),
        "set_reshard_after_forward(False): no gathers in backward",
        each_step(all_gather=UNITS, reduce_scatter=UNITS),
    ),
    Row(
        "fsdp2_custom_comm",
        3,
        fsdp2(_custom_comm, train=_with_custom_comm),
        "set_custom_all_gather and set_custom_reduce_scatter",
        FULL,
    ),
    Row(
        "fsdp2_columns_w2",
        2,
        _by_columns,
        "shard_placement_fn: some weights by columns",
        each_step(all_gather=1, reduce_scatter=1),
    ),
    Row(
        "fsdp2_columns_w4",
        4,
        _by_columns,
        "the same, 4 ranks",
        each_step(all_gather=1, reduce_scatter=1),
    ),
    Row(
        "fsdp2_all_reduce_hook",
        4,
        _all_reduce_hook,
        "set_all_reduce_hook: replicas by a hook of the user's",
        _HSDP,
    ),
)
