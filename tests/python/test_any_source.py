"""Receives without a source: who sent, what is ordered, and what ends one that nobody answers."""

from __future__ import annotations

import datetime
import threading

import pytest
import torch
import torch.distributed as dist

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext


def _value(rank: int, item: int = 0) -> torch.Tensor:
    return torch.full((1000,), rank * 100 + item, dtype=torch.int64)


def _subgroup(context: RankContext) -> tuple[list[int], list[int]]:
    """Ranks 1 and 2 as a group of their own: recv tells the global rank, the Work that in it."""
    group = dist.new_group([1, 2])
    if context.rank == 0:
        return [], []
    out = torch.zeros(1000, dtype=torch.int64)
    if context.rank == 1:
        sender = dist.recv(out, group=group)
        assert torch.equal(out, _value(2)), out
        work = dist.irecv(out, group=group)
        work.wait()
        assert torch.equal(out, _value(2, 1)), out
        result = [sender], [work._source_rank()]
    else:
        dist.send(_value(2), 1, group=group)
        dist.send(_value(2, 1), group=group, group_dst=0)
        result = [], []
    dist.destroy_process_group(group)
    return result


def test_in_a_subgroup_the_sender_is_a_global_rank(pools: PoolKeeper) -> None:
    assert pools.get(3).run(_subgroup)[1] == ([2], [1])


def _ordered(context: RankContext) -> list[int]:
    """Mixed with receives from one rank, each sender's messages of a tag come in their order."""
    count = 12
    if context.rank != 0:
        sends = [dist.isend(_value(context.rank, item), 0, tag=4) for item in range(count)]
        for work in sends:
            work.wait()
        return []
    buffers = [torch.zeros(1000, dtype=torch.int64) for _ in range(count * 2)]
    works = []
    for index, buffer in enumerate(buffers[:count]):
        source = (None, 1, 2)[index % 3]
        works.append(dist.irecv(buffer, source, tag=4))
    received: dict[int, int] = {1: 0, 2: 0}

    def take(work: dist.Work, buffer: torch.Tensor) -> None:
        work.wait()
        source = work._source_rank()
        assert torch.equal(buffer, _value(source, received[source])), (source, buffer[0])
        received[source] += 1

    for work, buffer in zip(works, buffers[:count], strict=True):
        take(work, buffer)
    rest = [1] * (count - received[1]) + [2] * (count - received[2])
    for source, buffer in zip(rest, buffers[count:], strict=True):
        take(dist.irecv(buffer, source, tag=4), buffer)
    return [received[1], received[2]]


def test_each_senders_messages_come_in_order(pools: PoolKeeper) -> None:
    assert pools.get(3).run(_ordered)[0] == [12, 12]


def _unknown_source(context: RankContext) -> list[str]:
    """A source is known when the message is there, and to receives only."""
    complaints = []
    if context.rank == 0:
        out = torch.zeros(1000, dtype=torch.int64)
        work = dist.irecv(out, tag=1)
        try:
            work._source_rank()
        except ValueError as error:
            complaints.append(str(error))
        dist.barrier()
        work.wait()
        assert work._source_rank() == 1
    else:
        dist.barrier()
        work = dist.isend(_value(1), 0, tag=1)
        work.wait()
        try:
            work._source_rank()
        except ValueError as error:
            complaints.append(str(error))
    return complaints


def test_the_source_is_refused_where_there_is_none(pools: PoolKeeper) -> None:
    [early], [of_a_send] = pools.get(2).run(_unknown_source)
    assert "no message has arrived" in early
    assert "only a receive has a source" in of_a_send


def _late(context: RankContext) -> str:
    """Nobody sends: the deadline names all who might have."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.3))
    dist.barrier(group)
    message = ""
    if context.rank == 1:
        try:
            dist.recv(torch.zeros(4), group=group)
        except dist.DistBackendError as error:
            message = str(error)
    dist.barrier()
    dist.destroy_process_group(group)
    return message


def test_the_deadline_names_all_who_might_have_sent(pools: PoolKeeper) -> None:
    message = pools.get(3).run(_late)[1]
    assert "from any rank" in message
    assert "missing: a send by any of rank 0 (pid " in message
    assert ", rank 2 (pid " in message


def _aborted(context: RankContext) -> str:
    group = dist.new_group()
    dist.barrier(group)
    message = ""
    if context.rank == 0:
        work = dist.irecv(torch.zeros(4), group=group)
        threading.Timer(0.05, group.abort).start()
        try:
            work.wait()
        except dist.DistBackendError as error:
            message = str(error)
    dist.barrier()
    dist.destroy_process_group(group)
    return message


def test_an_abort_ends_it(pools: PoolKeeper) -> None:
    assert "aborted the group" in pools.get(2).run(_aborted)[0]


def _alone(_: RankContext) -> None:
    group = dist.new_group([0])
    dist.recv(torch.zeros(4), group=group)


def test_alone_there_is_nobody_to_receive_from(pools: PoolKeeper) -> None:
    with pytest.raises(Exception, match="no other rank"):
        pools.get(1).run(_alone)
