"""State dicts of FSDP1: what is saved and loaded goes on training as if nothing had happened."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)

from tests.integration import models
from tests.integration.rows.base import (
    FP32_TOLERANCE,
    Meter,
    Outcome,
    Row,
    compare,
    greatest_difference,
)
from tests.integration.rows.fsdp1 import full_parameters, wrap
from tests.support.workers import RankContext

# Never `offload_to_cpu`: where the parameters are on the CPU already, torch copies nothing, frees
# the gathered memory and then reads it (a crash with any backend, torch 2.13).
_CONFIGS = {
    "sharded": (
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(),
        ShardedOptimStateDictConfig(),
    ),
    "full": (StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()),
    "rank0": (
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
        FullOptimStateDictConfig(rank0_only=True),
    ),
}


@contextmanager
def _as(model: FullyShardedDataParallel, kind: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FullyShardedDataParallel.state_dict_type(model, *_CONFIGS[kind]):
            yield


def _other() -> torch.nn.Module:
    """The same network with other contents, different on every rank."""
    model = models.build()
    for value in model.parameters():
        torch.nn.init.normal_(value)
    return model


def _from_rank_zero(state: dict) -> dict:
    held = [state]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def _round_trip(kind: str, **options):
    def run(context: RankContext) -> Outcome:
        model = wrap(models.build(), **options)
        optimizer = models.train(model, context.rank)
        loaded = wrap(_other(), **options)
        with Meter() as meter:
            with _as(model, kind):
                state = model.state_dict()
                momenta = FullyShardedDataParallel.optim_state_dict(model, optimizer)
            if kind == "rank0":
                assert bool(state) == (context.rank == 0)
                state = _from_rank_zero(state)
            if kind != "sharded":
                union = models.union_oracle(context.world_size)
                assert greatest_difference(state, union) <= FP32_TOLERANCE
            with _as(loaded, kind):
                loaded.load_state_dict(state)
                loaded_optimizer = models.sgd(loaded)
                loaded_optimizer.load_state_dict(
                    FullyShardedDataParallel.optim_state_dict_to_load(
                        loaded, loaded_optimizer, momenta
                    )
                )
        # Both go on: parameters and momenta must have been the same bits.
        models.train(model, context.rank, optimizer=optimizer)
        models.train(loaded, context.rank, optimizer=loaded_optimizer)
        return compare(full_parameters(loaded), full_parameters(model), meter.used)

    return run


def _row(name: str, world_size: int, kind: str, **options) -> Row:
    what = {
        "sharded": "SHARDED_STATE_DICT",
        "full": "FULL_STATE_DICT",
        "rank0": "FULL_STATE_DICT on rank 0 only",
    }
    return Row(
        name,
        world_size,
        _round_trip(kind, **options),
        f"{what[kind]} of model and optimizer, saved, loaded, trained on",
        calls={},
        some=frozenset({"all_gather"}),
        may=frozenset({"all_reduce", "broadcast"}),
        tolerance=0.0,
    )


ROWS = (
    _row("fsdp1_sharded_state", 3, "sharded"),
    _row("fsdp1_sharded_state_orig", 2, "sharded", use_orig_params=True),
    _row("fsdp1_full_state", 3, "full"),
    _row("fsdp1_full_state_orig", 2, "full", use_orig_params=True),
    _row("fsdp1_rank0_state", 4, "rank0"),
)
