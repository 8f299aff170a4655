"""DistributedDataParallel: its modes, and ranks that do unequal work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import PLAIN, STEPS, Net, Recipe
from tests.integration.rows.base import Meter, Outcome, Row, Tensors, compare
from tests.support.workers import RankContext

Training = Callable[[DistributedDataParallel, int, Recipe], object]
SMALL_BUCKETS_MB = 0.002  # 2 KiB: the 2,070 parameters make several buckets


def replicas(model: DistributedDataParallel) -> Tensors:
    return {name: value.detach() for name, value in model.module.named_parameters()}


def ddp(recipe: Recipe = PLAIN, train: Training = models.train, **options):
    """A row: wraps with `options`, trains, compares with the union."""

    def run(context: RankContext) -> Outcome:
        model = DistributedDataParallel(recipe.build(), **options)
        with Meter() as meter:
            train(model, context.rank, recipe)
        wanted = models.union_oracle(context.world_size, recipe)
        return compare(replicas(model), wanted, meter.used)

    return run


def _accumulate(model: DistributedDataParallel, rank: int, recipe: Recipe) -> None:
    def micro_batch(last: bool):
        return contextlib.nullcontext() if last else model.no_sync()

    models.train(model, rank, recipe, micro_batch=micro_batch)


def _clip(model: DistributedDataParallel, rank: int, recipe: Recipe) -> None:
    """Gradients are whole on every rank: plain clipping, without communication."""

    def clip(max_norm: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    models.train(model, rank, recipe, clip=clip)


def _in_buckets(model: DistributedDataParallel, rank: int, recipe: Recipe) -> None:
    """The gradients are parts of the one bucket, where else each has memory of its own."""
    optimizer = recipe.optimizer(model)
    memories = []

    def look(*_: object) -> None:
        gradients = [value.grad for value in model.parameters()]
        memories.append(len({each.untyped_storage().data_ptr() for each in gradients}))

    optimizer.register_step_pre_hook(look)
    models.train(model, rank, recipe, optimizer=optimizer)
    assert memories == [1] * STEPS, memories


# --- ranks that use different parameters ----------------------------------------------------------


class Branches(Net):
    """Each sample goes through one of the blocks."""

    def forward(self, x: torch.Tensor, branch: int = 0) -> torch.Tensor:
        return self.head(self.blocks[branch](self.stem(x))) * self.scale


def _unused(context: RankContext) -> Outcome:
    """Which block a rank leaves out differs from rank to rank and from step to step."""
    n = context.world_size
    recipe = Recipe(network=Branches)

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        x, y = models.batch(step, rank, torch.float32)
        return models.loss_of(model(x, (step + rank) % 2), y)

    model = DistributedDataParallel(recipe.build(), find_unused_parameters=True)
    optimizer = recipe.optimizer(model)
    with Meter() as meter:
        for step in range(STEPS):
            loss(model, step, context.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
    return compare(
        replicas(model), models.rank_by_rank(n, loss, models.average, recipe), meter.used
    )


# --- ranks that have different numbers of batches -------------------------------------------------


def _batches(rank: int) -> int:
    return STEPS - rank


def _uneven_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor | None:
    if step >= _batches(rank):
        return None
    x, y = models.batch(step, rank, torch.float32)
    return models.loss_of(model(x), y)


def _train_unevenly(model: nn.Module, rank: int, taken: list[int]) -> None:
    """`taken`: gets each step that this rank took, also where the next one throws."""
    optimizer = models.sgd(model)
    for step in range(_batches(rank)):
        loss = _uneven_loss(model, step, rank)
        assert loss is not None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(step)


def _join(context: RankContext) -> Outcome:
    """Rank r has 5 - r batches; who is done shadows the others' collectives with zeros."""
    model = DistributedDataParallel(models.build())
    with Meter() as meter, Join([model]):
        _train_unevenly(model, context.rank, taken=[])
    wanted = models.rank_by_rank(context.world_size, _uneven_loss, models.average)
    # A rank that joins early gets the parameters of the last one at the end.
    return compare(replicas(model), wanted, meter.used)


def _join_or_throw(context: RankContext) -> Outcome:
    """With throw_on_early_termination all ranks hear, in the same iteration, that one is done."""
    model = DistributedDataParallel(models.build())
    taken: list[int] = []
    thrown = ""
    with Meter() as meter:
        try:
            with Join([model], throw_on_early_termination=True):
                _train_unevenly(model, context.rank, taken)
        except RuntimeError as error:
            thrown = str(error)
    assert "exhausted" in thrown, thrown or "nothing was thrown"
    shortest = _batches(context.world_size - 1)
    assert taken == list(range(shortest)), taken

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor | None:
        return _uneven_loss(model, step, rank) if step < shortest else None

    recipe = Recipe(steps=shortest)
    wanted = models.rank_by_rank(context.world_size, loss, models.average, recipe)
    return compare(replicas(model), wanted, meter.used)


# --- buffers --------------------------------------------------------------------------------------


class Normalised(nn.Sequential):
    """Its statistics are those of the rank's samples."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(models.FEATURES, models.WIDTH),
            nn.BatchNorm1d(models.WIDTH),
            nn.Linear(models.WIDTH, models.TARGETS),
        )


def _buffers(context: RankContext) -> Outcome:
    """Before each forward pass all ranks get the statistics of rank 0."""
    recipe = Recipe(network=Normalised)
    model = DistributedDataParallel(recipe.build())
    with Meter() as meter:
        models.train(model, context.rank, recipe)
        model.eval()  # one more pass, which leaves the statistics of the last step everywhere
        model(models.batch(0, context.rank, torch.float32)[0])
    found = replicas(model) | dict(model.module.named_buffers())
    statistics: Tensors = {}

    def loss(module: nn.Module, step: int, rank: int) -> torch.Tensor:
        if statistics and rank == 0:
            for name, value in module.named_buffers():
                value.copy_(statistics[name])
        x, y = models.batch(step, rank, torch.float32)
        output = module(x)
        if rank == 0:
            statistics.update({name: value.clone() for name, value in module.named_buffers()})
        return models.loss_of(output, y)

    wanted = models.rank_by_rank(context.world_size, loss, models.average, recipe)
    return compare(found, wanted | statistics, meter.used)


# The second forward pass rebuilds the buckets, whose layout is broadcast in two calls; not with
# find_unused_parameters. Before that everything is in one bucket of 1 MiB.
_REBUILD = 2
_CALLS = {"all_reduce": STEPS, "broadcast": _REBUILD}
_UNUSED = {"all_reduce": 2 * STEPS}  # gradients, and which parameters were used
# Each iteration: who is active, whether gradients are synchronised, gradients. Then that nobody is
# active, and who has the last parameters, which that rank broadcasts.
_JOINED = {"all_reduce": 3 * STEPS + 2, "broadcast": _REBUILD + 1}
# At 4 ranks 2 iterations: as above, and whether somebody is done; the third stops after that.
_THROWN = {"all_reduce": 2 * 4 + 2, "broadcast": _REBUILD}

ROWS = (
    Row("ddp_w2", 2, ddp(), "gradients averaged in buckets", _CALLS),
    Row("ddp_w4", 4, ddp(), "the same, 4 ranks", _CALLS),
    Row(
        "ddp_buckets",
        3,
        ddp(bucket_cap_mb=SMALL_BUCKETS_MB),
        "several buckets",
        {"all_reduce": 1 + (STEPS - 1) * 3, "broadcast": _REBUILD},
    ),
    Row(
        "ddp_bucket_view",
        3,
        ddp(train=_in_buckets, gradient_as_bucket_view=True),
        "gradient_as_bucket_view: gradients in the memory of the bucket",
        _CALLS,
    ),
    Row(
        "ddp_static_graph",
        3,
        ddp(static_graph=True),
        "static_graph: the used parameters are asked for once",
        {"all_reduce": STEPS + 1, "broadcast": _REBUILD},
    ),
    Row("ddp_unused", 2, _unused, "find_unused_parameters: other blocks on other ranks", _UNUSED),
    Row("ddp_unused_w3", 3, _unused, "the same, 3 ranks", _UNUSED),
    Row(
        "ddp_no_sync",
        3,
        ddp(Recipe(micro_batches=3), _accumulate),
        "no_sync: 3 micro-batches, one reduction",
        _CALLS,
    ),
    Row("ddp_clip", 3, ddp(Recipe(max_norm=0.05), _clip), "clip_grad_norm_", _CALLS),
    Row("ddp_join", 3, _join, "Join: 5, 4 and 3 batches", _JOINED),
    Row("ddp_join_throws", 4, _join_or_throw, "Join that throws, on all ranks at once", _THROWN),
    Row(
        "ddp_buffers",
        3,
        _buffers,
        "BatchNorm statistics broadcast from rank 0",
        {"all_reduce": STEPS, "broadcast": _REBUILD + 2 * (STEPS + 1)},
    ),
)
