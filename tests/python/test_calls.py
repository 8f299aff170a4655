"""What a call does to the thread that makes it and to its peers: refusals, signals, the GIL."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from tests.support.backend import premul_sum, reduce_scatter_single
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

REFUSED_WITHIN_S = 1.0
SWITCH_INTERVAL_S = 0.2


class Rung(Exception):
    """What the signal handler of these tests throws."""


@contextlib.contextmanager
def _handler() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Rung

    old = signal.signal(signal.SIGUSR2, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, old)


def _refuse(context: RankContext) -> tuple[str, float]:
    group = dist.new_group()
    dist.all_reduce(torch.ones(4), group=group)
    # torch throws while the value of this factor is read.
    factor = torch.ones(1, device="meta" if context.rank == 0 else "cpu")
    dist.barrier()
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(4), premul_sum(factor), group=group)
        kind = ""
    except Exception as error:
        kind = type(error).__name__
    seconds = time.monotonic() - start
    dist.barrier()  # a rank that leaves the group fails it too
    dist.destroy_process_group(group)
    return kind, seconds


def test_peers_learn_of_arguments_that_torch_cannot_read(pools: PoolKeeper) -> None:
    (refused, _), *peers = pools.get(2).run(_refuse)
    assert refused
    for kind, seconds in peers:
        assert kind == "DistBackendError"
        assert seconds < REFUSED_WITHIN_S


def _scatter_in_place(context: RankContext) -> bool:
    # Long enough that the first operation is still running when the second one is called.
    part, rank, ranks = 1 << 21, context.rank, context.world_size
    tensor = torch.full((part * ranks,), float(rank + 1))
    dist.barrier()
    total = dist.all_reduce(tensor, async_op=True)
    own = tensor[rank * part : (rank + 1) * part]
    scattered = reduce_scatter_single(own, tensor, dist.ReduceOp.SUM, async_op=True)
    total.wait()
    scattered.wait()
    return bool((own == ranks * sum(range(1, ranks + 1))).all())


def test_an_operation_in_place_reads_what_earlier_ones_wrote(pools: PoolKeeper) -> None:
    for _ in range(5):
        assert pools.get(2).run(_scatter_in_place) == [True, True]


def _shut_down_by_signal(context: RankContext) -> list[str]:
    group = dist.new_group()
    dist.all_reduce(torch.ones(4), group=group)
    events = []
    if context.rank == 0:
        backend = group._get_backend(torch.device("cpu"))
        # Nobody sends: the shutdown waits for this one until the signal comes.
        work = dist.irecv(torch.ones(4), 1, group=group)
        ring = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2))
        with _handler():
            ring.start()
            try:
                backend.shutdown()
                events.append("shut down")
            except Rung:
                events.append("rung in shutdown")
            ring.join()
            try:
                dist.all_reduce(torch.ones(4))
                events.append("went on")
            except Rung:
                events.append("rung in another call")
        assert work.is_completed()
    else:
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group(group)
    return events


def test_a_signal_during_shutdown_raises_there(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_shut_down_by_signal)[0] == ["rung in shutdown", "went on"]


def _shut_down_by_handler(context: RankContext) -> list[str]:
    group = dist.new_group()
    dist.all_reduce(torch.ones(4), group=group)
    events: list[str] = []
    if context.rank == 0:
        behind = []

        def queue() -> None:
            behind.append(dist.broadcast(torch.ones(4), 0, group=group, async_op=True))

        def destroy(*_: object) -> None:
            thread = threading.Thread(target=queue)
            thread.start()
            thread.join()
            # As destroy_process_group does, which would have torch forget the group it describes.
            group._get_backend(torch.device("cpu")).shutdown()
            events.append("shut down")

        old = signal.signal(signal.SIGUSR2, destroy)
        ring = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2))
        ring.start()
        try:
            dist.broadcast(torch.ones(4), 0, group=group)  # the peer does not come
        except Exception as error:
            events.append(type(error).__name__)
        ring.join()
        signal.signal(signal.SIGUSR2, old)
        try:
            behind[0].wait()
        except Exception as error:
            events.append(type(error).__name__)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group(group)
    return events


def test_a_handler_may_shut_down_the_group_of_the_call_that_it_interrupts(
    pools: PoolKeeper,
) -> None:
    events = pools.get(2).run(_shut_down_by_handler)[0]
    assert events == ["shut down", "DistBackendError", "DistBackendError"]


def _reduce_beside_computing(context: RankContext) -> float:
    tensor = torch.ones(1 << 24)
    dist.all_reduce(tensor)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            pass

    old = sys.getswitchinterval()
    computing = threading.Thread(target=compute)
    if context.rank == 0:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        computing.start()
    start = time.monotonic()
    dist.all_reduce(tensor)
    seconds = time.monotonic() - start
    if context.rank == 0:
        stop.set()
        computing.join()
        sys.setswitchinterval(old)
    return seconds


def test_a_blocked_call_seldom_takes_the_lock_from_computing_threads(pools: PoolKeeper) -> None:
    # Each time it does costs it a switch interval.
    for seconds in pools.get(4).run(_reduce_beside_computing):
        assert seconds < 8 * SWITCH_INTERVAL_S, seconds
