"""FullyShardedDataParallel. On the CPU it needs `device_id=torch.device("cpu")`."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from tests.integration import models
from tests.integration.models import PLAIN, UNITS, Block, Recipe
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
    each_step,
)
from tests.integration.rows.order import assert_order, order_of
from tests.support.workers import RankContext

Training = Callable[[FullyShardedDataParallel, int, Recipe], object]
BY_BLOCK = ModuleWrapPolicy({Block})


def wrap(module: nn.Module, **options) -> FullyShardedDataParallel:
    """FSDP1 on the CPU, a unit for every block unless `options` say otherwise."""
    options = {"auto_wrap_policy": BY_BLOCK, "device_id": torch.device("cpu"), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations that concern FSDP1 itself, not us
        return FullyShardedDataParallel(module, **options)


def full_parameters(model: FullyShardedDataParallel) -> Tensors:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FullyShardedDataParallel.summon_full_params(model):
            return {name: value.detach().clone() for name, value in model.named_parameters()}


def wrapped(model: FullyShardedDataParallel) -> list[str]:
    """The names of the units, "" for the root."""
    return [
        name.replace("_fsdp_wrapped_module.", "")
        for name, module in model.named_modules()
        if isinstance(module, FullyShardedDataParallel)
    ]


def fsdp1(
    *,
    recipe: Recipe = PLAIN,
    train: Training = models.train,
    mesh_shape: tuple[int, ...] | None = None,
    policy: Callable[[nn.Module], object] | None = None,
    units: tuple[str, ...] = ("", "blocks.0", "blocks.1"),
    **options,
):
    """A row: wraps with `options`, checks that the units are `units`, trains, compares."""

    def run(context: RankContext) -> Outcome:
        placement: dict[str, object] = {}
        if mesh_shape is not None:
            names = ("replicate", "shard")
            placement["device_mesh"] = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
        module = recipe.build()
        if policy is not None:
            placement["auto_wrap_policy"] = policy(module)
        model = wrap(module, **placement, **options)
        assert wrapped(model) == list(units), wrapped(model)
        with Meter() as meter, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(model, context.rank, recipe)
        full = models.union_oracle(context.world_size, recipe)
        return compare(full_parameters(model), full, meter.used)

    return run


def _accumulate(model: FullyShardedDataParallel, rank: int, recipe: Recipe) -> None:
    def micro_batch(last: bool):
        return contextlib.nullcontext() if last else model.no_sync()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _clip(model: FullyShardedDataParallel, rank: int, recipe: Recipe) -> None:
    models.train(model, rank, recipe, clip=model.clip_grad_norm_)


def _prefetched(model: FullyShardedDataParallel, rank: int, recipe: Recipe) -> None:
    """Forward gathers a block ahead once a first step has shown the order; BACKWARD_POST gathers
    the next block only when a block's gradients are there, where the default is a block ahead.
    """
    backward = "backward head, gather, backward 1, gather, backward 0"
    assert_order(
        order_of(model, rank, recipe),
        first=f"gather, gather, forward 0, gather, forward 1, {backward}",
        later=f"gather, gather, gather, forward 0, forward 1, {backward}",
    )
    # What the limiter notes for each freed unit, to wait for it before it gathers on.
    assert not model._free_event_queue._queue


def _per_parameter(model: FullyShardedDataParallel, rank: int, recipe: Recipe) -> None:
    """Original parameters can be grouped: biases do not decay, which changes nothing at 0."""
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    others = [value for name, value in model.named_parameters() if not name.endswith("bias")]
    assert len(biases) == 6, [name for name, _ in model.named_parameters()]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=models.RATE, momentum=0.9)
    models.train(model, rank, recipe, optimizer=optimizer)


def _first_keeps(model: nn.Module) -> CustomPolicy:
    """The first block stays gathered after forward, the second does not."""

    def policy(module: nn.Module) -> bool | dict[str, object]:
        if module is model.blocks[0]:  # type: ignore[index]
            return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
        return isinstance(module, Block)

    return CustomPolicy(policy)


_TRANSFORMER = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
_BY_SIZE = functools.partial(size_based_auto_wrap_policy, min_num_params=350)
_LAYERS = ("", *(f"blocks.{block}.{layer}" for block in (0, 1) for layer in ("up", "down")))
FULL = each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)
_ACCUMULATED = each_step(all_gather=3 * (2 * UNITS - 1), reduce_scatter=UNITS)
_HYBRID = {"mesh_shape": (2, 2), "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
_MICRO = Recipe(micro_batches=3)
_CLIPPED = Recipe(max_norm=0.05)

ROWS = (
    Row("fsdp1_full_shard", 2, fsdp1(), "FULL_SHARD, ModuleWrapPolicy", FULL),
    Row("fsdp1_full_shard_w3", 3, fsdp1(), "FULL_SHARD, padded", FULL),
    Row(
        "fsdp1_shard_grad_op",
        2,
        fsdp1(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
        "SHARD_GRAD_OP: no gathers in backward",
        each_step(all_gather=UNITS, reduce_scatter=UNITS),
    ),
    Row(
        "fsdp1_no_shard",
        2,
        fsdp1(sharding_strategy=ShardingStrategy.NO_SHARD),
        "NO_SHARD: all-reduce only",
        each_step(all_reduce=UNITS),
    ),
    Row(
        "fsdp1_hybrid_shard",
        4,
        fsdp1(**_HYBRID),
        "HYBRID_SHARD on a 2 x 2 mesh",
        {**FULL, **each_step(all_reduce=UNITS)},
    ),
    Row(
        "fsdp1_hybrid_shard_zero2",
        4,
        fsdp1(mesh_shape=(2, 2), sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2),
        "_HYBRID_SHARD_ZERO2 on a 2 x 2 mesh",
        each_step(all_gather=UNITS, reduce_scatter=UNITS, all_reduce=UNITS),
    ),
    Row(
        "fsdp1_transformer_policy",
        3,
        fsdp1(auto_wrap_policy=_TRANSFORMER),
        "transformer_auto_wrap_policy",
        FULL,
    ),
    Row(
        "fsdp1_size_policy",
        3,
        fsdp1(auto_wrap_policy=_BY_SIZE, units=_LAYERS),
        "size_based_auto_wrap_policy: every larger layer a unit",
        each_step(all_gather=2 * len(_LAYERS) - 1, reduce_scatter=len(_LAYERS)),
    ),
    Row(
        "fsdp1_custom_policy",
        3,
        fsdp1(policy=_first_keeps),
        "CustomPolicy: one block SHARD_GRAD_OP, the others FULL_SHARD",
        each_step(all_gather=2 * UNITS - 2, reduce_scatter=UNITS),
    ),
    Row(
        "fsdp1_no_policy",
        4,
        fsdp1(auto_wrap_policy=None, units=("",)),
        "one unit for the whole model",
        each_step(all_gather=1, reduce_scatter=1),
    ),
    Row(
        "fsdp1_orig_params",
        3,
        fsdp1(use_orig_params=True, train=_per_parameter),
        "use_orig_params with two groups of parameters",
        FULL,
    ),
    Row(
        "fsdp1_prefetch",
        3,
        fsdp1(
            backward_prefetch=BackwardPrefetch.BACKWARD_POST,
            forward_prefetch=True,
            limit_all_gathers=False,
            train=_prefetched,
        ),
        "BACKWARD_POST, forward_prefetch, no limit on gathers",
        FULL,
    ),
    Row(
        "fsdp1_no_sync",
        2,
        fsdp1(recipe=_MICRO, train=_accumulate),
        "no_sync: 3 micro-batches, one reduction",
        _ACCUMULATED,
    ),
    Row(
        "fsdp1_no_sync_w3",
        3,
        fsdp1(recipe=_MICRO, train=_accumulate, use_orig_params=True),
        "no_sync with use_orig_params",
        _ACCUMULATED,
    ),
    Row(
        "fsdp1_clip",
        3,
        fsdp1(recipe=_CLIPPED, train=_clip),
        "clip_grad_norm_ of FSDP1",
        {**FULL, **each_step(all_reduce=1)},
    ),
    Row(
        "fsdp1_hybrid_clip",
        4,
        fsdp1(recipe=_CLIPPED, train=_clip, **_HYBRID),
        "clip_grad_norm_ with HYBRID_SHARD",
        {**FULL, **each_step(all_reduce=UNITS + 1)},
    ),
)
