"""What the backend keeps: nothing of an operation that was waited for."""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.integration.rows.base import Meter, Outcome, Row
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.workers import RankContext

COUNT = 1027
ROUNDS = 3


class _Memory(bytearray):
    """Memory of a tensor, gone when no tensor or view uses it, wherever it was made."""


def _tensor(count: int, value: float, watched: list[weakref.ref]) -> torch.Tensor:
    memory = _Memory(4 * count)
    watched.append(weakref.ref(memory))
    return torch.frombuffer(memory, dtype=torch.float32).fill_(value)


# Issues an operation on tensors made here; returns its Work (None for a sync one) and the results.
Watched = list[weakref.ref]
Issue = Callable[[RankContext, bool, Watched], tuple[dist.Work | None, list[torch.Tensor]]]


def _all_gather(context: RankContext, is_async: bool, watched: Watched):
    out = _tensor(context.world_size * COUNT, -1.0, watched)
    mine = _tensor(COUNT, context.rank, watched)
    return all_gather_single(out, mine, async_op=is_async), [out]


def _all_gather_list(context: RankContext, is_async: bool, watched: Watched):
    out = [_tensor(COUNT, -1.0, watched) for _ in range(context.world_size)]
    mine = _tensor(COUNT, context.rank, watched)
    return dist.all_gather(out, mine, async_op=is_async), out


def _reduce_scatter(context: RankContext, is_async: bool, watched: Watched):
    out = _tensor(COUNT, -1.0, watched)
    mine = _tensor(context.world_size * COUNT, context.rank, watched)
    return reduce_scatter_single(out, mine, dist.ReduceOp.SUM, async_op=is_async), [out]


def _all_reduce(context: RankContext, is_async: bool, watched: Watched):
    mine = _tensor(COUNT, context.rank, watched)
    return dist.all_reduce(mine, async_op=is_async), [mine]


def _broadcast(context: RankContext, is_async: bool, watched: Watched):
    mine = _tensor(COUNT, context.rank, watched)
    return dist.broadcast(mine, 0, async_op=is_async), [mine]


_ISSUES: tuple[Issue, ...] = (
    _all_gather,
    _all_gather_list,
    _reduce_scatter,
    _all_reduce,
    _broadcast,
)


def _released(issue: Issue, context: RankContext, is_async: bool) -> bytes:
    """The results' bytes; all memory must be gone with the caller's last reference."""
    watched: Watched = []
    work, results = issue(context, is_async, watched)
    if work is not None:
        work.wait()
    found = b"".join(tensor.numpy().tobytes() for tensor in results)
    del work, results  # the handle keeps the results, for Work.result()
    held = sum(memory() is not None for memory in watched)
    assert held == 0, f"{issue.__name__}: {held} of {len(watched)} buffers are held after wait()"
    return found


def _nothing_held(context: RankContext) -> Outcome:
    digest = hashlib.sha256()
    gc.disable()  # what only the collector would free counts as held
    try:
        with Meter() as meter:
            for _ in range(ROUNDS):
                for issue in _ISSUES:
                    for is_async in (False, True):
                        digest.update(_released(issue, context, is_async))
    finally:
        gc.enable()
    return Outcome(0.0, digest.hexdigest(), meter.used)


_EACH = 2 * ROUNDS  # sync and async

ROWS = (
    Row(
        "nothing_held",
        3,
        _nothing_held,
        "no tensor of an operation is referenced once wait() has returned",
        {
            "all_gather": 2 * _EACH,
            "reduce_scatter": _EACH,
            "all_reduce": _EACH,
            "broadcast": _EACH,
        },
        tolerance=0.0,
    ),
)
