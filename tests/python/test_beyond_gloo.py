"""Where gloo refuses or gets wrong what a backend can do: each test runs both, gloo first.

The first line of each test says what gloo does. If a torch comes in which it does better, the
assertion about gloo fails and the comparison wants rewriting. More of the same without gloo:
tests/conformance, tests/unit/collectives/kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.backend import premul_sum
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

RANKS = 3
Call = Callable[[RankContext, dist.ProcessGroup], Any]


def _both(context: RankContext, call: Call) -> tuple[Any, Any]:
    """What `call` gives over gloo and over tidegate; an exception as its class's name."""
    gloo = dist.new_group(backend="gloo")
    try:
        theirs = call(context, gloo)
    except Exception as error:
        theirs = type(error).__name__
    # Not destroyed: gloo's peers may be in the call still. It ends with the process.
    return theirs, call(context, dist.group.WORLD)


def _run(pools: PoolKeeper, call: Call) -> list[tuple[Any, Any]]:
    return pools.get(RANKS).run(_both, call)


def _wrong_sums_of_bfloat16(context: RankContext, group: dist.ProcessGroup) -> int:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(context.world_size, 1000, generator=generator).to(torch.bfloat16)
    total = inputs[context.rank].clone()
    dist.all_reduce(total, group=group)
    wanted = inputs[0].float()
    for rank in range(1, context.world_size):
        wanted += inputs[rank].float()
    return int((total != wanted.to(torch.bfloat16)).sum())


def test_sixteen_bit_sums_are_rounded_once(pools: PoolKeeper) -> None:
    """gloo rounds after every addition."""
    for theirs, ours in _run(pools, _wrong_sums_of_bfloat16):
        assert ours == 0
        assert theirs > 0


def _premultiplied(context: RankContext, group: dist.ProcessGroup) -> list[float]:
    tensor = torch.tensor([context.rank + 1.0])
    dist.all_reduce(tensor, premul_sum(0.5), group=group)
    return tensor.tolist()


def test_premultiplied_sum(pools: PoolKeeper) -> None:
    """gloo refuses PREMUL_SUM."""
    for theirs, ours in _run(pools, _premultiplied):
        assert ours == [3.0]
        assert isinstance(theirs, str), theirs


def _strided(context: RankContext, group: dist.ProcessGroup) -> tuple[str, list[float]]:
    whole = torch.full((6,), context.rank + 1.0)
    kind = "nothing"
    try:
        dist.all_reduce(whole[::2], group=group)
    except Exception as error:
        kind = type(error).__name__
    return kind, whole.tolist()


def test_strided_tensors_are_refused_and_left_alone(pools: PoolKeeper) -> None:
    """gloo refuses them, too, as "Tensors must be contiguous": here it is a ValueError."""
    for rank, (theirs, ours) in enumerate(_run(pools, _strided)):
        assert ours == ("ValueError", [rank + 1.0] * 6)
        assert theirs != ours


def _small_integers(context: RankContext, group: dist.ProcessGroup) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        tensor = torch.tensor([context.rank + 1, 100]).to(dtype)
        try:
            dist.all_reduce(tensor, group=group)
            found[str(dtype)] = tensor.to(torch.int64).tolist()
        except Exception as error:
            found[str(dtype)] = type(error).__name__
    return found


def test_small_and_unsigned_integers(pools: PoolKeeper) -> None:
    """gloo has no int16, uint16, uint32 and uint64."""
    for theirs, ours in _run(pools, _small_integers):
        assert set(map(tuple, ours.values())) == {(6, 300)}
        assert all(isinstance(value, str) for value in theirs.values()), theirs


def _uneven_all_to_all(context: RankContext, group: dist.ProcessGroup) -> list[list[float]]:
    me, n = context.rank, context.world_size
    outputs = [torch.zeros(2 * me + rank) for rank in range(n)]
    inputs = [torch.full((2 * rank + me,), 10.0 * me + rank) for rank in range(n)]
    dist.all_to_all(outputs, inputs, group=group)
    return [output.tolist() for output in outputs]


def test_all_to_all_of_uneven_lists(pools: PoolKeeper) -> None:
    """gloo has no all_to_all of lists."""
    for me, (theirs, ours) in enumerate(_run(pools, _uneven_all_to_all)):
        assert ours == [[10.0 * rank + me] * (2 * me + rank) for rank in range(RANKS)]
        assert isinstance(theirs, str), theirs


def _uneven_all_gather(context: RankContext, group: dist.ProcessGroup) -> list[list[float]]:
    outputs = [torch.zeros(rank + 1) for rank in range(context.world_size)]
    dist.all_gather(outputs, torch.full((context.rank + 1,), float(context.rank)), group=group)
    return [output.tolist() for output in outputs]


def test_all_gather_into_uneven_lists(pools: PoolKeeper) -> None:
    """gloo refuses outputs whose sizes differ."""
    for theirs, ours in _run(pools, _uneven_all_gather):
        assert ours == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
        assert isinstance(theirs, str), theirs


def _incomplete_after_wait(context: RankContext, group: dist.ProcessGroup) -> int:
    works = [dist.all_reduce(torch.ones(4), group=group, async_op=True) for _ in range(200)]
    incomplete = 0
    for work in works:
        work.wait()
        incomplete += not work.is_completed()
    return incomplete


def test_a_work_is_completed_after_its_wait(pools: PoolKeeper) -> None:
    """gloo wakes who waits before it marks the Work as completed: now and then it is not yet."""
    for theirs, ours in _run(pools, _incomplete_after_wait):
        assert ours == 0
        assert theirs >= 0  # by chance 0 as well
