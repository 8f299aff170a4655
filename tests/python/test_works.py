"""What Python may ask of the Work of one operation."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.backend import WORKS_TELL_EXCEPTIONS
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

CPU = torch.device("cpu")


def _done(context: RankContext) -> None:
    tensor = torch.full((4,), float(context.rank))
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait(timedelta(seconds=20))
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert not WORKS_TELL_EXCEPTIONS or work.exception() is None
    (result,) = work.result()
    assert result is tensor
    work.synchronize()
    assert work.get_future().then(lambda future: future.value()[0].sum().item()).wait() == 4
    assert work.get_future_result().wait() == 0
    with pytest.raises(NotImplementedError, match="no duration is kept"):
        work._get_duration()
    if hasattr(work, "timeout"):  # from 2.14 on
        assert work.timeout == dist.group.WORLD._get_backend(CPU).options._timeout
    with pytest.raises(NotImplementedError, match="no stream"):
        work.block_current_stream()
    with pytest.raises(ValueError, match="only a receive has a source"):
        work._source_rank()


def test_a_work_that_is_done_answers(pools: PoolKeeper) -> None:
    pools.get(2).run(_done)


def _pending(context: RankContext) -> None:
    tensor = torch.ones(4)
    if context.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        assert not work.is_success()
        assert not WORKS_TELL_EXCEPTIONS or work.exception() is None
        future, result = work.get_future(), work.get_future_result()
        assert not future.done()
        assert not result.done()
        with pytest.raises(dist.DistBackendError, match="not done after the 50 ms"):
            work.wait(timedelta(milliseconds=50))
        dist.send(torch.zeros(1), 1)
        assert work.wait()
        assert future.wait()[0] is not None
        assert result.wait() == 0
    else:
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 4


def test_a_work_under_way_answers(pools: PoolKeeper) -> None:
    pools.get(2).run(_pending)


def _failed(context: RankContext) -> None:
    group = dist.new_group(timeout=timedelta(milliseconds=400))
    dist.barrier(group)
    if context.rank == 0:
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        result = work.get_future_result()
        with pytest.raises(dist.DistBackendError, match="timed out"):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert not WORKS_TELL_EXCEPTIONS or "timed out" in str(work.exception())
        with pytest.raises(RuntimeError, match="timed out"):
            work.get_future().wait()
        assert result.wait() == 1  # WorkResult.TIMEOUT
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_work_that_failed_answers(pools: PoolKeeper) -> None:
    pools.get(2).run(_failed)


def _transfers(context: RankContext) -> None:
    tensor = torch.full((4,), 5.0)
    work = dist.isend(tensor, 1) if context.rank == 0 else dist.irecv(tensor.zero_(), 0)
    assert work.wait()
    assert work.get_future().wait()[0].tolist() == [5.0] * 4
    assert work.result()[0].tolist() == [5.0] * 4


def test_the_work_of_a_transfer_answers(pools: PoolKeeper) -> None:
    pools.get(2).run(_transfers)
