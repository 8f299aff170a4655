"""Calls that must be refused: what each one does, run inside the ranks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.backend import all_gather_single, premul_sum, reduce_scatter_single
from tests.support.workers import RankContext

COUNT = 24
# Counts that are easy to find in a message, in elements and in bytes of fp32.
ONE_COUNT, OTHER_COUNT = 1234, 1237


@dataclass
class Refusal:
    """What one rank saw of a call that must be refused."""

    kinds: list[str]  # names of the exception's classes, most derived first; empty if none
    message: str
    untouched: bool
    seconds: float
    usable: bool


@dataclass(frozen=True)
class Mistake:
    """A call and the tensors whose contents it must not change."""

    op: str  # as the message names it
    make: Callable[[int], tuple[Callable[[], object], list[torch.Tensor]]]


def _ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def _strided(count: int) -> torch.Tensor:
    return torch.ones(count * 2)[::2]


def _all_reduce(tensor: torch.Tensor, op) -> tuple[Callable[[], object], list[torch.Tensor]]:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    group = dist.group.WORLD
    return lambda: group.allreduce([tensor], options).wait(), [tensor]


def _gather(output: torch.Tensor, source: torch.Tensor):
    return lambda: all_gather_single(output, source), [output]


def _scatter(output: torch.Tensor, source: torch.Tensor, op=dist.ReduceOp.SUM):
    return lambda: reduce_scatter_single(output, source, op), [output]


def _gather_list(outputs: list[torch.Tensor]):
    return lambda: dist.all_gather(outputs, _ones(COUNT)), outputs


def _reduce_scatter_list(output: torch.Tensor, sources: list[torch.Tensor]):
    return lambda: dist.reduce_scatter(output, sources), [output]


def _rooted(name: str, root: int):
    options = {"broadcast": dist.BroadcastOptions, "reduce": dist.ReduceOptions}[name]()
    options.rootRank = root
    tensor = _ones(COUNT)
    group = dist.group.WORLD
    return lambda: getattr(group, name)([tensor], options).wait(), [tensor]


def _all_to_all_list(n: int):
    outputs = [_ones(COUNT) for _ in range(n - 1)]
    return lambda: dist.all_to_all(outputs, [_ones(COUNT) for _ in range(n - 1)]), outputs


def _all_to_all_single(count: int, splits: list[int] | None):
    output = _ones(count)
    return lambda: dist.all_to_all_single(output, _ones(count), splits, splits), [output]


def _straight(tensor: torch.Tensor, op: str = "allreduce"):
    """A call of the backend itself: torch's dispatcher would keep such tensors from it."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return lambda: getattr(backend, op)([tensor]).wait(), []


def _sparse(op: str, layout: torch.layout = torch.sparse_coo):
    return _straight(torch.eye(4).to_sparse(layout=layout), op)


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still there
        return torch.quantize_per_tensor(_ones(COUNT), 0.1, 0, torch.qint8)


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(COUNT)


def _peer(op: str, peer: int):
    tensor = _ones(COUNT)
    group = dist.group.WORLD
    return lambda: getattr(group, op)([tensor], peer, 0).wait(), [tensor]


def _without_memory(left: int) -> torch.Tensor:
    """A tensor of COUNT elements whose storage has only `left` bytes."""
    tensor = _ones(COUNT)
    tensor.untyped_storage().resize_(left)
    return tensor


# Every rank makes the same mistake; n is the world size.
MISTAKES: dict[str, Mistake] = {
    "all_reduce_strided": Mistake(
        "all_reduce", lambda n: _all_reduce(_strided(COUNT), dist.ReduceOp.SUM)
    ),
    "all_gather_transposed_input": Mistake(
        "all_gather", lambda n: _gather(_ones(n * 12), torch.ones(3, 4).t())
    ),
    "all_reduce_product_sparse": Mistake(
        "all_reduce",
        lambda n: (lambda: dist.all_reduce(torch.eye(4).to_sparse(), dist.ReduceOp.PRODUCT), []),
    ),
    "all_reduce_sparse_rows": Mistake(
        "all_reduce", lambda n: _sparse("allreduce", torch.sparse_csr)
    ),
    "broadcast_sparse": Mistake("broadcast", lambda n: _sparse("broadcast")),
    "all_gather_strided_input": Mistake(
        "all_gather", lambda n: _gather(_ones(n * COUNT), _strided(COUNT))
    ),
    "all_gather_strided_output": Mistake(
        "all_gather", lambda n: _gather(_strided(n * COUNT), _ones(COUNT))
    ),
    "reduce_scatter_strided_input": Mistake(
        "reduce_scatter", lambda n: _scatter(_ones(COUNT), _strided(n * COUNT))
    ),
    "all_reduce_avg_bool": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.bool), dist.ReduceOp.AVG)
    ),
    "all_reduce_premul_int": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.int32), premul_sum(0.5))
    ),
    "all_reduce_max_complex": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.complex64), dist.ReduceOp.MAX)
    ),
    "all_reduce_sum_float4": Mistake(
        "all_reduce",
        lambda n: _all_reduce(
            _ones(COUNT, torch.uint8).view(torch.float4_e2m1fn_x2), dist.ReduceOp.SUM
        ),
    ),
    "all_reduce_band_float": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT), dist.ReduceOp.BAND)
    ),
    "reduce_scatter_bor_bfloat16": Mistake(
        "reduce_scatter",
        lambda n: _scatter(
            _ones(COUNT, torch.bfloat16), _ones(n * COUNT, torch.bfloat16), dist.ReduceOp.BOR
        ),
    ),
    "all_reduce_bxor_float8": Mistake(
        "all_reduce",
        lambda n: _all_reduce(
            _ones(COUNT, torch.uint8).view(torch.float8_e5m2), dist.ReduceOp.BXOR
        ),
    ),
    "all_reduce_bxor_complex": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.complex128), dist.ReduceOp.BXOR)
    ),
    "all_reduce_min_complex_half": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.complex32), dist.ReduceOp.MIN)
    ),
    "all_reduce_premul_bool": Mistake(
        "all_reduce", lambda n: _all_reduce(_ones(COUNT, torch.bool), premul_sum(0.5))
    ),
    "all_reduce_premul_imaginary": Mistake(
        "all_reduce",
        lambda n: _all_reduce(_ones(COUNT, torch.complex64), premul_sum(torch.tensor([1j]))),
    ),
    "all_reduce_quantized": Mistake("all_reduce", lambda n: _straight(_quantized())),
    "all_reduce_meta": Mistake("all_reduce", lambda n: _straight(torch.ones(COUNT, device="meta"))),
    "all_reduce_fake": Mistake("all_reduce", lambda n: _straight(_fake())),
    "all_reduce_freed": Mistake(
        "all_reduce", lambda n: (lambda: dist.all_reduce(_without_memory(0)), [])
    ),
    "all_reduce_shrunk": Mistake(
        "all_reduce", lambda n: (lambda: dist.all_reduce(_without_memory(COUNT * 4 - 1)), [])
    ),
    "all_gather_freed_input": Mistake(
        "all_gather", lambda n: _gather(_ones(n * COUNT), _without_memory(0))
    ),
    "reduce_scatter_shrunk_output": Mistake(
        "reduce_scatter",
        lambda n: (
            lambda: reduce_scatter_single(_without_memory(4), _ones(n * COUNT), dist.ReduceOp.SUM),
            [],
        ),
    ),
    "send_freed": Mistake(
        "send", lambda n: (lambda: dist.group.WORLD.send([_without_memory(0)], 0, 0).wait(), [])
    ),
    "reduce_scatter_avg_bool": Mistake(
        "reduce_scatter",
        lambda n: _scatter(
            _ones(COUNT, torch.bool), _ones(n * COUNT, torch.bool), dist.ReduceOp.AVG
        ),
    ),
    "all_gather_list_too_short": Mistake(
        "all_gather", lambda n: _gather_list([_ones(COUNT) for _ in range(n - 1)])
    ),
    "all_gather_list_too_long": Mistake(
        "all_gather", lambda n: _gather_list([_ones(COUNT) for _ in range(n + 1)])
    ),
    "all_gather_list_own_slot_too_big": Mistake(
        "all_gather", lambda n: _gather_list([_ones(COUNT + 1) for _ in range(n)])
    ),
    "reduce_scatter_list_too_short": Mistake(
        "reduce_scatter",
        lambda n: _reduce_scatter_list(_ones(COUNT), [_ones(COUNT) for _ in range(n - 1)]),
    ),
    "reduce_scatter_list_output_too_big": Mistake(
        "reduce_scatter",
        lambda n: _reduce_scatter_list(_ones(COUNT + 1), [_ones(COUNT) for _ in range(n)]),
    ),
    "all_to_all_list_too_short": Mistake("all_to_all", lambda n: _all_to_all_list(n)),
    "all_to_all_not_divisible": Mistake(
        "all_to_all", lambda n: _all_to_all_single(n * COUNT + 1, None)
    ),
    "all_to_all_splits_too_small": Mistake(
        "all_to_all", lambda n: _all_to_all_single(n * COUNT, [COUNT - 1] * n)
    ),
    "all_gather_output_too_big": Mistake(
        "all_gather", lambda n: _gather(_ones(n * COUNT + 1), _ones(COUNT))
    ),
    "all_gather_output_too_small": Mistake(
        "all_gather", lambda n: _gather(_ones(n * COUNT - 1), _ones(COUNT))
    ),
    "all_gather_dtypes_differ": Mistake(
        "all_gather", lambda n: _gather(_ones(n * COUNT, torch.int32), _ones(COUNT))
    ),
    "reduce_scatter_output_too_big": Mistake(
        "reduce_scatter", lambda n: _scatter(_ones(COUNT + 1), _ones(n * COUNT))
    ),
    "reduce_scatter_dtypes_differ": Mistake(
        "reduce_scatter", lambda n: _scatter(_ones(COUNT, torch.int32), _ones(n * COUNT))
    ),
    "broadcast_root_too_big": Mistake("broadcast", lambda n: _rooted("broadcast", n)),
    "broadcast_root_negative": Mistake("broadcast", lambda n: _rooted("broadcast", -1)),
    "reduce_root_too_big": Mistake("reduce", lambda n: _rooted("reduce", n)),
    "send_to_nobody": Mistake("send", lambda n: _peer("send", n)),
    "recv_from_nobody": Mistake("recv", lambda n: _peer("recv", n)),
}


def refused(context: RankContext, name: str) -> Refusal:
    """Makes a mistake on the default group and then uses the group properly."""
    call, outputs = MISTAKES[name].make(context.world_size)
    result = _observe(call, outputs)
    check = torch.full((5,), context.rank + 1, dtype=torch.int32)
    dist.all_reduce(check)
    result.usable = check.tolist() == [sum(range(1, context.world_size + 1))] * 5
    return result


def _observe(call: Callable[[], object], outputs: list[torch.Tensor]) -> Refusal:
    before = [tensor.clone() for tensor in outputs]
    start = time.monotonic()
    kinds: list[str] = []
    message = ""
    try:
        call()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        message = str(error)
    seconds = time.monotonic() - start
    same = all(
        torch.equal(old.view(torch.uint8), new.contiguous().view(torch.uint8))
        for old, new in zip([b.contiguous() for b in before], outputs, strict=True)
    )
    return Refusal(kinds, message, same, seconds, False)


# --- ranks that disagree --------------------------------------------------------------------------

Maker = Callable[[bool, int, int, dist.ProcessGroup], tuple[Callable[[], object], list]]


def _disagree_all_reduce(odd, n, r, group):
    tensor = _ones(OTHER_COUNT if odd else ONE_COUNT)
    return lambda: dist.all_reduce(tensor, group=group), [tensor]


def _disagree_async(odd, n, r, group):
    tensor = _ones(OTHER_COUNT if odd else ONE_COUNT)

    def call():
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()

    return call, [tensor]


def _disagree_all_gather(odd, n, r, group):
    count = OTHER_COUNT if odd else ONE_COUNT
    output = _ones(count * n)
    return lambda: all_gather_single(output, _ones(count), group=group), [output]


def _disagree_all_gather_list(odd, n, r, group):
    count = OTHER_COUNT if odd else ONE_COUNT
    outputs = [_ones(count) for _ in range(n)]
    return lambda: dist.all_gather(outputs, _ones(count), group=group), outputs


def _disagree_reduce_scatter(odd, n, r, group):
    count = OTHER_COUNT if odd else ONE_COUNT
    output = _ones(count)
    call = lambda: reduce_scatter_single(  # noqa: E731
        output, _ones(count * n), dist.ReduceOp.SUM, group=group
    )
    return call, [output]


def _disagree_broadcast(odd, n, r, group):
    tensor = _ones(OTHER_COUNT if odd else ONE_COUNT)
    return lambda: dist.broadcast(tensor, 0, group=group), [tensor]


def _disagree_reduce(odd, n, r, group):
    tensor = _ones(OTHER_COUNT if odd else ONE_COUNT)
    return lambda: dist.reduce(tensor, 0, group=group), [tensor]


def _disagree_gather(odd, n, r, group):
    source = _ones(OTHER_COUNT if odd else ONE_COUNT)
    outputs = [_ones(ONE_COUNT) for _ in range(n)] if r == 0 else None
    return lambda: dist.gather(source, outputs, dst=0, group=group), outputs or []


def _disagree_scatter(odd, n, r, group):
    output = _ones(OTHER_COUNT if odd else ONE_COUNT)
    sources = [_ones(ONE_COUNT) for _ in range(n)] if r == 0 else None
    return lambda: dist.scatter(output, sources, src=0, group=group), [output]


def _disagree_all_to_all(odd, n, r, group):
    count = OTHER_COUNT if odd else ONE_COUNT
    output = _ones(count * n)
    return lambda: dist.all_to_all_single(output, _ones(count * n), group=group), [output]


def _disagree_dtype(odd, n, r, group):
    tensor = _ones(ONE_COUNT, torch.int32 if odd else torch.float32)
    return lambda: dist.all_reduce(tensor, group=group), [tensor]


def _disagree_operation(odd, n, r, group):
    tensor = _ones(ONE_COUNT)
    if odd:
        return lambda: dist.broadcast(tensor, 0, group=group), [tensor]
    return lambda: dist.all_reduce(tensor, group=group), [tensor]


def _disagree_reduce_op(odd, n, r, group):
    tensor = _ones(ONE_COUNT)
    op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
    return lambda: dist.all_reduce(tensor, op, group=group), [tensor]


def _disagree_root(odd, n, r, group):
    tensor = _ones(ONE_COUNT)
    return lambda: dist.broadcast(tensor, 1 if odd else 0, group=group), [tensor]


_COUNTS = ("ONE_COUNT", "OTHER_COUNT")


def sides_of(name: str, world_size: int) -> list[str]:
    """Patterns of what both sides called; a message may count a part or all of them, or bytes."""
    patterns = []
    for side in DISAGREEMENTS[name][1]:
        if side in _COUNTS:
            count = ONE_COUNT if side == "ONE_COUNT" else OTHER_COUNT
            shown = {count * parts * size for parts in (1, world_size) for size in (1, 4)}
            side = rf"\b({'|'.join(map(str, sorted(shown)))})\b"
        patterns.append(side)
    return patterns


# name: (maker, what both sides look like in the message)
DISAGREEMENTS: dict[str, tuple[Maker, tuple[str, str]]] = {
    "all_reduce_count": (_disagree_all_reduce, _COUNTS),
    "all_reduce_async_count": (_disagree_async, _COUNTS),
    "all_gather_count": (_disagree_all_gather, _COUNTS),
    "all_gather_list_count": (_disagree_all_gather_list, _COUNTS),
    "reduce_scatter_count": (_disagree_reduce_scatter, _COUNTS),
    "broadcast_count": (_disagree_broadcast, _COUNTS),
    "reduce_count": (_disagree_reduce, _COUNTS),
    "gather_count": (_disagree_gather, _COUNTS),
    "scatter_count": (_disagree_scatter, _COUNTS),
    "all_to_all_count": (_disagree_all_to_all, _COUNTS),
    "dtype": (_disagree_dtype, (r"float32|fp32|f32", r"int32|i32")),
    "operation": (_disagree_operation, (r"all_?reduce", r"broadcast")),
    "reduce_op": (_disagree_reduce_op, (r"(?i)\bsum\b", r"(?i)\bmax\b")),
    "root": (_disagree_root, (r"root\W*0", r"root\W*1")),
}


def disagreed(context: RankContext, name: str) -> Refusal:
    """Lets the last rank differ from the others on a group of its own; then uses the world."""
    n, rank = context.world_size, context.rank
    group = dist.new_group(list(range(n)))
    call, outputs = DISAGREEMENTS[name][0](rank == n - 1, n, rank, group)
    result = _observe(call, outputs)
    check = torch.full((5,), rank + 1, dtype=torch.int32)
    dist.all_reduce(check)
    result.usable = check.tolist() == [sum(range(1, n + 1))] * 5
    dist.destroy_process_group(group)
    return result
