"""Tensors whose elements lie in memory in another order than row by row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
}


def _values(rank: int) -> torch.Tensor:
    return torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5) * (rank + 1)


def _calls(context: RankContext, layout: str) -> None:
    ranks = context.world_size
    group = dist.new_group()
    total = sum(_values(rank) for rank in range(ranks))
    tensor = LAYOUTS[layout](_values(context.rank))
    strides = tensor.stride()
    assert not tensor.is_contiguous()
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, total)
    tensor = LAYOUTS[layout](_values(context.rank))
    dist.broadcast(tensor, ranks - 1, group=group)
    assert torch.equal(tensor, _values(ranks - 1))
    tensor = LAYOUTS[layout](_values(context.rank))
    dist.reduce(tensor, 0, group=group)
    assert torch.equal(tensor, total if context.rank == 0 else _values(context.rank))
    assert tensor.stride() == strides
    dist.destroy_process_group(group)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_of_one_tensor_take_any_order(
    pools: PoolKeeper, ranks: int, layout: str
) -> None:
    pools.get(ranks).run(_calls, layout)


def _differ(context: RankContext) -> tuple[str, bool]:
    group = dist.new_group()
    tensor = _values(context.rank)
    if context.rank == 1:
        tensor = LAYOUTS["channels_last"](tensor)
    try:
        dist.broadcast(tensor, 0, group=group)
        said = ""
    except dist.DistBackendError as error:
        said = str(error)
    untouched = torch.equal(tensor, _values(context.rank))
    dist.barrier()
    dist.destroy_process_group(group)
    return said, untouched


def test_ranks_of_other_strides_are_told(pools: PoolKeeper) -> None:
    for said, untouched in pools.get(2).run(_differ):
        assert "strides" in said
        assert untouched


def _refused(context: RankContext) -> None:
    whole = _values(context.rank)
    for tensor in (whole[..., ::2], whole[:1].expand(2, 3, 4, 5)):
        with pytest.raises(ValueError, match="not contiguous"):
            dist.all_reduce(tensor, group=dist.new_group())
    gathered = torch.empty(2 * whole.numel())
    with pytest.raises(ValueError, match="not contiguous"):
        dist.all_gather_into_tensor(gathered, LAYOUTS["transposed"](whole), group=dist.new_group())


def test_gaps_and_parts_in_another_order_are_refused(pools: PoolKeeper) -> None:
    pools.get(2).run(_refused)
