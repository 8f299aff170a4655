"""Distributed checkpoints: saved at one world size, loaded at another."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tests.integration import models
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    Tensors,
    digest_of,
    greatest_difference,
)
from tests.integration.rows.fsdp2 import shard
from tests.support.counters import Traffic
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext


def wrapped(context: RankContext, seed: int | None):
    model = models.build()
    if seed is not None:  # what is loaded must not be there already
        torch.manual_seed(seed)
        for value in model.parameters():
            torch.nn.init.normal_(value)
    shard(model, init_device_mesh("cpu", (context.world_size,)))
    return model


def local_state(model, optimizer) -> Tensors:
    """This rank's parts of parameters and momenta, by name; nothing is communicated."""
    parts = {}
    for name, value in model.named_parameters():
        for key, tensor in (("", value), (".momentum", optimizer.state[value]["momentum_buffer"])):
            assert isinstance(tensor, DTensor), name
            parts[name + key] = tensor.to_local().detach().clone()
    return parts


def save(context: RankContext, path: str) -> tuple[Tensors, Traffic | None]:
    """Trains, saves, and returns this rank's parts of what was saved."""
    model = wrapped(context, None)
    optimizer = models.train(model, context.rank)
    with Meter() as meter:
        state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=path)
    return local_state(model, optimizer), meter.used


def load(context: RankContext, path: str) -> Tensors:
    """Loads into a model with other contents and returns this rank's parts."""
    model = wrapped(context, 99)
    optimizer = models.sgd(model)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
    return local_state(model, optimizer)


def join(per_rank: list[Tensors]) -> Tensors:
    """The whole tensors, from the parts that came over the pipes in rank order."""
    return {name: torch.cat([parts[name] for parts in per_rank]) for name in per_rank[0]}


def _reshard(saved_at: int, loaded_at: int):
    def drive(pools: PoolKeeper) -> list[Outcome]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as path:
            saved = pools.get(saved_at).run(save, path)
            loaded = join(pools.get(loaded_at).run(load, path))
        difference = greatest_difference(loaded, join([parts for parts, _ in saved]))
        return [Outcome(difference, digest_of(loaded), used) for _, used in saved]

    return drive


def _row(saved_at: int, loaded_at: int) -> Row:
    return Row(
        f"dcp_{saved_at}_to_{loaded_at}",
        saved_at,
        None,
        f"dcp.save of FSDP2 with momenta at {saved_at} ranks, dcp.load at {loaded_at}",
        calls={},
        some=frozenset({"all_gather", "broadcast", "gather", "scatter"}),
        tolerance=0.0,
        drive=_reshard(saved_at, loaded_at),
        label=f"{saved_at}>{loaded_at}",
    )


ROWS = (_row(4, 2), _row(4, 1), _row(4, 3), _row(2, 4))
