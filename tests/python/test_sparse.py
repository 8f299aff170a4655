"""All-reduce of sparse tensors: what ranks store differs in place and in number."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

# Shape and how many of its dimensions are sparse.
SHAPES = (((50,), 1), ((20, 30), 2), ((40, 8), 1), ((6, 5, 4), 1), ((3, 0), 1))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


def _part(rank: int, shape: tuple[int, ...], sparse_dims: int, dtype: torch.dtype) -> torch.Tensor:
    """What `rank` contributes: 7 elements a rank, none on rank 1, some stored twice."""
    source = torch.Generator().manual_seed(100 * rank + len(shape))
    stored = 0 if rank == 1 else 7 * (rank + 1)
    indices = torch.stack(
        [torch.randint(0, size, (stored,), generator=source) for size in shape[:sparse_dims]]
    )
    values = torch.randn((stored, *shape[sparse_dims:]), generator=source) * 10
    return torch.sparse_coo_tensor(indices, values.to(dtype), shape)


def _reference(ranks: int, shape: tuple[int, ...], sparse_dims: int, dtype: torch.dtype):
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = torch.zeros(shape, dtype=wide)
    for rank in range(ranks):
        total += _part(rank, shape, sparse_dims, dtype).to(wide).coalesce().to_dense()
    return total.to(dtype)


def _sum_all(context: RankContext, is_async: bool) -> list[str]:
    wrong = []
    for shape, sparse_dims in SHAPES:
        for dtype in DTYPES:
            tensor = _part(context.rank, shape, sparse_dims, dtype)
            expected = _reference(context.world_size, shape, sparse_dims, dtype)
            work = dist.all_reduce(tensor, async_op=is_async)
            if work is not None:
                (result,) = work.get_future().wait()
                work.wait()
            else:
                result = tensor
            as_before = tensor.shape == shape and tensor.sparse_dim() == sparse_dims
            if not (
                as_before and tensor.dtype == dtype and torch.equal(tensor.to_dense(), expected)
            ):
                wrong.append(f"{shape} {sparse_dims} {dtype}: {tensor}, expected {expected}")
            if not torch.equal(result.to_dense(), expected):
                wrong.append(f"{shape} {sparse_dims} {dtype}: the future has {result}")
    return wrong


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_sums_are_those_of_dense_tensors_bit_for_bit(
    ranks: int, is_async: bool, pools: PoolKeeper
) -> None:
    assert pools.get(ranks).run(_sum_all, is_async) == [[]] * ranks


def _disagree(context: RankContext) -> tuple[str, str, bool]:
    group = dist.new_group()
    shape = (4, 5) if context.rank == 1 else (4, 6)
    try:
        dist.all_reduce(torch.ones(shape).to_sparse(), group=group)
        kind, text = "", ""
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    usable = tensor.tolist() == [context.world_size] * 3
    dist.destroy_process_group(group)
    return kind, text, usable


def test_other_shapes_are_refused_on_all_ranks(pools: PoolKeeper) -> None:
    for kind, text, usable in pools.get(3).run(_disagree):
        assert kind == "ValueError"
        assert "rank 1 has a sparse tensor of Float of shape [4, 5]" in text
        assert "rank 0 one of Float of shape [4, 6]" in text
        assert usable


def _meet_dense(context: RankContext) -> str:
    group = dist.new_group()
    tensor = torch.ones(4)
    try:
        dist.all_reduce(tensor.to_sparse() if context.rank == 0 else tensor, group=group)
        text = ""
    except dist.DistBackendError as error:
        text = str(error)
    dist.barrier()
    dist.destroy_process_group(group)
    return text


def test_a_sparse_call_that_meets_a_dense_one_fails_with_both_sides(pools: PoolKeeper) -> None:
    for text in pools.get(2).run(_meet_dense):
        assert "ranks made different calls" in text
        assert "all_gather" in text
        assert "all_reduce" in text


def _train_embedding(context: RankContext) -> tuple[bool, bool]:
    torch.manual_seed(3)
    model = nn.Embedding(30, 4, sparse=True)
    whole = nn.Embedding(30, 4, sparse=True)
    whole.load_state_dict(model.state_dict())
    wrapped = DistributedDataParallel(model)
    tokens = torch.randint(0, 30, (context.world_size, 6))
    for step in range(3):
        wrapped((tokens + step)[context.rank] % 30).square().sum().backward()
        (whole((tokens + step) % 30).square().sum() / context.world_size).backward()
        for each in (model, whole):
            torch.optim.SGD(each.parameters(), lr=0.1).step()
            assert each.weight.grad is not None
            is_sparse = each.weight.grad.is_sparse
            each.zero_grad()
    return is_sparse, torch.allclose(model.weight, whole.weight)


def test_ddp_trains_a_sparse_embedding(pools: PoolKeeper) -> None:
    assert pools.get(3).run(_train_embedding) == [(True, True)] * 3


def _in_a_window(context: RankContext) -> tuple[str, list[float], list[float]]:
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    tensor = torch.sparse_coo_tensor([[context.rank]], [1.0], (4,))
    backend._start_coalescing()
    with pytest.raises(NotImplementedError, match="between startCoalescing and") as refusal:
        backend.allreduce([tensor])
    backend._end_coalescing().wait()
    dist.all_reduce(tensor, group=group)
    total = torch.ones(2)
    dist.all_reduce(total, group=group)
    dist.destroy_process_group(group)
    return str(refusal.value), tensor.to_dense().tolist(), total.tolist()


def test_a_sparse_call_in_a_window_is_refused(pools: PoolKeeper) -> None:
    for text, sums, total in pools.get(2).run(_in_a_window):
        assert "outside of the coalescing manager" in text
        assert (sums, total) == ([1.0, 1.0, 0.0, 0.0], [2.0, 2.0])


def _without_a_sum(context: RankContext) -> None:
    for dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64):
        tensor = torch.sparse_coo_tensor([[0, 2]], torch.ones(2).to(dtype), (4,))
        with pytest.raises(NotImplementedError, match="torch adds no sparse tensors of dtype"):
            dist.all_reduce(tensor)
    dist.barrier()


def test_dtypes_that_torch_cannot_add_are_refused_up_front(pools: PoolKeeper) -> None:
    pools.get(2).run(_without_a_sum)
