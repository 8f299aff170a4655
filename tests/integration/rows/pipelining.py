"""Pipeline schedules of torch.distributed.pipelining against one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from tests.integration.models import FEATURES, STEPS, TARGETS, WIDTH, Block, loss_of, sgd
from tests.integration.rows.base import FP64_TOLERANCE, Meter, Outcome, Row, Tensors, compare
from tests.support.workers import RankContext

FP64 = torch.float64
# torch 2.11 begins with a send between every two adjacent stages, also where one rank holds both.
# No backend of the CPU serves that: gloo fails in it, too.
SENDS_TO_ITSELF = not hasattr(ScheduleZBVZeroBubble, "_initialize_pp_stages")
MICROBATCHES = 8
SAMPLES = 3 * MICROBATCHES
DEPTH = 6


def _layers() -> nn.Sequential:
    torch.manual_seed(13)
    blocks = [Block() for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, TARGETS)).to(FP64)


def _batch(step: int, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(700 * step + share)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=FP64)
    return x, torch.randn(SAMPLES, TARGETS, generator=generator, dtype=FP64)


@cache
def _oracle(shares: int) -> Tensors:
    model = _layers()
    optimizer = sgd(model)
    for step in range(STEPS):
        parts = [_batch(step, share) for share in range(shares)]
        x, y = (torch.cat(side) for side in zip(*parts, strict=True))
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}


def _cut(stages: int) -> list[list[int]]:
    """Which of the layers make up each stage."""
    layers = DEPTH + 2
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    return [list(range(*pair)) for pair in itertools.pairwise(bounds)]


Order = Callable[[int, int, int], list[int]]


class Stage(nn.Sequential):
    """Some of the layers, under the names that their parameters have in the whole model."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__()
        whole = _layers()
        for index in indices:
            self.add_module(str(index), whole[index])


def _linear_order(rank: int, ranks: int, stages_each: int) -> list[int]:
    """Round and round: rank r holds stages r, r + ranks, ..."""
    return [rank + turn * ranks for turn in range(stages_each)]


def _v_order(rank: int, ranks: int, stages_each: int) -> list[int]:
    """There and back: rank r holds stage r and the one as far from the end."""
    assert stages_each == 2
    return [rank, 2 * ranks - 1 - rank]


def _pipeline(
    schedule: Callable,
    *,
    shares: int = 1,
    stages_each: int = 1,
    order: Order = _linear_order,
):
    """`shares` pipelines side by side, whose stages are sharded by FSDP2 if there are several."""

    def run(context: RankContext) -> Outcome:
        ranks = context.world_size // shares
        mesh = init_device_mesh("cpu", (ranks, shares), mesh_dim_names=("pp", "dp"))
        group, rank = mesh.get_group("pp"), mesh.get_local_rank("pp")
        share = mesh.get_local_rank("dp")
        total = ranks * stages_each
        mine = order(rank, ranks, stages_each)
        layers = _cut(total)
        modules = [Stage(layers[index]) for index in mine]
        if shares > 1:
            for module in modules:
                fully_shard(module, mesh=mesh["dp"])
        cpu = torch.device("cpu")
        stages = [
            PipelineStage(module, index, total, cpu, group=group)
            for module, index in zip(modules, mine, strict=True)
        ]
        driver = schedule(stages[0] if stages_each == 1 else stages, MICROBATCHES, loss_fn=loss_of)
        optimizers = [sgd(module) for module in modules]

        def train(steps: range) -> None:
            for step in steps:
                x, y = _batch(step, share)
                feeds = (x,) if 0 in mine else ()
                target = {"target": y} if total - 1 in mine else {}
                driver.step(*feeds, **target)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

        train(range(1))  # exchanges shapes, too: how often is torch's affair
        with Meter() as meter:
            train(range(1, STEPS))
        return _outcome(modules, _oracle(shares), meter.used)

    return run


def _outcome(modules: list[Stage], oracle: Tensors, used) -> Outcome:
    found: Tensors = {}
    for module in modules:
        for name, value in module.named_parameters():
            value = value.detach()
            found[name] = value.full_tensor() if isinstance(value, DTensor) else value
    return compare(found, {name: oracle[name] for name in found}, used)


def _calls(ranks: int, stages_each: int, order: Order, shares: int = 1, **each_step: int):
    """Exactly: an activation and a gradient for every microbatch and edge between ranks."""

    def of_rank(rank: int) -> dict[str, int]:
        place = rank // shares
        total = ranks * stages_each
        owner = {s: r for r in range(ranks) for s in order(r, ranks, stages_each)}
        edges = sum(
            owner[stage] != owner[stage + 1] and place in (owner[stage], owner[stage + 1])
            for stage in range(total - 1)
        )
        transfers = edges * MICROBATCHES * (STEPS - 1)
        rest = {op: calls * (STEPS - 1) for op, calls in each_step.items()}
        return {"send": transfers, "recv": transfers, **rest}

    return of_rank


def _row(
    name: str,
    ranks: int,
    schedule: Callable,
    stages_each: int = 1,
    order: Order = _linear_order,
) -> Row:
    return Row(
        f"pp_{name}_w{ranks}",
        ranks,
        _pipeline(schedule, stages_each=stages_each, order=order),
        f"{schedule.__name__}, {stages_each} stage(s) a rank, {MICROBATCHES} microbatches",
        calls=_calls(ranks, stages_each, order),
        tolerance=FP64_TOLERANCE,
        lacking=(
            f"torch {torch.__version__} sends to the rank itself in schedules shaped like a V"
            if SENDS_TO_ITSELF and order is _v_order
            else ""
        ),
    )


ROWS = (
    *(
        _row(name, ranks, schedule, *how)
        for ranks in (2, 4)
        for name, schedule, *how in (
            ("gpipe", ScheduleGPipe),
            ("1f1b", Schedule1F1B),
            ("interleaved_1f1b", ScheduleInterleaved1F1B, 2),
            ("zbv", ScheduleZBVZeroBubble, 2, _v_order),
            ("dualpipev", ScheduleDualPipeV, 2, _v_order),
        )
    ),
    Row(
        "pp_1f1b_fsdp2_2x2",
        4,
        _pipeline(Schedule1F1B, shares=2),
        "two pipelines of two stages, each stage sharded by FSDP2 across them",
        calls=_calls(2, 1, _linear_order, shares=2, all_gather=1, reduce_scatter=1),
        tolerance=FP64_TOLERANCE,
    ),
)
