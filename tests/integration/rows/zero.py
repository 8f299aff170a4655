"""ZeroRedundancyOptimizer: each rank keeps the state of a part of the parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import STEPS, Recipe
from tests.integration.rows.base import Meter, Outcome, Row, compare
from tests.integration.rows.ddp import replicas
from tests.support.workers import RankContext

ADAMW = {"lr": models.RATE / 10, "foreach": False}
PARAMETERS = 15


def _sharded(model: nn.Module, **options) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, **{**ADAMW, **options}
    )


def _plain(context: RankContext, steps_again: bool = False) -> dict[str, torch.Tensor]:
    """DDP with the whole AdamW on every rank."""
    model = DistributedDataParallel(models.build())
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    models.train(model, context.rank, optimizer=optimizer)
    if steps_again:
        models.train(model, context.rank, optimizer=optimizer)
    return replicas(model)


def _zero(**options):
    def run(context: RankContext) -> Outcome:
        wanted = _plain(context)
        model = DistributedDataParallel(models.build())
        optimizer = _sharded(model, **options)
        with Meter() as meter:
            models.train(model, context.rank, optimizer=optimizer)
        kept = [value for group in optimizer.optim.param_groups for value in group["params"]]
        assert 0 < len(kept) < PARAMETERS, len(kept)
        return compare(replicas(model), wanted, meter.used)

    return run


def _against_the_union(context: RankContext) -> Outcome:
    model = DistributedDataParallel(models.build())
    with Meter() as meter:
        models.train(model, context.rank, optimizer=_sharded(model))
    wanted = models.union_oracle(context.world_size, Recipe(adamw=True))
    return compare(replicas(model), wanted, meter.used)


def _consolidated(context: RankContext) -> Outcome:
    """The state, collected on one rank, is what an AdamW of one process needs to go on."""
    wanted = _plain(context, steps_again=True)
    target = context.world_size - 1
    model = DistributedDataParallel(models.build())
    optimizer = _sharded(model)
    models.train(model, context.rank, optimizer=optimizer)
    with Meter() as meter:
        optimizer.consolidate_state_dict(to=target)
    holder = [optimizer.state_dict() if context.rank == target else None]
    torch.distributed.broadcast_object_list(holder, src=target)
    alone = torch.optim.AdamW(model.parameters(), **ADAMW)
    assert holder[0] is not None
    alone.load_state_dict(holder[0])
    models.train(model, context.rank, optimizer=alone)
    return compare(replicas(model), wanted, meter.used)


def _batches(rank: int) -> int:
    return STEPS - rank


def _joined(context: RankContext) -> Outcome:
    """Ranks with 5, 4 and 3 batches; who is done goes on stepping and broadcasting its part.

    DDP reduces into other memory on a rank that is done, so its part is stepped with the gradients
    that it left, which are zeros here.
    """
    model = DistributedDataParallel(models.build(), gradient_as_bucket_view=True)
    optimizer = _sharded(model)
    with Meter() as meter, Join([model, optimizer]):
        for step in range(_batches(context.rank)):
            x, y = models.batch(step, context.rank, torch.float32)
            models.loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    owners = {
        id(value): rank
        for rank, groups in enumerate(optimizer._partition_parameters())
        for group in groups
        for value in group["params"]
    }
    wanted = _joined_oracle(context.world_size, [owners[id(v)] for v in model.parameters()])
    return compare(replicas(model), wanted, meter.used)


def _joined_oracle(n: int, owners: list[int]) -> dict[str, torch.Tensor]:
    model = models.build()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        for rank in range(n):
            if step < _batches(rank):
                x, y = models.batch(step, rank, torch.float32)
                (models.loss_of(model(x), y) / n).backward()
        for value, owner in zip(model.parameters(), owners, strict=True):
            if step >= _batches(owner):
                assert value.grad is not None
                value.grad.zero_()
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def _overlapped(context: RankContext) -> Outcome:
    """The update of a bucket starts as soon as its gradients are there, within DDP's hook."""
    model = DistributedDataParallel(models.build(), gradient_as_bucket_view=True)
    optimizer = _sharded(model, overlap_with_ddp=True)
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    # The first two backward passes settle the buckets, and nothing is updated.
    skipped = 2
    with Meter() as meter:
        for step in range(skipped + STEPS):
            x, y = models.batch(max(step - skipped, 0), context.rank, torch.float32)
            models.loss_of(model(x), y).backward()
            optimizer.step()
            model.zero_grad()
    wanted = models.union_oracle(context.world_size, Recipe(adamw=True))
    return compare(replicas(model), wanted, meter.used)


# AdamW divides by the root of the second moment: where that is tiny, rounding is amplified.
ADAMW_TOLERANCE = 5e-4
_CALLS = {"all_reduce": STEPS, "broadcast": 2 + STEPS * PARAMETERS}
# As DDP's Join alone, and the broadcasts of every step.
_JOINED = {"all_reduce": 3 * STEPS + 2, "broadcast": 3 + STEPS * PARAMETERS}
# One bucket, owned by one rank.
_OVERLAPPED = {"all_reduce": 2 + STEPS, "broadcast": 2 + STEPS}

ROWS = (
    Row("zero_w2", 2, _zero(), "AdamW in parts, bit for bit as whole", _CALLS, tolerance=0.0),
    Row("zero_w3", 3, _zero(), "the same, 3 ranks", _CALLS, tolerance=0.0),
    Row(
        "zero_bucket_view",
        4,
        _zero(parameters_as_bucket_view=True),
        "parameters_as_bucket_view: one broadcast for each rank's part",
        {"all_reduce": STEPS, "broadcast": 2 + STEPS * 4},
        tolerance=0.0,
    ),
    Row(
        "zero_union",
        3,
        _against_the_union,
        "AdamW in parts against one process",
        _CALLS,
        tolerance=ADAMW_TOLERANCE,
    ),
    Row(
        "zero_consolidated",
        3,
        _consolidated,
        "consolidate_state_dict, then AdamW as a whole",
        {"broadcast": 2 * (3 - 1)},  # size and bytes of every other rank's state
        tolerance=0.0,
    ),
    Row(
        "zero_join",
        3,
        _joined,
        "Join of DDP and ZeroRedundancyOptimizer: 5, 4 and 3 batches",
        _JOINED,
        tolerance=ADAMW_TOLERANCE,
    ),
    Row(
        "zero_overlap",
        2,
        _overlapped,
        "hook_with_zero_step: updates within DDP's hook",
        _OVERLAPPED,
        tolerance=ADAMW_TOLERANCE,
    ),
)
