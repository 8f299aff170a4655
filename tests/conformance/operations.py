"""How each row of the matrix is called, and what every rank must find afterwards.

A row is a function `(call) -> list[Expected]`: it makes this rank's buffers, makes the call through
the public interface of torch.distributed and says what the outputs must hold. `call.done(work,
outputs)` waits for the Work of an asynchronous call and checks its promises.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.conformance import data, reference
from tests.conformance.buffers import Buffers
from tests.conformance.cases import COMPLEX, Case
from tests.support.backend import all_gather_single as dist_all_gather_single
from tests.support.backend import premul_sum, reduce_scatter_single

WAIT_AFTER_DONE = "the Work is not completed after wait()"


@dataclass(frozen=True)
class Expected:
    """`tensor` must hold `value`: exact bits, or a reduction with its own bound."""

    what: str
    tensor: torch.Tensor
    value: np.ndarray | reference.Reduced


@dataclass
class Call:
    """One case as seen by one rank."""

    case: Case
    rank: int
    buffers: Buffers
    complaints: list[str] = field(default_factory=list)
    observation: Any = None

    @property
    def ranks(self) -> int:
        return self.case.ranks

    def input_of(self, rank: int, part: int = 0, count: int | None = None) -> np.ndarray:
        case = self.case
        kind = data.kind_of(case.dtype, case.redop)
        size = case.count if count is None else count
        return data.values(case.dtype, kind, size, case.seed, rank, part)

    def reduced(self, part: int = 0, count: int | None = None) -> reference.Reduced:
        inputs = [self.input_of(rank, part, count) for rank in range(self.ranks)]
        return reference.reduce(inputs, self.case.dtype, self.case.redop)

    def reduce_op(self) -> Any:
        if self.case.redop == "PREMUL_NUMBER":
            return premul_sum(reference.FACTOR)
        if self.case.redop == "PREMUL_TENSOR":
            dtype = data.torch_dtype(self.case.dtype)
            return premul_sum(torch.tensor([reference.FACTOR], dtype=dtype))
        return getattr(dist.ReduceOp, self.case.redop)

    def roots(self) -> Sequence[int]:
        """Every root in turn, or one of them where a message is large."""
        if self.case.count_name in ("large", "huge"):
            return (self.case.seed % self.ranks,)
        return range(self.ranks)

    def done(self, work: Any, outputs: Sequence[torch.Tensor]) -> None:
        if not self.case.is_async:
            if work is not None and hasattr(work, "wait"):
                work.wait()
            return
        if work is None:
            self.complaints.append("an asynchronous call returned no Work")
            return
        work.wait()
        if not work.is_completed():
            self.complaints.append(WAIT_AFTER_DONE)
        if not outputs:
            return
        found = [tensor.data_ptr() for tensor in _flat(work.get_future().wait())]
        wanted = [tensor.data_ptr() for tensor in outputs if tensor.numel()]
        if not set(wanted) <= set(found):
            self.complaints.append("get_future().wait() does not give the output tensors")


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]


def _split(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(torch.split(tensor, list(sizes)))


def _uneven(case: Case) -> list[int]:
    """A count per rank around the case's count, zeros included, the same on every rank."""
    rng = random.Random(case.seed)
    return [rng.choice((0, case.count, rng.randint(0, 2 * case.count))) for _ in range(case.ranks)]


# --- movement -------------------------------------------------------------------------------------


def all_gather_single(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    output = call.buffers.output(n * count)
    source = call.buffers.constant(call.input_of(call.rank))
    call.done(dist_all_gather_single(output, source, async_op=call.case.is_async), [output])
    return [Expected("output", output, np.concatenate([call.input_of(r) for r in range(n)]))]


def all_gather_single_in_place(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    output = call.buffers.output(n * count)
    source = output[call.rank * count : (call.rank + 1) * count]
    mine = torch.from_numpy(call.input_of(call.rank).view(np.uint8).copy())
    source.view(torch.uint8).copy_(mine)
    call.done(dist_all_gather_single(output, source, async_op=call.case.is_async), [output])
    return [Expected("output", output, np.concatenate([call.input_of(r) for r in range(n)]))]


def _all_gather_list(call: Call, outputs: list[torch.Tensor], counts) -> list[Expected]:
    source = call.buffers.constant(call.input_of(call.rank, count=counts[call.rank]))
    call.done(dist.all_gather(outputs, source, async_op=call.case.is_async), outputs)
    return [
        Expected(f"output {rank}", outputs[rank], call.input_of(rank, count=counts[rank]))
        for rank in range(call.ranks)
    ]


def all_gather_list_adjacent(call: Call) -> list[Expected]:
    counts = [call.case.count] * call.ranks
    return _all_gather_list(call, _split(call.buffers.output(sum(counts)), counts), counts)


def all_gather_list_separate(call: Call) -> list[Expected]:
    counts = [call.case.count] * call.ranks
    return _all_gather_list(call, [call.buffers.output(c) for c in counts], counts)


def all_gather_list_uneven(call: Call) -> list[Expected]:
    counts = _uneven(call.case)
    return _all_gather_list(call, [call.buffers.output(c) for c in counts], counts)


def _coalesced_counts(case: Case) -> list[int]:
    return [case.count, 3, case.count // 2]


def all_gather_coalesced(call: Call) -> list[Expected]:
    n = call.ranks
    counts = _coalesced_counts(call.case)
    group = dist.group.WORLD
    sources = [
        call.buffers.constant(call.input_of(call.rank, part, count))
        for part, count in enumerate(counts)
    ]
    if call.case.is_async:
        outputs = [call.buffers.output(n * count) for count in counts]
        call.done(group.allgather_into_tensor_coalesced(outputs, sources), outputs)
    else:
        functional = torch.ops._c10d_functional
        raw = functional.all_gather_into_tensor_coalesced(sources, n, group.group_name)
        outputs = [functional.wait_tensor(tensor) for tensor in raw]
    return [
        Expected(
            f"output {part}",
            outputs[part],
            np.concatenate([call.input_of(rank, part, count) for rank in range(n)]),
        )
        for part, count in enumerate(counts)
    ]


def broadcast(call: Call) -> list[Expected]:
    expected = []
    for root in call.roots():
        values = call.input_of(call.rank, part=root)
        buffer = call.buffers
        tensor = buffer.constant(values) if call.rank == root else buffer.filled(values)
        call.done(dist.broadcast(tensor, root, async_op=call.case.is_async), [tensor])
        expected.append(Expected(f"root {root}", tensor, call.input_of(root, part=root)))
    return expected


def gather(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    expected = []
    for root in call.roots():
        source = call.buffers.constant(call.input_of(call.rank, part=root))
        outputs = None
        if call.rank == root:
            outputs = [call.buffers.output(count) for _ in range(n)]
        work = dist.gather(source, outputs, dst=root, async_op=call.case.is_async)
        call.done(work, outputs or [])
        for rank, output in enumerate(outputs or []):
            value = call.input_of(rank, part=root)
            expected.append(Expected(f"root {root} output {rank}", output, value))
    return expected


def scatter(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    expected = []
    for root in call.roots():
        output = call.buffers.output(count)
        sources = None
        if call.rank == root:
            sources = [call.buffers.constant(call.input_of(root, root * n + r)) for r in range(n)]
        work = dist.scatter(output, sources, src=root, async_op=call.case.is_async)
        call.done(work, [output])
        value = call.input_of(root, root * n + call.rank)
        expected.append(Expected(f"root {root}", output, value))
    return expected


def all_to_all_single(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    output = call.buffers.output(n * count)
    parts = [call.input_of(call.rank, part) for part in range(n)]
    source = call.buffers.constant(np.concatenate(parts))
    call.done(dist.all_to_all_single(output, source, async_op=call.case.is_async), [output])
    value = np.concatenate([call.input_of(rank, call.rank) for rank in range(n)])
    return [Expected("output", output, value)]


def _splits(case: Case) -> list[list[int]]:
    """splits[i][j]: elements rank i sends to rank j, zeros included."""
    rng = random.Random(case.seed)
    choices = [0, case.count, max(case.count - 1, 0), case.count // 3]
    return [[rng.choice(choices) for _ in range(case.ranks)] for _ in range(case.ranks)]


def all_to_all_single_uneven(call: Call) -> list[Expected]:
    n, me = call.ranks, call.rank
    splits = _splits(call.case)
    out_splits = [splits[rank][me] for rank in range(n)]
    output = call.buffers.output(sum(out_splits))
    parts = [call.input_of(me, part, splits[me][part]) for part in range(n)]
    source = call.buffers.constant(np.concatenate(parts))
    work = dist.all_to_all_single(
        output, source, out_splits, splits[me], async_op=call.case.is_async
    )
    call.done(work, [output])
    value = np.concatenate([call.input_of(rank, me, splits[rank][me]) for rank in range(n)])
    return [Expected("output", output, value)]


def all_to_all_list(call: Call) -> list[Expected]:
    n, me = call.ranks, call.rank
    splits = _splits(call.case)
    outputs = [call.buffers.output(splits[rank][me]) for rank in range(n)]
    sources = [
        call.buffers.constant(call.input_of(me, part, splits[me][part])) for part in range(n)
    ]
    call.done(dist.all_to_all(outputs, sources, async_op=call.case.is_async), outputs)
    return [
        Expected(f"output {rank}", outputs[rank], call.input_of(rank, me, splits[rank][me]))
        for rank in range(n)
    ]


def send_recv(call: Call) -> list[Expected]:
    """A blocking ring with two tagged messages a hop; neighbours take turns in both orders."""
    n, me = call.ranks, call.rank
    expected = []
    for sender in range(n):
        receiver = (sender + 1) % n
        for tag in (7, 3):
            if me == sender:
                dist.send(call.buffers.constant(call.input_of(me, tag)), receiver, tag=tag)
            elif me == receiver:
                output = call.buffers.output(call.case.count)
                dist.recv(output, sender, tag=tag)
                expected.append(Expected(f"tag {tag}", output, call.input_of(sender, tag)))
    return expected


def isend_irecv(call: Call) -> list[Expected]:
    """A ring where every rank sends before it receives, and receives in the other tag order."""
    n, me = call.ranks, call.rank
    following, previous = (me + 1) % n, (me - 1) % n
    tags = (11, 5)
    works = [
        dist.isend(call.buffers.constant(call.input_of(me, tag)), following, tag=tag)
        for tag in tags
    ]
    outputs = {tag: call.buffers.output(call.case.count) for tag in tags}
    for tag in reversed(tags):
        works.append(dist.irecv(outputs[tag], previous, tag=tag))
    for work in works:
        work.wait()
        if not work.is_completed():
            call.complaints.append(WAIT_AFTER_DONE)
    return [Expected(f"tag {tag}", outputs[tag], call.input_of(previous, tag)) for tag in tags]


def send_recv_any_source(call: Call) -> list[Expected]:
    """Every rank sends to every other, and receives from whoever comes: once from each.

    Blocking, ranks take turns in receiving; otherwise all receives are open at once.
    """
    n, me = call.ranks, call.rank
    # One of its own: a rank that is ahead must not answer what a slow one still asks of the others.
    tag = call.case.seed % 2**31
    outputs = [call.buffers.output(call.case.count) for _ in range(n - 1)]
    sources: list[int] = []
    if call.case.is_async:
        receives = [dist.irecv(output, tag=tag) for output in outputs]
        sends = [
            dist.isend(call.buffers.constant(call.input_of(me, peer)), peer, tag=tag)
            for peer in range(n)
            if peer != me
        ]
        for work in receives:
            work.wait()
            sources.append(work._source_rank())
        for work in sends:
            work.wait()
    else:
        for receiver in range(n):
            if me == receiver:
                sources = [dist.recv(output, tag=tag) for output in outputs]
            else:
                source = call.buffers.constant(call.input_of(me, receiver))
                dist.send(source, receiver, tag=tag)
    if sorted(sources) != [rank for rank in range(n) if rank != me]:
        call.complaints.append(f"the messages came from {sources}")
    return [
        Expected(f"from {source}", output, call.input_of(source, me))
        for source, output in zip(sources, outputs, strict=True)
    ]


def barrier(call: Call) -> list[Expected]:
    """Records when this rank arrived and left; the parent compares the ranks."""
    times = []
    for late in range(call.ranks):
        if call.rank == late:  # without a late rank, a barrier that does nothing could pass
            time.sleep(0.003)
        arrived = time.monotonic_ns()
        work = dist.barrier(async_op=call.case.is_async)
        if call.case.is_async:
            call.done(work, [])
        times.append((arrived, time.monotonic_ns()))
    call.observation = times
    return []


# --- reductions -----------------------------------------------------------------------------------


def _direct(call: Call) -> bool:
    """Whether the group is called without torch.distributed's functions around it.

    Those turn complex tensors into real ones of twice the size, which leaves nothing of a product.
    """
    case = call.case
    return case.dtype in COMPLEX and (case.redop == "PRODUCT" or case.seed % 2 == 1)


def _with_op(call: Call, options: Any, **fields: Any) -> Any:
    options.reduceOp = call.reduce_op()
    options.asyncOp = call.case.is_async
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def all_reduce(call: Call) -> list[Expected]:
    tensor = call.buffers.filled(call.input_of(call.rank))
    if _direct(call):
        work = dist.group.WORLD.allreduce([tensor], _with_op(call, dist.AllreduceOptions()))
    else:
        work = dist.all_reduce(tensor, call.reduce_op(), async_op=call.case.is_async)
    call.done(work, [tensor])
    return [Expected("tensor", tensor, call.reduced())]


def _functional_name(call: Call) -> str | None:
    """The functional collectives name their reduction and have no name for PREMUL_SUM."""
    if call.case.is_async or call.case.redop.startswith("PREMUL") or _direct(call):
        return None
    return call.case.redop.lower()


def all_reduce_coalesced(call: Call) -> list[Expected]:
    counts = _coalesced_counts(call.case)
    group = dist.group.WORLD
    tensors = [
        call.buffers.filled(call.input_of(call.rank, part, count))
        for part, count in enumerate(counts)
    ]
    name = _functional_name(call)
    if name is None:
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = call.reduce_op()
        call.done(group.allreduce_coalesced(tensors, options), tensors)
    else:
        functional = torch.ops._c10d_functional
        raw = functional.all_reduce_coalesced(tensors, name, group.group_name)
        tensors = [functional.wait_tensor(tensor) for tensor in raw]
    return [
        Expected(f"tensor {part}", tensors[part], call.reduced(part, count))
        for part, count in enumerate(counts)
    ]


def reduce(call: Call) -> list[Expected]:
    expected = []
    for root in call.roots():
        values = call.input_of(call.rank, part=root)
        buffer = call.buffers
        tensor = buffer.filled(values) if call.rank == root else buffer.constant(values)
        if _direct(call):
            options = _with_op(call, dist.ReduceOptions(), rootRank=root)
            work = dist.group.WORLD.reduce([tensor], options)
        else:
            work = dist.reduce(tensor, root, call.reduce_op(), async_op=call.case.is_async)
        call.done(work, [tensor] if call.rank == root else [])
        if call.rank == root:
            expected.append(Expected(f"root {root}", tensor, call.reduced(part=root)))
    return expected


def _concatenated(call: Call, counts: Sequence[int], first_part: int = 0) -> np.ndarray:
    parts = [call.input_of(call.rank, first_part + p, c) for p, c in enumerate(counts)]
    return np.concatenate(parts)


def reduce_scatter_single_(call: Call) -> list[Expected]:
    counts = [call.case.count] * call.ranks
    output = call.buffers.output(call.case.count)
    return _reduce_scatter_single(call, output, call.buffers.constant(_concatenated(call, counts)))


def reduce_scatter_single_in_place(call: Call) -> list[Expected]:
    n, count = call.ranks, call.case.count
    source = call.buffers.output(n * count)
    inputs = torch.from_numpy(_concatenated(call, [count] * n).view(np.uint8).copy())
    source.view(torch.uint8).copy_(inputs)
    return _reduce_scatter_single(call, source[call.rank * count : (call.rank + 1) * count], source)


def _reduce_scatter_single(
    call: Call, output: torch.Tensor, source: torch.Tensor
) -> list[Expected]:
    if _direct(call):
        options = _with_op(call, dist.ReduceScatterOptions())
        work = dist.group.WORLD._reduce_scatter_base(output, source, options)
    else:
        work = reduce_scatter_single(output, source, call.reduce_op(), async_op=call.case.is_async)
    call.done(work, [output])
    return [Expected("output", output, call.reduced(call.rank))]


def _reduce_scatter_list(call: Call, counts: Sequence[int]) -> list[Expected]:
    output = call.buffers.output(counts[call.rank])
    sources = [
        call.buffers.constant(call.input_of(call.rank, part, count))
        for part, count in enumerate(counts)
    ]
    if _direct(call):
        options = _with_op(call, dist.ReduceScatterOptions())
        work = dist.group.WORLD.reduce_scatter([output], [sources], options)
    else:
        work = dist.reduce_scatter(output, sources, call.reduce_op(), async_op=call.case.is_async)
    call.done(work, [output])
    return [Expected("output", output, call.reduced(call.rank, counts[call.rank]))]


def reduce_scatter_list(call: Call) -> list[Expected]:
    return _reduce_scatter_list(call, [call.case.count] * call.ranks)


def reduce_scatter_list_uneven(call: Call) -> list[Expected]:
    return _reduce_scatter_list(call, _uneven(call.case))


def reduce_scatter_coalesced(call: Call) -> list[Expected]:
    n = call.ranks
    counts = _coalesced_counts(call.case)
    group = dist.group.WORLD
    sources = [
        call.buffers.constant(_concatenated(call, [count] * n, first_part=item * n))
        for item, count in enumerate(counts)
    ]
    name = _functional_name(call)
    if name is None:
        outputs = [call.buffers.output(count) for count in counts]
        options = dist.ReduceScatterOptions()
        options.reduceOp = call.reduce_op()
        call.done(group.reduce_scatter_tensor_coalesced(outputs, sources, options), outputs)
    else:
        functional = torch.ops._c10d_functional
        raw = functional.reduce_scatter_tensor_coalesced(sources, name, n, group.group_name)
        outputs = [functional.wait_tensor(tensor) for tensor in raw]
    return [
        Expected(f"output {item}", outputs[item], call.reduced(item * n + call.rank, count))
        for item, count in enumerate(counts)
    ]


ROWS: dict[str, Callable[[Call], list[Expected]]] = {
    function.__name__.rstrip("_"): function
    for function in (
        all_gather_single,
        all_gather_single_in_place,
        all_gather_list_adjacent,
        all_gather_list_separate,
        all_gather_list_uneven,
        all_gather_coalesced,
        broadcast,
        gather,
        scatter,
        all_to_all_single,
        all_to_all_single_uneven,
        all_to_all_list,
        send_recv,
        isend_irecv,
        send_recv_any_source,
        barrier,
        all_reduce,
        all_reduce_coalesced,
        reduce,
        reduce_scatter_single_,
        reduce_scatter_single_in_place,
        reduce_scatter_list,
        reduce_scatter_list_uneven,
        reduce_scatter_coalesced,
    )
}
