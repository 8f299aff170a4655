"""What torch itself refuses on a machine without an accelerator, whatever the backend.

Each function runs inside the ranks and returns the error of torch, as its type's name and its text;
afterwards the group must still work. docs/features.md lists them, with the versions and builds of
torch where they say something else or nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.rows.fsdp1 import wrap
from tests.support.workers import RankContext


def _train(model: nn.Module, rank: int) -> None:
    models.train(model, rank)


def _fsdp1_offload(rank: int) -> None:
    _train(wrap(models.build(), cpu_offload=CPUOffload(offload_params=True)), rank)


def _fsdp1_without_device(rank: int) -> None:
    _train(wrap(models.build(), device_id=None), rank)


def _fsdp1_sync_states(rank: int) -> None:
    wrap(models.build(), sync_module_states=True)


def _fsdp2_pinned(rank: int) -> None:
    model = models.build()
    fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=True))
    _train(model, rank)


def _fsdp2_uneven_columns(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layer = nn.Linear(models.FEATURES, models.WIDTH)
    fully_shard(layer, mesh=mesh, shard_placement_fn=lambda value: Shard(value.dim() - 1))


def _ddp_bf16_hook(rank: int) -> None:
    model = DistributedDataParallel(models.build())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)


def _ddp_quantization_hook(rank: int) -> None:
    """It reads an all-gather's future as one tensor of all parts, which only NCCL returns."""
    model = DistributedDataParallel(models.build())
    model.register_comm_hook(None, quantization_hooks.quantization_pertensor_hook)
    _train(model, rank)


def _ddp_batched_power_sgd(rank: int) -> None:
    """It hands a matrix to a function that takes batches of matrices only."""
    model = DistributedDataParallel(models.build())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.batched_powerSGD_hook)
    _train(model, rank)


def _synchronised_batch_norm(rank: int) -> None:
    module = nn.Sequential(nn.Linear(models.FEATURES, models.TARGETS), nn.BatchNorm1d(5))
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(module))
    _train(model, rank)


def _to_partial(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]).redistribute(mesh, [Partial()])


def _context_parallel(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    length = 8 * dist.get_world_size()
    query, key, value = (torch.ones(1, 2, length, 16) for _ in range(3))
    with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
        nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _symmetric_memory(rank: int) -> None:
    symmetric_memory.rendezvous(torch.ones(4), dist.group.WORLD)


MINOR = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
BUILT_FOR_CUDA = torch.version.cuda is not None
_PINS = "Found no NVIDIA driver" if BUILT_FOR_CUDA else "accelerator"
_TO_PARTIAL = "internal use only" if MINOR < (2, 14) else "only Shard to Partial"

# What is tried, the type that torch raises, and a part of its text.
REFUSED: dict[str, tuple[Callable[[int], Any], str, str]] = {
    "FSDP1 CPUOffload": (_fsdp1_offload, "RuntimeError", _PINS),
    "FSDP1 without device_id": (_fsdp1_without_device, "RuntimeError", "non-CPU accelerator"),
    "FSDP1 sync_module_states": (_fsdp1_sync_states, "ValueError", "sync_module_states"),
    "FSDP2 CPUOffloadPolicy(pin_memory=True)": (_fsdp2_pinned, "RuntimeError", _PINS),
    "FSDP2 uneven shards of another dimension": (
        _fsdp2_uneven_columns,
        "NotImplementedError",
        "even sharding",
    ),
    "DDP bf16_compress_hook": (_ddp_bf16_hook, "TypeError", "BF16"),
    "DDP quantization_pertensor_hook": (_ddp_quantization_hook, "RuntimeError", "IndexError"),
    "DDP batched_powerSGD_hook": (_ddp_batched_power_sgd, "AssertionError", ""),
    "DTensor redistribution to Partial": (_to_partial, "RuntimeError", _TO_PARTIAL),
    "context_parallel": (_context_parallel, "NotImplementedError", "sharding strategy"),
    "symmetric memory": (_symmetric_memory, "RuntimeError", "does not support device type cpu"),
    "SyncBatchNorm": (_synchronised_batch_norm, "ValueError", "GPU"),
}
# What this torch does not refuse, and why.
ALLOWED: dict[str, str] = {}
if BUILT_FOR_CUDA:
    ALLOWED["DDP bf16_compress_hook"] = "a torch built for CUDA takes it (row ddp_bf16_hook)"
if MINOR >= (2, 15):
    ALLOWED["DDP quantization_pertensor_hook"] = "from 2.15 on it reads its own list"


def attempt(context: RankContext, name: str) -> tuple[str, str]:
    """Type and text of the error; empty if nothing was raised. The group works afterwards."""
    error = ("", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            REFUSED[name][0](context.rank)
    except Exception as raised:
        error = (type(raised).__name__, str(raised))
    total = torch.tensor([context.rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == context.world_size * (context.world_size + 1) / 2
    return error
