"""Several operations as one: the coalesced calls, the coalescing manager, batches of transfers."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.support.backend import WORKS_TELL_EXCEPTIONS, all_gather_single, reduce_scatter_single
from tests.support.counters import traffic
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64)
# The future of coalesced calls is asked for on ranks of an odd and an even number.
RANKS = (2, 3)


def _expect(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def _mixed(rank: int) -> list[torch.Tensor]:
    return [torch.arange(3 + i).mul(rank + 1).to(dtype) for i, dtype in enumerate(DTYPES)]


def _coalesced_calls(context: RankContext) -> dict[str, int]:
    """The three coalesced calls of c10d, each with many tensors of different dtypes."""
    group, ranks = dist.group.WORLD, context.world_size
    before = traffic()
    reduced = _mixed(context.rank)
    group.allreduce_coalesced(reduced).wait()
    for tensor, first in zip(reduced, _mixed(0), strict=True):
        _expect(tensor, first * sum(range(1, ranks + 1)))

    inputs = _mixed(context.rank)
    outputs = [tensor.new_empty(ranks * tensor.numel()) for tensor in inputs]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    parts = [_mixed(rank) for rank in range(ranks)]
    for i, output in enumerate(outputs):
        _expect(output, torch.cat([part[i] for part in parts]))

    inputs = [tensor.repeat(ranks) for tensor in _mixed(context.rank)]
    outputs = [tensor.new_empty(tensor.numel() // ranks) for tensor in inputs]
    group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    for tensor, first in zip(outputs, _mixed(0), strict=True):
        _expect(tensor, first * sum(range(1, ranks + 1)))
    counted = traffic().since(before).calls
    return {name: counted[name] for name in ("all_reduce", "all_gather", "reduce_scatter")}


@pytest.mark.parametrize("ranks", RANKS)
def test_one_coalesced_call_takes_tensors_of_different_dtypes(
    pools: PoolKeeper, ranks: int
) -> None:
    expected = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), len(DTYPES))
    assert pools.get(ranks).run(_coalesced_calls) == [expected] * ranks


def _manager(context: RankContext, device: torch.device | None, async_ops: bool) -> int:
    ranks = context.world_size
    total = sum(range(1, ranks + 1))
    before = traffic()

    reduced = _mixed(context.rank)
    with _coalescing_manager(device=device, async_ops=async_ops) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, first in zip(reduced, _mixed(0), strict=True):
        _expect(tensor, first * total)

    own = _mixed(context.rank)
    gathered = [tensor.new_empty(ranks * tensor.numel()) for tensor in own]
    with _coalescing_manager(device=device, async_ops=async_ops) as manager:
        for output, tensor in zip(gathered, own, strict=True):
            all_gather_single(output, tensor)
    manager.wait()
    for i, output in enumerate(gathered):
        _expect(output, torch.cat([_mixed(rank)[i] for rank in range(ranks)]))

    whole = [tensor.repeat(ranks) for tensor in _mixed(context.rank)]
    scattered = [tensor.new_empty(tensor.numel() // ranks) for tensor in whole]
    with _coalescing_manager(device=device, async_ops=async_ops) as manager:
        for output, tensor in zip(scattered, whole, strict=True):
            reduce_scatter_single(output, tensor, dist.ReduceOp.SUM)
    manager.wait()
    for tensor, first in zip(scattered, _mixed(0), strict=True):
        _expect(tensor, first * total)
    return sum(traffic().since(before).calls.values())


@pytest.mark.parametrize("async_ops", [False, True])
@pytest.mark.parametrize("device", [None, CPU])
def test_the_manager_coalesces_with_and_without_a_device(
    pools: PoolKeeper, device: torch.device | None, async_ops: bool
) -> None:
    assert pools.get(2).run(_manager, device, async_ops) == [3 * len(DTYPES)] * 2


def _window(context: RankContext) -> None:
    """Sync calls of different kinds, transfers in crossed order first, in one window."""
    rank, ranks = context.rank, context.world_size
    peer = (rank + 1) % ranks
    source = (rank - 1) % ranks
    backend = dist.group.WORLD._get_backend(CPU)
    sent, received = torch.full((1 << 20,), float(rank)), torch.empty(1 << 20)
    reduced, root = torch.ones(5) * rank, torch.full((2,), float(rank))

    backend._start_coalescing()
    # Every rank sends first, and the peer has not called recv: outside of a window this blocks.
    backend.send([sent], peer, 0).wait()
    backend.recv([received], source, 0).wait()
    options = dist.AllreduceOptions()
    options.asyncOp = False
    inner = backend.allreduce([reduced], options)
    assert inner.wait()
    options = dist.BroadcastOptions()
    options.rootRank = 1
    options.asyncOp = False
    backend.broadcast([root], options).wait()
    work = backend._end_coalescing()

    assert work.wait()
    assert work.is_completed()
    assert inner.is_completed()
    _expect(received, torch.full_like(received, float(source)))
    _expect(reduced, torch.full((5,), float(sum(range(ranks)))))
    _expect(root, torch.ones(2))


@pytest.mark.parametrize("ranks", RANKS)
def test_nothing_blocks_between_start_and_end(pools: PoolKeeper, ranks: int) -> None:
    pools.get(ranks).run(_window)


def _work_of_a_window(context: RankContext) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    backend._start_coalescing()
    empty = backend._end_coalescing()
    assert empty.is_completed()
    assert empty.is_success()
    assert empty.wait()
    assert empty.result() == []
    assert empty.get_future().wait() == []

    tensors = [torch.full((4,), float(context.rank + i)) for i in range(3)]
    backend._start_coalescing()
    for tensor in tensors:
        backend.allreduce([tensor])
    work = backend._end_coalescing()
    seen = work.get_future().then(lambda future: [float(t[0]) for t in future.value()])
    ranks = context.world_size
    expected = [sum(range(ranks)) + i * ranks for i in range(3)]
    assert seen.wait() == expected
    assert work.is_completed()
    assert work.is_success()
    assert not WORKS_TELL_EXCEPTIONS or work.exception() is None
    assert [id(t) for t in work.result()] == [id(t) for t in tensors]
    assert work.get_future_result().wait() == 0  # WorkResult.SUCCESS
    with pytest.raises(NotImplementedError, match="no duration is kept"):
        work._get_duration()
    with pytest.raises(NotImplementedError, match="no stream"):
        work.block_current_stream()

    # The limit is one for all works together; what it cuts short goes on.
    late = torch.ones(4)
    if context.rank == 0:
        backend._start_coalescing()
        backend.allreduce([late])
        backend.allreduce([torch.ones(4)])
        work = backend._end_coalescing()
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="not done after"):
            work.wait(timedelta(milliseconds=100))
        assert time.monotonic() - start < 5.0
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1)
        assert work.wait(timedelta(seconds=20))
        _expect(late, torch.full((4,), float(ranks)))
    else:
        if context.rank == 1:
            dist.recv(torch.zeros(1), 0)
        dist.all_reduce(late)
        dist.all_reduce(torch.ones(4))


def test_the_work_of_a_window_answers_every_question(pools: PoolKeeper) -> None:
    pools.get(2).run(_work_of_a_window)


def _batch(context: RankContext, device: torch.device | None) -> int:
    """Each rank exchanges two messages with each other rank, in an order of its own."""
    rank, ranks = context.rank, context.world_size
    operations, received = [], {}
    for peer in range(ranks):
        if peer == rank:
            continue
        for tag in range(2):
            size = 1000 * (1 + 7 * tag) + peer
            out = torch.full((1000 * (1 + 7 * tag) + rank,), 10.0 * rank + tag)
            received[peer, tag] = torch.empty(size)
            operations.append(dist.P2POp(dist.isend, out, peer, tag=tag))
            operations.append(dist.P2POp(dist.irecv, received[peer, tag], peer, tag=tag))
    operations = operations[rank:] + operations[:rank]
    if rank % 2:
        operations.reverse()
    if device is None:
        works = dist.batch_isend_irecv(operations)
    else:
        with _coalescing_manager(device=device, async_ops=True) as manager:
            for operation in operations:
                operation.op(operation.tensor, operation.peer, tag=operation.tag)
        works = manager.works
    for work in works:
        work.wait()
    for (peer, tag), tensor in received.items():
        _expect(tensor, torch.full_like(tensor, 10.0 * peer + tag))
    return len(works)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_batch_of_transfers_in_crossed_orders_gets_through(pools: PoolKeeper, ranks: int) -> None:
    pool = pools.get(ranks)
    for _ in range(3):
        assert pool.run(_batch, None) == [4 * (ranks - 1)] * ranks
        assert pool.run(_batch, CPU) == [1] * ranks


def _sync_transfers(context: RankContext) -> None:
    peer = 1 - context.rank
    received = torch.empty(1 << 20)
    with _coalescing_manager(device=CPU):
        dist.send(torch.full((1 << 20,), float(context.rank)), peer)
        dist.recv(received, peer)
    _expect(received, torch.full_like(received, float(peer)))


def test_blocking_sends_that_cross_get_through_in_a_window(pools: PoolKeeper) -> None:
    pools.get(2).run(_sync_transfers)


def _refused_in_a_window(context: RankContext) -> list[Any]:
    group = dist.new_group()
    backend = group._get_backend(CPU)
    good = torch.ones(2)
    backend._start_coalescing()
    backend.allreduce([good])
    with pytest.raises(ValueError, match="contiguous"):
        backend.send([torch.ones(4, 4).t()], 1 - context.rank, 0)
    # The window is closed: what follows is as outside of one.
    options = dist.AllreduceOptions()
    options.asyncOp = False
    later = backend.allreduce([torch.ones(2)], options)
    done_at_once = later.is_completed()
    work = backend._end_coalescing()
    work.wait()
    refusals = []
    try:
        backend._end_coalescing()
    except ValueError as error:
        refusals.append(str(error))
    backend._start_coalescing()
    backend._start_coalescing()  # forgets the other one
    backend._end_coalescing().wait()
    dist.destroy_process_group(group)
    return [done_at_once, good.tolist(), len(work.result()), *refusals]


def test_a_refused_call_ends_the_window(pools: PoolKeeper) -> None:
    for done, good, results, refusal in pools.get(2).run(_refused_in_a_window):
        assert (done, good, results) == (True, [2.0, 2.0], 1)
        assert "no startCoalescing on this thread" in refusal


def _left_by_an_exception(context: RankContext) -> list[float]:
    """Torch's manager does not end its window then; sync calls must block all the same."""
    group = dist.new_group()
    dist.barrier(group)
    with pytest.raises(KeyError), _coalescing_manager(group=group, device=CPU):  # noqa: PT012
        dist.broadcast(torch.zeros(2), 0, group=group)
        raise KeyError("of the user")
    tensor = torch.full((1 << 22,), float(context.rank))
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.asyncOp = False
    assert group.broadcast([tensor], options).is_completed()
    seen = [float(tensor[0]), float(tensor[-1])]
    # A window that is opened after that is one again.
    backend = group._get_backend(CPU)
    backend._start_coalescing()
    backend._end_coalescing().wait()
    dist.barrier(group)
    return seen


def test_an_exception_of_the_user_ends_the_window(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_left_by_an_exception) == [[0.0, 0.0]] * 2


def _any_source_in_a_window(context: RankContext) -> str:
    received = torch.zeros(3)
    if context.rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(3), 0)
        return ""
    backend = dist.group.WORLD._get_backend(CPU)
    backend._start_coalescing()
    work = backend.recv_anysource([received], 0)
    work.wait()
    with pytest.raises(ValueError, match="call irecv there") as refusal:
        work._source_rank()
    whole = backend._end_coalescing()
    dist.send(torch.zeros(1), 1)
    whole.wait()
    assert work._source_rank() == 1
    assert received.tolist() == [1.0] * 3
    return str(refusal.value)


def test_the_source_is_not_known_in_a_window(pools: PoolKeeper) -> None:
    assert "ask for its source afterwards" in pools.get(2).run(_any_source_in_a_window)[0]
