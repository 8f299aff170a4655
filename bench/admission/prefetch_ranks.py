"""What a rank of bench.prefetch runs under torchrun. Rank 0 prints a line of JSON at the end.

A training loop that gathers the parameters of blocks ahead of their use with FSDP2's public
``unshard(async_op=True)``, under several limits in turn.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import tidegate
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Trainer:
    """The same model and data whenever it is made; plain SGD."""

    def __init__(self, blocks: int, width: int, ahead: int) -> None:
        torch.manual_seed(11)
        self.blocks = [
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        ]
        self.model = nn.Sequential(*self.blocks)
        for block in self.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.ahead = ahead
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        self.inputs = torch.randn(8, width, generator=generator)

    def step(self) -> float:
        for block in self.blocks[: self.ahead]:
            block.unshard(async_op=True)
        hidden = self.inputs
        for number, block in enumerate(self.blocks):
            if number + self.ahead < len(self.blocks):
                self.blocks[number + self.ahead].unshard(async_op=True)
            hidden = block(hidden)
        loss = hidden.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)


def staged_bytes() -> int:
    """Pages of the memory that ranks share, as far as this process has touched them."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = "tidegate" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def run(trainer: Trainer, limits: dict[str, Any], steps: int) -> dict[str, Any]:
    tidegate.set_limits(**limits)
    before = tidegate.stats()["admission"]
    dist.barrier()
    begin = time.perf_counter()
    losses = [trainer.step() for _ in range(steps)]
    took = time.perf_counter() - begin
    after = tidegate.stats()["admission"]
    return {
        "seconds": took / steps,
        "losses": [loss.hex() for loss in losses],
        "high_water_ops": after["high_water_ops"],
        "high_water_bytes": after["high_water_bytes"],
        "promotions": after["promotions"] - before["promotions"],
        "staged_bytes": staged_bytes(),
    }


def main(options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tidegate")
    trainers = [
        Trainer(options["blocks"], options["width"], options["ahead"]) for _ in options["limits"]
    ]
    for trainer in trainers:
        trainer.step()
    rounds = [
        [run(*pair, options["steps"]) for pair in zip(trainers, options["limits"], strict=True)]
        for _ in range(options["rounds"])
    ]
    # Each rank has its own marks and losses.
    everybody: list[Any] = [None] * dist.get_world_size()
    tidegate.set_limits()
    dist.all_gather_object(everybody, rounds)
    if dist.get_rank() == 0:
        print(json.dumps(everybody), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
