"""`fully_shard` and its settings, without mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import tidegate
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.integration import models
from tests.integration.models import PLAIN, STEPS, UNITS, Recipe
from tests.integration.rows.base import (
    FP64_TOLERANCE,
    Meter,
    Outcome,
    Row,
    compare,
    each_step,
    local_parameters,
    local_shards,
)
from tests.integration.rows.order import assert_order, order_of
from tests.support.backend import REDUCE_SCATTER_SINGLE
from tests.support.workers import RankContext

Setting = Callable[[nn.Module], None]


def on_each(method: str, *arguments: object) -> Setting:
    """Calls a method of FSDPModule on the root and on every block (the setters do not recurse)."""

    def apply(model: nn.Module) -> None:
        for module in (model, *model.blocks):  # type: ignore[misc]
            getattr(module, method)(*arguments)

    return apply


def _from_backend_memory(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """FSDP2 asks the backend for the memory of every call, and falls back silently."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    given = backend.allocate_tensor
    sizes = []

    def counted(backend, size: int, **options) -> torch.Tensor:
        sizes.append(size)
        return given(size, **options)

    with mock.patch.object(type(backend), "allocate_tensor", counted):
        models.train(model, rank, recipe)
    # The output of each gather, the input and the output of each reduction.
    assert len(sizes) == FULL["all_gather"] + 2 * FULL["reduce_scatter"], sizes
    assert tidegate.stats()["links"]["shm"]["resident_bytes"] > 0


def _prefetch(model: nn.Module) -> None:
    """All-gathers run asynchronously, one block ahead in forward and two ahead in backward."""
    first, second = model.blocks  # type: ignore[misc]
    model._set_unshard_async_op(True)  # type: ignore[operator]
    first.set_modules_to_forward_prefetch([second])
    model.set_modules_to_backward_prefetch([second, first])  # type: ignore[operator]


def _prefetched(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """By default the gathers block, and each is issued before the unit that needs it, in backward
    one unit ahead.
    """
    step = (
        "async gather, async gather, async gather, forward 0, forward 1,"
        " async gather, async gather, backward head, backward 1, backward 0"
    )
    assert_order(order_of(model, rank, recipe), step, step)


def _by_sum(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """Which operation FSDP2 hands to the reduce-scatters, by default AVG."""
    given = getattr(dist, REDUCE_SCATTER_SINGLE)
    with mock.patch.object(dist, REDUCE_SCATTER_SINGLE, wraps=given) as scatter:
        models.train(model, rank, recipe)
    operations = [call.kwargs["op"] for call in scatter.call_args_list]
    assert operations == [dist.ReduceOp.SUM] * FULL["reduce_scatter"], operations


def _in_pairs(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """Forward gathers over all ranks, backward from the pair's copies."""
    with Meter() as meter:
        models.train(model, rank, recipe)
    if meter.used is not None:
        gathers = sorted(calls["all_gather"] for calls in meter.used.groups.values())
        assert sum(gathers[:-1]) == gathers[-1] == UNITS * STEPS, meter.used.groups


def shard(model: nn.Module, mesh, **options) -> nn.Module:
    """Wraps every block and the root."""
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


Training = Callable[[nn.Module, int, Recipe], object]


def fsdp2(
    setting: Setting | None = None,
    *,
    recipe: Recipe = PLAIN,
    mesh_shape: tuple[int, int] | None = None,
    train: Training = models.train,
    **options,
):
    """A row: wraps every block and the root with `options`, applies `setting`, trains, compares."""

    def run(context: RankContext) -> Outcome:
        n = context.world_size
        if mesh_shape is None:
            mesh = init_device_mesh("cpu", (n,))
            shards, index = n, context.rank
        else:
            mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard"))
            shards, index = mesh_shape[1], mesh.get_local_rank("shard")
        model = recipe.build()
        shard(model, mesh, **options)
        if setting is not None:
            setting(model)
        with Meter() as meter:
            train(model, context.rank, recipe)
        full = models.union_oracle(n, recipe)
        # The last backward leaves the root sharded; compare what this rank stores.
        return compare(local_parameters(model), local_shards(full, shards, index), meter.used)

    return run


FULL = each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)

ROWS = (
    Row("fsdp2_w2", 2, fsdp2(), "fully_shard, gradients by AVG", FULL),
    Row(
        "fsdp2_fp64",
        2,
        fsdp2(recipe=Recipe(dtype=torch.float64)),
        "the same in fp64",
        FULL,
        tolerance=FP64_TOLERANCE,
    ),
    Row(
        "fsdp2_backend_memory",
        2,
        fsdp2(
            on_each("set_allocate_memory_from_process_group_for_comm", True),
            train=_from_backend_memory,
        ),
        "set_allocate_memory_from_process_group_for_comm: buffers from the backend",
        FULL,
    ),
    Row(
        "fsdp2_async_unshard",
        2,
        fsdp2(_prefetch, train=_prefetched),
        "_set_unshard_async_op and both prefetch setters",
        FULL,
    ),
    Row("fsdp2_w3", 3, fsdp2(), "fully_shard, uneven shards", FULL),
    Row("fsdp2_w4", 4, fsdp2(), "fully_shard, empty shards", FULL),
    Row(
        "fsdp2_hsdp",
        4,
        fsdp2(mesh_shape=(2, 2)),
        "HSDP on a 2 x 2 mesh",
        {**FULL, **each_step(all_reduce=UNITS)},
    ),
    # Given a size, FSDP2 reshards the root after forward too, and so gathers it again.
    Row(
        "fsdp2_reshard_2",
        4,
        fsdp2(train=_in_pairs, reshard_after_forward=2),
        "reshard_after_forward=2: backward gathers within pairs",
        each_step(all_gather=2 * UNITS, reduce_scatter=UNITS),
    ),
    # FSDP2 divides the sum of the ranks' gradients by the factor, the union by the ranks.
    Row(
        "fsdp2_premul_sum",
        4,
        fsdp2(on_each("set_gradient_divide_factor", 3.0), recipe=Recipe(gradient_scale=4 / 3)),
        "set_gradient_divide_factor: gradients by PREMUL_SUM",
        FULL,
    ),
    Row(
        "fsdp2_force_sum",
        4,
        fsdp2(on_each("set_force_sum_reduction_for_comms", True), train=_by_sum),
        "set_force_sum_reduction_for_comms: gradients by SUM",
        FULL,
    ),
)
