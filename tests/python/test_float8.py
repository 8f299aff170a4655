"""The 8-bit floats of the reductions against torch's own conversions, in a group of one rank.

PREMUL_SUM of one rank is `encode(decode(code) * factor)`: with all 256 codes and thousands of
factors, what an encoder can see. The C++ unit tests do the same against a reference on every
instruction set.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.backend import premul_sum
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

FLOAT8S = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
RANDOM_FACTORS = 1500
GREATEST_E4M3FN = 448.0


def _factors() -> list[float]:
    """Both ends of fp32, products that are ties of each rounding, and anything between."""
    ends = [0.0, -0.0, float("inf"), float("nan"), 2.0**127, 2.0**-127, 1.5 * 2.0**-127, 2.0**-149]
    ties = [step / 32 * 2.0**exponent for exponent in range(-20, 20, 3) for step in range(32, 64)]
    generator = torch.Generator().manual_seed(11)
    scales = torch.exp2(torch.randint(-40, 40, (RANDOM_FACTORS,), generator=generator).float())
    return ends + ties + (torch.randn(RANDOM_FACTORS, generator=generator) * scales).tolist()


def _expected(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float8_e4m3fn:  # torch 2.11 made what is too large NaN
        values = values.clamp(-GREATEST_E4M3FN, GREATEST_E4M3FN)
    return values.to(dtype)


def _differences(context: RankContext, name: str) -> tuple[int, list[str]]:
    dtype = getattr(torch, name)
    group = dist.group.WORLD
    codes = torch.arange(256, dtype=torch.uint8)
    decoded = codes.view(dtype).to(torch.float32)
    compared, found = 0, []
    for factor in _factors():
        options = dist.AllreduceOptions()
        options.reduceOp = premul_sum(factor)
        got = codes.clone().view(dtype)
        group.allreduce([got], options).wait()
        want = _expected(decoded * torch.tensor(factor, dtype=torch.float32), dtype)
        wrong = got.view(torch.uint8) != want.view(torch.uint8)
        # Which NaN comes out is not defined.
        wrong &= ~(got.to(torch.float32).isnan() & want.to(torch.float32).isnan())
        compared += 256
        found += [
            f"{code:#04x} * {factor!r}: {int(got.view(torch.uint8)[code]):#04x} "
            f"instead of {int(want.view(torch.uint8)[code]):#04x}"
            for code in wrong.nonzero().flatten().tolist()
        ]
    return compared, found[:5]


@pytest.mark.parametrize("name", FLOAT8S)
def test_codes_are_decoded_and_rounded_as_torch_does(name: str, pools: PoolKeeper) -> None:
    ((compared, found),) = pools.get(1).run(_differences, name)
    assert compared > 400_000
    assert not found, found


def _sum_of_codes(context: RankContext, name: str) -> bool:
    dtype = getattr(torch, name)
    codes = torch.arange(256, dtype=torch.uint8)
    own = codes if context.rank == 0 else codes.flip(0)
    total = own.clone().view(dtype)
    dist.all_reduce(total)
    values = codes.view(dtype).float() + codes.flip(0).view(dtype).float()
    got, want = total.float(), _expected(values, dtype).float()
    return bool(((got == want) | (got.isnan() & want.isnan())).all())


@pytest.mark.parametrize("name", FLOAT8S)
def test_a_sum_of_two_ranks_is_that_of_fp32_rounded_once(name: str, pools: PoolKeeper) -> None:
    assert pools.get(2).run(_sum_of_codes, name) == [True, True]
