"""FullyShardedDataParallel. On the CPU it needs `device_id=torch.device("cpu")`."""

from __future__ import annotations

import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.integration import models
from tests.integration.models import UNITS, Block
from tests.integration.rows.base import Meter, Outcome, Row, compare, each_step
from tests.support.workers import RankContext


def _fsdp1(strategy: ShardingStrategy, mesh_shape: tuple[int, ...] | None = None):
    def run(context: RankContext) -> Outcome:
        placement = {}
        if mesh_shape is not None:
            names = ("replicate", "shard")
            placement["device_mesh"] = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations that concern the strategies, not us
            model = FullyShardedDataParallel(
                models.build(),
                sharding_strategy=strategy,
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                device_id=torch.device("cpu"),
                **placement,
            )
            with Meter() as meter:
                models.train(model, context.rank)
            with FullyShardedDataParallel.summon_full_params(model):
                found = {name: value.detach().clone() for name, value in model.named_parameters()}
        return compare(found, models.union_oracle(context.world_size), meter.used)

    return run


_FULL = each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)
_FULL_SHARD = _fsdp1(ShardingStrategy.FULL_SHARD)

ROWS = (
    Row("fsdp1_full_shard", 2, _FULL_SHARD, "FULL_SHARD", _FULL),
    Row(
        "fsdp1_shard_grad_op",
        2,
        _fsdp1(ShardingStrategy.SHARD_GRAD_OP),
        "SHARD_GRAD_OP: no gathers in backward",
        each_step(all_gather=UNITS, reduce_scatter=UNITS),
    ),
    Row(
        "fsdp1_no_shard",
        2,
        _fsdp1(ShardingStrategy.NO_SHARD),
        "NO_SHARD: all-reduce only",
        each_step(all_reduce=UNITS),
    ),
    Row("fsdp1_full_shard_w3", 3, _FULL_SHARD, "FULL_SHARD, padded", _FULL),
    Row(
        "fsdp1_hybrid_shard",
        4,
        _fsdp1(ShardingStrategy.HYBRID_SHARD, (2, 2)),
        "HYBRID_SHARD on a 2 x 2 mesh",
        {**_FULL, **each_step(all_reduce=UNITS)},
    ),
)
