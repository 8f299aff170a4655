"""DTensor: every redistribution, distribution and gathering of uneven shards, bit for bit.

Values are small multiples of twelve, so that the sums and averages of up to four ranks are exact,
and the whole tensor is the oracle. The number of calls must be what torch's dispatcher saw leave
DTensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
)
from tests.integration.rows.dispatched import Dispatched
from tests.support.workers import RankContext

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
    "product": lambda parts: parts.prod(0),
}
# Of one more than a multiple, of fewer rows than ranks, of nothing to pad; three dimensions.
SHAPES = ((7, 5), (2, 3), (12, 12), (3, 1, 9))

Placements = tuple[Placement, ...]


def _partial_dims(placements: Sequence[Placement]) -> list[int]:
    return [dim for dim, placement in enumerate(placements) if placement.is_partial()]


def _operation(placements: Sequence[Placement]) -> str | None:
    """The reduction of the pending dims; torch admits one kind in a tensor."""
    kinds = {p.reduce_op for p in placements if isinstance(p, Partial)}
    assert len(kinds) <= 1, placements
    return kinds.pop() if kinds else None


def _part(shape: Sequence[int], op: str | None, where: Sequence[int]) -> torch.Tensor:
    """What the ranks at coordinates `where` (of the pending dims) contribute."""
    seed = 17 + sum((index + 1) * 31 ** (dim + 1) for dim, index in enumerate(where))
    generator = torch.Generator().manual_seed(seed)
    if op == "product":
        return torch.tensor([-2.0, -1.0, 1.0, 2.0])[
            torch.randint(4, tuple(shape), generator=generator)
        ]
    return 12.0 * torch.randint(-40, 40, tuple(shape), generator=generator)


def _whole(mesh: DeviceMesh, placements: Placements, shape: Sequence[int]) -> torch.Tensor:
    op = _operation(placements)
    sizes = [range(mesh.size(dim)) for dim in _partial_dims(placements)]
    parts = torch.stack([_part(shape, op, where) for where in itertools.product(*sizes)])
    return REDUCTIONS[op](parts) if op else parts[0]


def cut(mesh: DeviceMesh, placements: Placements, whole: torch.Tensor) -> torch.Tensor:
    """This rank's shard: torch.chunk for every sharded mesh dim in turn, empty past the last."""
    for dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            index = mesh.get_local_rank(dim)
            chunks = torch.chunk(whole, mesh.size(dim), dim=placement.dim)
            empty = whole.narrow(placement.dim, 0, 0)
            whole = chunks[index] if index < len(chunks) else empty
    return whole.contiguous()


def source(mesh: DeviceMesh, placements: Placements, shape: Sequence[int]) -> DTensor:
    """A tensor with these placements, put together from local parts alone."""
    where = [mesh.get_local_rank(dim) for dim in _partial_dims(placements)]
    local = cut(mesh, placements, _part(shape, _operation(placements), where))
    stride = torch.empty(tuple(shape)).stride()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def possible(source: Placements, target: Placements) -> bool:
    """Whether torch has it: only what is pending already may be pending afterwards."""
    return all(
        before == after
        for before, after in zip(source, target, strict=True)
        if isinstance(after, Partial)
    )


def pairs(options: Sequence[Placement], dims: int) -> Iterator[tuple[Placements, Placements]]:
    def one_kind(placements: Placements) -> bool:
        return len({p.reduce_op for p in placements if isinstance(p, Partial)}) <= 1

    each = [p for p in itertools.product(options, repeat=dims) if one_kind(p)]
    for before, after in itertools.product(each, repeat=2):
        if possible(before, after):
            yield before, after


def _checked(
    mesh: DeviceMesh, before: Placements, after: Placements, shape: Sequence[int]
) -> tuple[Tensors, Tensors]:
    whole = _whole(mesh, before, shape)
    moved = source(mesh, before, shape).redistribute(mesh, after)
    assert moved.placements == after
    name = f"{before} to {after} of {tuple(shape)}"
    found = {name: moved.full_tensor()}
    wanted = {name: whole}
    if not _partial_dims(after):
        found[name + ", local"] = moved.to_local()
        wanted[name + ", local"] = cut(mesh, after, whole)
    return found, wanted


def _measured(run: Callable[[], tuple[Tensors, Tensors]]) -> Outcome:
    with Meter() as meter, Dispatched() as seen:
        found, wanted = run()
    if meter.used is not None:
        assert meter.used.calls == seen.calls, (meter.used.calls, seen.calls)
    return compare(found, wanted, meter.used)


ONE_DIM = (Replicate(), Shard(0), Shard(1), *(Partial(op) for op in REDUCTIONS))
TWO_DIMS = (Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("max"))


def _redistribute(mesh_shape: tuple[int, ...], options: Sequence[Placement]):
    def run(context: RankContext) -> Outcome:
        mesh = init_device_mesh("cpu", mesh_shape)
        cases = list(pairs(options, len(mesh_shape)))

        def each() -> tuple[Tensors, Tensors]:
            found: Tensors = {}
            wanted: Tensors = {}
            for (before, after), shape in itertools.product(cases, SHAPES):
                for side, more in zip(
                    (found, wanted), _checked(mesh, before, after, shape), strict=True
                ):
                    side.update(more)
            return found, wanted

        return _measured(each)

    return run


def _distribute(mesh_shape: tuple[int, ...]):
    """`distribute_tensor` sends rank 0's data: the others hand in something else."""

    def run(context: RankContext) -> Outcome:
        mesh = init_device_mesh("cpu", mesh_shape)
        options = (Replicate(), Shard(0), Shard(1))
        cases = [
            (dtype, shape, placements)
            for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)
            for shape in SHAPES
            for placements in itertools.product(options, repeat=len(mesh_shape))
        ]

        def each() -> tuple[Tensors, Tensors]:
            found: Tensors = {}
            wanted: Tensors = {}
            for dtype, shape, placements in cases:
                data = [_part(shape, None, (rank,)).to(dtype) for rank in (0, context.rank)]
                spread = distribute_tensor(data[1], mesh, placements)
                name = f"{dtype} {shape} {placements}"
                found[name], wanted[name] = spread.full_tensor(), data[0]
                found[name + ", local"] = spread.to_local()
                wanted[name + ", local"] = cut(mesh, placements, data[0])
            return found, wanted

        return _measured(each)

    return run


def _from_local(context: RankContext) -> Outcome:
    """Uneven and empty shards under a given shape; operations that need the whole of a dim."""
    n = context.world_size
    mesh = init_device_mesh("cpu", (n,))

    def each() -> tuple[Tensors, Tensors]:
        found: Tensors = {}
        wanted: Tensors = {}
        for dim, rows in itertools.product((0, 1), (1, n - 1, n + 1, 3 * n - 1)):
            shape = [5, 5]
            shape[dim] = rows
            whole = _part(shape, None, ()) / 12
            tensor = DTensor.from_local(
                cut(mesh, (Shard(dim),), whole),
                mesh,
                [Shard(dim)],
                run_check=True,
                shape=whole.shape,
                stride=whole.stride(),
            )
            name = f"{rows} rows of dim {dim}"
            found[name], wanted[name] = tensor.full_tensor(), whole
            for function in (torch.softmax, torch.cumsum):
                key = f"{function.__name__}, {name}"
                found[key] = function(tensor, dim).full_tensor()
                wanted[key] = function(whole, dim)
            found["matmul, " + name] = (tensor @ tensor.t()).full_tensor()
            wanted["matmul, " + name] = whole @ whole.t()
        return found, wanted

    return _measured(each)


_SOME = frozenset({"all_gather", "all_reduce", "reduce_scatter"})

ROWS = (
    *(
        Row(
            f"dtensor_redistribute_w{n}",
            n,
            _redistribute((n,), ONE_DIM),
            "every pair of placements of one mesh dim, uneven and empty shards",
            calls={},
            some=_SOME,
            tolerance=0.0,
        )
        for n in (2, 3, 4)
    ),
    Row(
        "dtensor_redistribute_2x2",
        4,
        _redistribute((2, 2), TWO_DIMS),
        "every pair of pairs of placements of two mesh dims",
        calls={},
        some=_SOME,
        tolerance=0.0,
    ),
    *(
        Row(
            f"dtensor_distribute_{'x'.join(map(str, shape))}",
            math.prod(shape),
            _distribute(shape),
            "distribute_tensor of rank 0's data and full_tensor; fp32, bf16, int64, bool",
            calls={},
            some=frozenset({"all_gather", "broadcast", "scatter"}),
            tolerance=0.0,
        )
        for shape in ((2,), (3,), (2, 2))
    ),
    *(
        Row(
            f"dtensor_from_local_w{n}",
            n,
            _from_local,
            "uneven and empty local shards; softmax, cumsum and matmul across them",
            calls={},
            some=frozenset({"all_gather", "all_reduce"}),
        )
        for n in (2, 3, 4)
    ),
)
