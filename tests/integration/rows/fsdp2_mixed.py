"""`fully_shard` with mixed precision, bit for bit against one process that emulates the ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.integration import models
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    compare,
    local_parameters,
    local_shards,
)
from tests.integration.rows.fsdp2 import FULL, shard
from tests.support.workers import RankContext

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def _mixed(param_dtype: torch.dtype, reduce_dtype: torch.dtype):
    def run(context: RankContext) -> Outcome:
        n = context.world_size
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        model = models.build()
        shard(model, init_device_mesh("cpu", (n,)), mp_policy=policy)
        with Meter() as meter:
            models.train(model, context.rank)
        reduce = models.average
        if reduce_dtype == torch.float16:
            reduce = models.scaled_sum(*_fp16_factors(n))
        full = models.emulated_ranks(n, param_dtype, reduce_dtype, reduce)
        wanted = local_shards(full, n, context.rank)
        return compare(local_parameters(model), wanted, meter.used)

    return run


def _fp16_factors(world_size: int) -> tuple[float, float]:
    """FSDP2's split of the division around an fp16 sum: a power of two near the root, the rest."""
    before = 1
    while world_size % before == 0 and world_size / before > before:
        before *= 2
    return before, world_size / before


def _row(param: str, reduce: str, world_size: int) -> Row:
    dtypes = {"fp32": FP32, "bf16": BF16, "fp16": FP16}
    return Row(
        f"fsdp2_{param}_{reduce}_w{world_size}",
        world_size,
        _mixed(dtypes[param], dtypes[reduce]),
        f"MixedPrecisionPolicy: parameters {param}, gradients reduced in {reduce}",
        FULL,
        tolerance=0.0,
    )


ROWS = tuple(
    _row(param, reduce, world_size)
    for param, reduce in (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
    for world_size in (2, 3, 4)
)
