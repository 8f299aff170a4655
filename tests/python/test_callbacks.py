"""Callbacks of futures: their order, and what they may wait for."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext


def _wait_within(context: RankContext, count: int) -> list[float]:
    """All callbacks are set before the first one can run; each waits for a call of its own."""
    other = dist.new_group()
    dist.barrier(other)
    if context.rank == 1:
        dist.recv(torch.zeros(1), 0)  # The others have set their callbacks.

    def sum_over_other(_future: Any) -> float:
        work = dist.all_reduce(torch.ones(4), group=other, async_op=True)
        return float(work.get_future().wait()[0][0])

    works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(count)]
    futures = [work.get_future().then(sum_over_other) for work in works]
    if context.rank == 0:
        dist.send(torch.zeros(1), 1)
    sums = [future.wait() for future in futures]
    dist.destroy_process_group(other)
    return sums


def test_any_number_of_callbacks_may_wait_for_what_they_started(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_wait_within, 40) == [[2.0] * 40] * 2


def _order(context: RankContext, count: int) -> tuple[list[int], list[float]]:
    """A callback starts the calls of another group while Python is busy, more so on one rank."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    first, second = dist.new_group(), dist.new_group()
    dist.barrier(first)
    dist.barrier(second)
    order: list[int] = []
    tensors = [torch.full((8,), float(i)) for i in range(count)]
    works: list[Any] = [None] * count
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = [threading.Thread(target=compute) for _ in range(1 + context.rank)]
    for thread in busy:
        thread.start()

    def follow(number: int) -> Any:
        def call(_future: Any) -> None:
            order.append(number)
            sum(range(20000 * ((number + context.rank) % 3)))
            works[number] = dist.all_reduce(tensors[number], group=second, async_op=True)

        return call

    futures = []
    for number in range(count):
        work = dist.all_reduce(torch.ones(8), group=first, async_op=True)
        futures.append(work.get_future().then(follow(number)))
    for future in futures:
        future.wait()
    for work in works:
        work.wait()
    stop.set()
    for thread in busy:
        thread.join()
    sys.setswitchinterval(interval)
    for group in (first, second):
        dist.destroy_process_group(group)
    return order, [float(tensor[0]) for tensor in tensors]


def test_callbacks_run_in_the_order_of_completion_when_python_is_busy(pools: PoolKeeper) -> None:
    for order, sums in pools.get(2).run(_order, 60):
        assert order == list(range(60))
        assert sums == [2.0 * i for i in range(60)]


def _late(context: RankContext) -> list[str]:
    """Of two calls that are done, one whose callback still runs; the other one's is set then."""
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(_future: Any) -> None:
        begun.set()
        go_on.wait()
        order.append("first")

    works = []
    if context.rank == 0:
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
        hooked = works[0].get_future().then(slow)
        dist.send(torch.zeros(1), 1)
        begun.wait()
        works[1].wait()
        later = works[1].get_future().then(lambda _future: order.append("second"))
        go_on.set()
        hooked.wait()
        later.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    return order


def test_a_callback_set_on_a_done_call_comes_after_those_before_it(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_late)[0] == ["first", "second"]


def _wait_for_a_callback(context: RankContext) -> list[float]:
    """A callback that waits for one behind it, which loses the order but goes on."""
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
    inner = works[1].get_future().then(lambda future: float(future.value()[0][0]))
    outer = works[0].get_future().then(lambda _future: inner.wait() + 1.0)
    return [outer.wait(), inner.wait()]


def test_a_callback_may_wait_for_one_behind_it(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_wait_for_a_callback) == [[3.0, 2.0]] * 2
