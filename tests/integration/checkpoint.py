"""Saving at one world size and loading at another, run inside the ranks."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tests.integration import models
from tests.integration.rows import shard
from tests.support.counters import Traffic, traffic
from tests.support.workers import RankContext

SAVED_AT = 4
LOADED_AT = (2, 1)

Parts = dict[str, torch.Tensor]


def _state(context: RankContext, seed: int | None):
    model = models.build()
    if seed is not None:  # what is loaded must not be there already
        torch.manual_seed(seed)
        for value in model.parameters():
            torch.nn.init.normal_(value)
    shard(model, init_device_mesh("cpu", (context.world_size,)))
    return model


def _parts(model, optimizer) -> Parts:
    """This rank's parts of parameters and momenta, by name; nothing is communicated."""
    parts = {}
    for name, value in model.named_parameters():
        for key, tensor in (("", value), (".momentum", optimizer.state[value]["momentum_buffer"])):
            assert isinstance(tensor, DTensor), name
            parts[name + key] = tensor.to_local().detach().clone()
    return parts


def save(context: RankContext, path: str) -> tuple[Parts, Traffic | None]:
    """Trains, saves, and returns this rank's parts of what was saved."""
    model = _state(context, None)
    optimizer = models.train(model, context.rank)
    before = traffic()
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=path)
    after = traffic()
    used = after.since(before) if after is not None and before is not None else None
    return _parts(model, optimizer), used


def load(context: RankContext, path: str) -> Parts:
    """Loads into a model with other contents and returns this rank's parts."""
    model = _state(context, 99)
    optimizer = models.sgd(model)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
    return _parts(model, optimizer)


def join(per_rank: list[Parts]) -> Parts:
    """The whole tensors, from the parts that came over the pipes in rank order."""
    return {name: torch.cat([parts[name] for parts in per_rank]) for name in per_rank[0]}


def greatest_difference(one: Parts, other: Parts) -> float:
    """Zero only if both hold the same bits."""
    if one.keys() != other.keys():
        return float("inf")
    greatest = 0.0
    for name, value in one.items():
        if value.shape != other[name].shape:
            return float("inf")
        if not torch.equal(value.view(torch.uint8), other[name].view(torch.uint8)):
            greatest = max(greatest, float((value - other[name]).abs().max()), 1e-300)
    return greatest
