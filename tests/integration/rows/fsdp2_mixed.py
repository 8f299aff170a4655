"""`fully_shard` with mixed precision, bit for bit against one process that emulates the ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.integration import models
from tests.integration.models import UNITS
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    compare,
    each_step,
    local_parameters,
    local_shards,
)
from tests.integration.rows.fsdp2 import FULL, Setting, on_each, shard
from tests.integration.rows.precision import BF16, precision_row
from tests.support.workers import RankContext


def _mixed(
    param_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    setting: Setting | None = None,
    reduce: models.Reduce | None = None,
    replicas: int = 1,
):
    """`reduce`: what becomes of the ranks' gradients, where FSDP2's default does not apply."""

    def run(context: RankContext) -> Outcome:
        n = context.world_size
        shape, names = (replicas, n // replicas), ("replicate", "shard")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        model = models.build()
        shard(model, mesh if replicas > 1 else mesh["shard"], mp_policy=policy)
        if setting is not None:
            setting(model)
        with Meter() as meter:
            models.train(model, context.rank)
        by_default = models.average
        if reduce_dtype == torch.float16:
            by_default = models.scaled_sum(*models.power_of_two_factors(n))
        full = models.emulated_ranks(n, param_dtype, reduce_dtype, reduce or by_default)
        wanted = local_shards(full, shape[1], mesh.get_local_rank("shard"))
        return compare(local_parameters(model), wanted, meter.used)

    return run


def _row(param: str, reduce: str, world_size: int) -> Row:
    return precision_row("fsdp2", "MixedPrecisionPolicy", _mixed, param, reduce, world_size, FULL)


ROWS = (
    *(
        _row(param, reduce, world_size)
        for param, reduce in (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
        for world_size in (2, 3, 4)
    ),
    Row(
        "fsdp2_bf16_premul_sum",
        3,
        _mixed(
            BF16,
            BF16,
            on_each("set_gradient_divide_factor", 5.0),
            models.premul_sum(1 / 5.0),
        ),
        "set_gradient_divide_factor in bf16: PREMUL_SUM rounded once",
        FULL,
        tolerance=0.0,
    ),
    Row(
        "fsdp2_bf16_force_sum",
        3,
        _mixed(
            BF16,
            BF16,
            on_each("set_force_sum_reduction_for_comms", True),
            models.scaled_sum(1, 3),
        ),
        "set_force_sum_reduction_for_comms in bf16: SUM rounded once, divided by FSDP2",
        FULL,
        tolerance=0.0,
    ),
    Row(
        "fsdp2_bf16_hsdp",
        4,
        _mixed(BF16, BF16, reduce=models.average_of_averages, replicas=2),
        "HSDP in bf16: AVG over shards, then over replicas",
        {**FULL, **each_step(all_reduce=UNITS)},
        tolerance=0.0,
    ),
)
