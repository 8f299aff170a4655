"""Tensor parallelism, alone and under FSDP2, against one process.

Every parallel style is in the plan: a vocabulary-sharded embedding, sequence-parallel norms,
linears sharded by column and by row, a head whose logits stay sharded under `loss_parallel`. The
number of calls must be what torch's dispatcher saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.integration.models import STEPS, sgd
from tests.integration.rows.base import (
    FP64_TOLERANCE,
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
)
from tests.integration.rows.dispatched import Dispatched
from tests.support.workers import RankContext

VOCABULARY, WIDTH, HIDDEN, SEQUENCE, BATCH = 24, 12, 36, 12, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Words(nn.Module):
    """Predicts a token from a token; nothing mixes positions, so a sequence can be sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _build(dtype: torch.dtype) -> Words:
    torch.manual_seed(11)
    return Words().to(dtype)


def _tokens(step: int, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(500 * step + share)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _train(
    model: nn.Module,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    around,
    optimizer: torch.optim.Optimizer,
) -> None:
    for tokens, target in batches:
        with around():
            _loss(model(tokens), target).backward()
        optimizer.step()
        optimizer.zero_grad()


def _oracle(shares: int, dtype: torch.dtype) -> Tensors:
    model = _build(dtype)
    steps = ([_tokens(step, share) for share in range(shares)] for step in range(STEPS))
    unions = (tuple(torch.cat(side) for side in zip(*parts, strict=True)) for parts in steps)
    _train(model, unions, nullcontext, sgd(model))  # type: ignore[arg-type]
    return {name: value.detach() for name, value in model.named_parameters()}


def _parallelize(model: Words, mesh: DeviceMesh) -> None:
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "blocks.*.norm": SequenceParallel(),
            "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
            "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )


def _whole(model: nn.Module) -> Tensors:
    found = {}
    for name, value in model.named_parameters():
        assert isinstance(value, DTensor), name
        found[name] = value.detach().full_tensor()
    return found


def tensor_parallel(
    shares: int,
    dtype: torch.dtype = torch.float64,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
):
    """`shares` data-parallel parts of the ranks, sharded by FSDP2 if there are more than one."""

    def run(context: RankContext) -> Outcome:
        mesh = init_device_mesh(
            "cpu", (shares, context.world_size // shares), mesh_dim_names=("dp", "tp")
        )
        model = _build(dtype)
        _parallelize(model, mesh["tp"])
        if shares > 1:
            for block in model.blocks:
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
        share = mesh.get_local_rank("dp")
        with Meter() as meter, Dispatched() as seen:
            batches = (_tokens(step, share) for step in range(STEPS))
            _train(model, batches, loss_parallel, optimizer(model))
        if meter.used is not None:
            assert meter.used.calls == seen.calls, (meter.used.calls, seen.calls)
        return compare(_whole(model), _oracle(shares, dtype), meter.used)

    return run


_SHOWS = "Colwise, Rowwise, SequenceParallel, sharded embedding and loss_parallel"
_SOME = frozenset({"all_gather", "all_reduce", "reduce_scatter"})

ROWS = (
    *(
        Row(f"tp_w{n}", n, tensor_parallel(1), _SHOWS, {}, some=_SOME, tolerance=FP64_TOLERANCE)
        for n in (2, 3, 4)
    ),
    Row(
        "tp_fsdp2_2x2",
        4,
        tensor_parallel(2),
        _SHOWS + ", each parameter sharded by FSDP2 as well",
        {},
        some=_SOME,
        tolerance=FP64_TOLERANCE,
    ),
)
