"""What the rows of mixed precision have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.integration.rows.base import Calls, Outcome, Row
from tests.support.workers import RankContext

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
_DTYPES = {"fp32": FP32, "bf16": BF16, "fp16": FP16}

Run = Callable[[RankContext], Outcome]


def precision_row(
    wrapper: str,
    policy: str,
    mixed: Callable[[torch.dtype, torch.dtype], Run],
    param: str,
    reduce: str,
    world_size: int,
    calls: Calls,
) -> Row:
    """A row of `mixed(dtype of parameters, dtype of reductions)`, without tolerance."""
    return Row(
        f"{wrapper}_{param}_{reduce}_w{world_size}",
        world_size,
        mixed(_DTYPES[param], _DTYPES[reduce]),
        f"{policy}: parameters {param}, gradients reduced in {reduce}",
        calls,
        tolerance=0.0,
    )
