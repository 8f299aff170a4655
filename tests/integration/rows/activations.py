"""Activation checkpointing: forward runs again within backward, gathers included."""

from __future__ import annotations

import functools

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh

from tests.integration import models
from tests.integration.models import UNITS, Block
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
from tests.integration.rows.fsdp1 import full_parameters, wrap
from tests.integration.rows.fsdp2 import shard
from tests.support.workers import RankContext

REENTRANT, NO_REENTRANT = CheckpointImpl.REENTRANT, CheckpointImpl.NO_REENTRANT


def _plain_names(tensors: Tensors) -> Tensors:
    """Names as in the network without its wrappers."""
    prefix = "_checkpoint_wrapped_module."
    return {name.replace(prefix, ""): value for name, value in tensors.items()}


class _Calls:
    """Counts forward passes of the blocks of a model."""

    def __init__(self, model: models.Net) -> None:
        self.forwards = 0
        for block in model.blocks:
            block.up.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.forwards += 1

    def check(self, each_block: int) -> None:
        assert self.forwards == 2 * models.STEPS * each_block, self.forwards


def _checkpointed(impl: CheckpointImpl) -> tuple[models.Net, _Calls]:
    model = models.build()
    calls = _Calls(model)
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=impl),
        check_fn=lambda module: isinstance(module, Block),
    )
    return model, calls


def _fsdp2(impl: CheckpointImpl):
    """Blocks are wrapped from the inside: the checkpoint first, the unit around it."""

    def run(context: RankContext) -> Outcome:
        n = context.world_size
        model, calls = _checkpointed(impl)
        shard(model, init_device_mesh("cpu", (n,)))
        with Meter() as meter:
            models.train(model, context.rank)
        calls.check(2)
        wanted = local_shards(models.union_oracle(n), n, context.rank)
        return compare(_plain_names(local_parameters(model)), wanted, meter.used)

    return run


def _fsdp1(impl: CheckpointImpl):
    """The units are made first and the checkpoints within them, as FSDP1 recommends."""

    def run(context: RankContext) -> Outcome:
        module = models.build()
        calls = _Calls(module)
        model = wrap(module)
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=impl),
            check_fn=lambda module: isinstance(module, Block),
        )
        with Meter() as meter:
            models.train(model, context.rank)
        calls.check(2)
        wanted = models.union_oracle(context.world_size)
        return compare(_plain_names(full_parameters(model)), wanted, meter.used)

    return run


def _outside(context: RankContext) -> Outcome:
    """Checkpoints around the units: what runs again gathers again."""
    n = context.world_size
    model = models.build()
    calls = _Calls(model)
    shard(model, init_device_mesh("cpu", (n,)))
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block, checkpoint_impl=NO_REENTRANT)
    with Meter() as meter:
        models.train(model, context.rank)
    calls.check(2)
    wanted = local_shards(models.union_oracle(n), n, context.rank)
    return compare(_plain_names(local_parameters(model)), wanted, meter.used)


def _offloaded(context: RankContext) -> Outcome:
    """Activations that wait for backward are moved by hooks; here from the CPU to the CPU."""
    n = context.world_size
    model: nn.Module = models.build()
    calls = _Calls(model)  # type: ignore[arg-type]
    shard(model, init_device_mesh("cpu", (n,)))
    with Meter() as meter:
        models.train(offload_wrapper(model), context.rank)
    calls.check(1)
    wanted = local_shards(models.union_oracle(n), n, context.rank)
    return compare(local_parameters(model), wanted, meter.used)


FULL = each_step(all_gather=2 * UNITS - 1, reduce_scatter=UNITS)

ROWS = (
    Row("ac_fsdp2", 2, _fsdp2(NO_REENTRANT), "checkpoint_wrapper within fully_shard", FULL),
    Row("ac_fsdp2_reentrant", 3, _fsdp2(REENTRANT), "the same, reentrant", FULL),
    Row("ac_fsdp2_outside", 3, _outside, "checkpoint_wrapper around fully_shard", FULL),
    Row("ac_fsdp1", 3, _fsdp1(NO_REENTRANT), "checkpoint_wrapper within FSDP1's units", FULL),
    Row("ac_fsdp1_reentrant", 2, _fsdp1(REENTRANT), "the same, reentrant", FULL),
    Row("ac_offload", 2, _offloaded, "offload_wrapper around fully_shard", FULL),
)
