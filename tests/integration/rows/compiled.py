"""torch.compile: collectives inside a graph without breaks, and compiled blocks under FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

from tests.integration import models
from tests.integration.models import UNITS
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
    each_step,
    local_parameters,
    local_shards,
)
from tests.integration.rows.fsdp2 import shard
from tests.integration.rows.functional import all_gather, reduce_scatter
from tests.support.backend import all_gather_single
from tests.support.workers import RankContext


def _input(rank: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(40 + rank)
    return torch.randint(-9, 9, (2 * n, 3), generator=generator).float()


def _exchange(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Functional collectives, and the in-place ones that the compiler rewrites into them."""
    group = dist.group.WORLD
    n = dist.get_world_size()
    total = funcol.all_reduce(x * 2, "sum", group) + 1
    every = all_gather(x + 1, 0, group) * 3
    share = reduce_scatter(x - 1, "sum", 0, group) * 4
    swapped = funcol.all_to_all_single(x * 5, None, None, group) + 2
    output = x.new_empty((n * x.shape[0], *x.shape[1:]))
    all_gather_single(output, x * 6)
    reduced = x * 7
    dist.all_reduce(reduced)
    return total, every, share, swapped, output + 1, reduced - 1


def _formula(rank: int, n: int) -> tuple[torch.Tensor, ...]:
    xs = [_input(other, n) for other in range(n)]
    total = torch.stack(xs).sum(0)
    return (
        2 * total + 1,
        3 * (torch.cat(xs) + 1),
        4 * (total - n).chunk(n)[rank],
        5 * torch.cat([x.chunk(n)[rank] for x in xs]) + 2,
        6 * torch.cat(xs) + 1,
        7 * total - 1,
    )


def _graph(backend: str):
    def run(context: RankContext) -> Outcome:
        _settle()
        me, n = context.rank, context.world_size
        compiled = torch.compile(_exchange, backend=backend, fullgraph=True)
        with Meter() as meter:
            results = compiled(_input(me, n))
        wanted = _formula(me, n)
        return compare(_numbered(results), _numbered(wanted), meter.used)

    return run


def _numbered(tensors: tuple[torch.Tensor, ...]) -> Tensors:
    return {str(index): tensor for index, tensor in enumerate(tensors)}


def _fsdp2(backend: str):
    def run(context: RankContext) -> Outcome:
        _settle()
        n = context.world_size
        model = models.build()
        for block in model.blocks:
            block.compile(backend=backend)
        shard(model, init_device_mesh("cpu", (n,)))
        with Meter() as meter:
            models.train(model, context.rank)
        full = models.union_oracle(n)
        return compare(local_parameters(model), local_shards(full, n, context.rank), meter.used)

    return run


def _settle() -> None:
    """Forget what other rows compiled, and compile in this process: a rank has no children."""
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.compile_threads = 1


_CALLS = {"all_gather": 2, "all_reduce": 2, "all_to_all": 1, "reduce_scatter": 1}
_FULL = each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)

# The first compilation by inductor builds C++ for half a minute, on busy cores for minutes.
ROWS = tuple(
    row
    for backend, slow in (("aot_eager", False), ("inductor", True))
    for row in (
        Row(
            f"compile_graph_{backend}",
            2,
            _graph(backend),
            f"{backend}, fullgraph: functional and in-place collectives inside the graph",
            calls=_CALLS,
            tolerance=0.0,
            timeout_s=600,
            slow=slow,
        ),
        Row(
            f"compile_fsdp2_{backend}",
            2,
            _fsdp2(backend),
            f"{backend}: compiled blocks under fully_shard",
            calls=_FULL,
            timeout_s=600,
            slow=slow,
        ),
    )
)
