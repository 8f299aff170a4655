"""FSDP1 in low precision, bit for bit against one process that emulates the ranks."""

from __future__ import annotations

import itertools

import torch
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.integration import models
from tests.integration.models import STEPS
from tests.integration.rows.base import Meter, Outcome, Row, compare, each_step
from tests.integration.rows.fsdp1 import FULL, full_parameters, wrap
from tests.integration.rows.precision import FP16, FP32, precision_row
from tests.support.workers import RankContext


def _emulated(n: int, param_dtype: torch.dtype, reduce_dtype: torch.dtype, scaler=None):
    reduce = models.scaled_sum(*models.power_of_two_factors(n))
    return models.emulated_ranks(n, param_dtype, reduce_dtype, reduce, scaler)


def _mixed(param_dtype: torch.dtype, reduce_dtype: torch.dtype):
    def run(context: RankContext) -> Outcome:
        policy = MixedPrecision(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        model = wrap(models.build(), mixed_precision=policy)
        with Meter() as meter:
            models.train(model, context.rank)
        wanted = _emulated(context.world_size, param_dtype, reduce_dtype)
        return compare(full_parameters(model), wanted, meter.used)

    return run


# The first scale overflows fp16 in some ranks' shards; growth sets in after two good steps.
_SCALER = {"init_scale": 2.0**17, "growth_interval": 2}


def _scaled(context: RankContext) -> Outcome:
    """Infinities found in any shard must skip the step on every rank, and halve every scale."""
    policy = MixedPrecision(param_dtype=FP16, reduce_dtype=FP16)
    model = wrap(models.build(), mixed_precision=policy)
    scaler = ShardedGradScaler(device="cpu", **_SCALER)
    optimizer = models.sgd(model)
    scales = []
    with Meter() as meter:
        for step in range(STEPS):
            x, y = models.batch(step, context.rank, FP32)
            scaler.scale(models.loss_of(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    alone = torch.amp.GradScaler("cpu", **_SCALER)
    wanted = _emulated(context.world_size, FP16, FP16, alone)
    assert scales[0] < _SCALER["init_scale"], scales
    assert any(after > before for before, after in itertools.pairwise(scales)), scales
    found = {**full_parameters(model), "scale": torch.tensor(scaler.get_scale())}
    return compare(found, {**wanted, "scale": torch.tensor(alone.get_scale())}, meter.used)


def _row(param: str, reduce: str, world_size: int) -> Row:
    return precision_row("fsdp1", "MixedPrecision", _mixed, param, reduce, world_size, FULL)


_SCALED = {**FULL, **each_step(all_reduce=1)}

ROWS = (
    _row("bf16", "fp32", 2),
    _row("bf16", "bf16", 3),
    _row("fp16", "fp16", 4),
    Row("fsdp1_grad_scaler", 3, _scaled, "ShardedGradScaler in fp16", _SCALED, tolerance=0.0),
    Row("fsdp1_grad_scaler_w4", 4, _scaled, "the same, 4 ranks", _SCALED, tolerance=0.0),
)
