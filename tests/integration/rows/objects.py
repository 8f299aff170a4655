"""Object collectives: pickles that differ in size from rank to rank, up to a megabyte."""

from __future__ import annotations

import inspect
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.integration.rows.base import Meter, Outcome, Row, digest_of
from tests.support.workers import RankContext

MEGABYTE = 1 << 20
Group = dist.ProcessGroup | None


def _thing(rank: int, size: int) -> dict[str, Any]:
    """What rank `rank` contributes: strings, numbers and `size` bytes (roughly) of its own."""
    rng = random.Random(f"{rank}/{size}")
    return {
        "rank": rank,
        "bytes": rng.randbytes(size + 13 * rank),
        "nested": [(rank, str(rank) * rank), {"none": None, "pi": 3.5 + rank}],
        "tensor": torch.arange(rank + 1).tolist(),
    }


def _all_gather(group: Group, ranks: list[int], me: int, size: int) -> tuple[Any, Any]:
    found: list[Any] = [None] * len(ranks)
    dist.all_gather_object(found, _thing(me, size), group=group)
    return found, [_thing(rank, size) for rank in ranks]


def _gather(group: Group, ranks: list[int], me: int, size: int) -> tuple[Any, Any]:
    root = ranks[-1]
    found: list[Any] | None = [None] * len(ranks) if me == root else None
    dist.gather_object(_thing(me, size), found, dst=root, group=group)
    return found, [_thing(rank, size) for rank in ranks] if me == root else None


def _broadcast(group: Group, ranks: list[int], me: int, size: int) -> tuple[Any, Any]:
    root = ranks[1]
    wanted = [_thing(root, size), None, "x" * size]
    found = list(wanted) if me == root else [me, me, me]
    dist.broadcast_object_list(found, src=root, group=group)
    return found, wanted


def _scatter(group: Group, ranks: list[int], me: int, size: int) -> tuple[Any, Any]:
    root = ranks[-1]
    inputs = [_thing(rank, size) for rank in ranks] if me == root else None
    found: list[Any] = [None]
    dist.scatter_object_list(found, inputs, src=root, group=group)
    return found, [_thing(me, size)]


def _send_recv(group: Group, ranks: list[int], me: int, size: int) -> tuple[Any, Any]:
    """Round the ring: the first sends before it receives, the others receive first."""
    place = ranks.index(me)
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
    found: list[Any] = [None, None]

    def send() -> None:
        dist.send_object_list([_thing(me, size), me], dst=after, group=group)

    if place == 0:
        send()
    dist.recv_object_list(found, src=before, group=group)
    if place != 0:
        send()
    return found, [_thing(before, size), before]


WAYS: dict[str, Callable[[Group, list[int], int, int], tuple[Any, Any]]] = {
    "all_gather_object": _all_gather,
    "gather_object": _gather,
    "broadcast_object_list": _broadcast,
    "scatter_object_list": _scatter,
    "send_recv_object_list": _send_recv,
}
# Calls of each operation that torch makes of one object collective.
COSTS: dict[str, dict[str, int]] = {
    "all_gather_object": {"all_gather": 2},
    "gather_object": {"all_gather": 1, "gather": 1},
    "broadcast_object_list": {"broadcast": 2},
    "scatter_object_list": {"broadcast": 1, "scatter": 2},
    "send_recv_object_list": {"send": 2, "recv": 2},
}
SIZES = (0, 1000, MEGABYTE)
# torch before 2.13 numbers every group upwards.
NUMBERED_AS_GIVEN = "sort_ranks" in inspect.signature(dist.new_group).parameters


def _objects(way: str):
    def run(context: RankContext) -> Outcome:
        me, n = context.rank, context.world_size
        # Everybody; everybody, numbered backwards; the first and the last of four.
        everybody = list(range(n))
        groups = [(dist.group.WORLD, everybody)]
        if NUMBERED_AS_GIVEN:
            groups.append((dist.new_group(everybody[::-1], sort_ranks=False), everybody[::-1]))
        if n == 4:
            pairs = [[0, 3], [1, 2]]
            made = [dist.new_group(pair) for pair in pairs]
            groups += [(g, p) for g, p in zip(made, pairs, strict=True) if me in p]
        pickles = {}
        with Meter() as meter:
            for index, (group, ranks) in enumerate(groups):
                for size in SIZES:
                    found, wanted = WAYS[way](group, ranks, me, size)
                    assert found == wanted, (way, ranks, size)
                    data = pickle.dumps(found)
                    pickles[f"{index} {size}"] = torch.frombuffer(
                        bytearray(data), dtype=torch.uint8
                    )
        return Outcome(0.0, digest_of(pickles), meter.used)

    return run


def _row(way: str, n: int) -> Row:
    groups = 1 + NUMBERED_AS_GIVEN + (n == 4)
    calls = {op: count * groups * len(SIZES) for op, count in COSTS[way].items()}
    return Row(
        f"{way}_w{n}",
        n,
        _objects(way),
        "objects of other sizes on every rank, up to 1 MB, in the world and in subgroups",
        calls=calls,
        tolerance=0.0,
    )


ROWS = tuple(_row(way, n) for n in (2, 3, 4) for way in WAYS)
