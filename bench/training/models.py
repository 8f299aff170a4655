"""The models whose training is timed, and how they are sharded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from examples.train_fsdp2 import Batches, Block, ByteGPT, read_text

SHARDINGS = ("fsdp2", "fsdp1")

# Loss of a model at a step; it has drawn the batch of that step for its rank alone.
LossOf = Callable[[nn.Module, int], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """`build` makes the same parameters whenever the seed is; a unit of sharding is a `unit`."""

    build: Callable[[], nn.Module]
    unit: type[nn.Module]
    losses: Callable[[int, int], LossOf]  # of a rank out of so many
    rate: float


class Wide(nn.Module):
    """A square layer without bias: width^2 parameters for 6 width^2 operations a row and step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        # Keeps the scale of what goes through, so that every layer matters to the loss.
        nn.init.normal_(self.linear.weight, std=(2 / width) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


def demo(width: int = 128, layers: int = 4, length: int = 128, batch: int = 8) -> Workload:
    """The byte-level GPT of `tidegate demo`, at its sizes: much arithmetic for 0.9 M parameters."""

    def losses(rank: int, ranks: int) -> LossOf:
        batches = Batches(read_text(None), batch, length, 0, rank, ranks)

        def loss(model: nn.Module, step: int) -> torch.Tensor:
            inputs, targets = batches[step]
            return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

        return loss

    return Workload(lambda: ByteGPT(width, layers, length), Block, losses, rate=0.03)


def wide(width: int = 2048, layers: int = 4, batch: int = 2) -> Workload:
    """Linear layers of 16 MiB for two rows a rank: hardly anything but communication."""

    def losses(rank: int, ranks: int) -> LossOf:
        def loss(model: nn.Module, step: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(step * ranks + rank)
            rows = torch.randn(batch, width, generator=generator)
            return F.mse_loss(model(rows), rows)

        return loss

    return Workload(
        lambda: nn.Sequential(*(Wide(width) for _ in range(layers))), Wide, losses, rate=0.1
    )


WORKLOADS: dict[str, Callable[..., Workload]] = {"demo": demo, "wide": wide}
# The same, too small to say anything of time.
TINY: dict[str, dict[str, int]] = {
    "demo": {"width": 16, "layers": 2, "length": 8, "batch": 2},
    "wide": {"width": 64, "layers": 2},
}


def shard(
    workload: Workload, sharding: str, group: Any, in_group_memory: bool
) -> tuple[nn.Module, Any]:
    """A new model over `group`, and its optimizer; `in_group_memory` is fsdp2's alone."""
    torch.manual_seed(0)
    model = workload.build()
    if sharding == "fsdp1":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations that concern FSDP1 itself
            model = FullyShardedDataParallel(
                model,
                process_group=group,
                auto_wrap_policy=ModuleWrapPolicy({workload.unit}),
                device_id=torch.device("cpu"),
            )
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        units = [module for module in model.modules() if isinstance(module, workload.unit)]
        for module in (*units, model):
            fully_shard(module, mesh=mesh)
            if in_group_memory:
                module.set_allocate_memory_from_process_group_for_comm(True)
    return model, torch.optim.SGD(model.parameters(), lr=workload.rate, momentum=0.9)
