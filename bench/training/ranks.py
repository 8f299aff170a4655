"""What a rank of bench.fsdp_step runs under torchrun: every cell, the backends in turn.

Rank 0 prints a line of JSON for each cell as soon as it is measured.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest import mock

import tidegate
import torch
import torch.distributed as dist
from tidegate import _null_backend

from bench.training.models import TINY, WORKLOADS, LossOf, shard
from examples.train_fsdp2 import CommunicationClock

# What a user chooses between, and `null`, which communicates nothing.
BACKENDS = {"gloo": "gloo", "tidegate": "tidegate", "null": _null_backend.NAME}
GROUP_MEMORY = "group memory"  # tidegate, with FSDP2's buffers in the group's memory
WARMUPS = 3
TIMEOUT = timedelta(seconds=300)


class CallClock(ExitStack):
    """Notes how long each call of a collective takes while the context is open."""

    NAMES = (*CommunicationClock.NAMES, "all_gather")  # FSDP1 gathers lists on a CPU

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def __enter__(self) -> CallClock:
        for name in self.NAMES:
            if hasattr(dist, name):
                self.enter_context(mock.patch.object(dist, name, self._timed(getattr(dist, name))))
        return self

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds.append(time.perf_counter() - start)

        return timed


@dataclass
class Variant:
    """A model of its own on one backend, and what was measured of it on this rank."""

    model: Any
    optimizer: Any
    loss_of: LossOf
    step: int = 0
    seconds: list[float] = field(default_factory=list)  # of a step, one a round
    in_collectives: list[float] = field(default_factory=list)
    moving: list[float] = field(default_factory=list)  # of these, without the wait for later ranks
    faults: list[float] = field(default_factory=list)  # pages that were new to the process
    losses: list[float] = field(default_factory=list)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.loss_of(self.model, self.step)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.step += 1

    def timed(self, steps: int) -> None:
        # What others left behind is not this one's to collect, and it finds caches and allocators
        # as its own last step has left them.
        gc.collect()
        self.train(1)
        dist.barrier()
        faults = page_faults()
        with CallClock() as clock:
            start = time.perf_counter()
            self.train(steps)
            elapsed = time.perf_counter() - start
        self.faults.append((page_faults() - faults) / steps)
        self.seconds.append(elapsed / steps)
        self.in_collectives.append(sum(clock.seconds) / steps)
        # All ranks make the same calls, and the last to come waits for nobody.
        self.moving.append(sum(agree(clock.seconds, dist.ReduceOp.MIN)) / steps)


def measure(name: str, sharding: str, options: dict[str, Any], groups: dict[str, Any]) -> Any:
    """One cell: the same on all ranks but for what `report` leaves to each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    workload = WORKLOADS[name](**(TINY[name] if options["tiny"] else {}))
    loss_of = workload.losses(rank, ranks)
    variants = {
        backend: Variant(*shard(workload, sharding, group, False), loss_of)
        for backend, group in groups.items()
    }
    if sharding == "fsdp2":
        model, optimizer = shard(workload, sharding, groups["tidegate"], True)
        variants[GROUP_MEMORY] = Variant(model, optimizer, loss_of)
    before = resident_bytes()
    for variant in variants.values():
        variant.train(WARMUPS)
    order = list(variants.values())
    for number in range(options["rounds"]):
        # None always follows the same other.
        turn = number % len(order)
        for variant in order[turn:] + order[:turn]:
            variant.timed(options["steps"])
    return {
        **{"model": name, "sharding": sharding, "ranks": ranks},
        "parameters": sum(value.numel() for value in workload.build().parameters()),
        "threads": torch.get_num_threads(),
        "page_bytes": resource.getpagesize(),
        "resident_bytes": resident_bytes() - before,
        "variants": {
            backend: report(variant, checked=backend != "null")
            for backend, variant in variants.items()
        },
    }


def report(variant: Variant, checked: bool) -> dict[str, list[float]]:
    """A step lasts until the last rank has done it; losses are means over the ranks."""
    return {
        "seconds": agree(variant.seconds, dist.ReduceOp.MAX),
        "in_collectives": agree(variant.in_collectives, dist.ReduceOp.AVG),
        "moving": variant.moving,
        "faults": agree(variant.faults, dist.ReduceOp.AVG),
        "losses": agree(variant.losses, dist.ReduceOp.AVG) if checked else [],
    }


def agree(values: list[float], op: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    found: list[float] = tensor.tolist()
    return found


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    """What this rank has read where it lay in a peer's tensor."""
    return int(tidegate.stats()["links"]["shm"]["resident_bytes"])


def main(options: dict[str, Any]) -> None:
    # More threads than cores would make the ranks fight each other inside every matmul.
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, cores // int(os.environ["WORLD_SIZE"])))
    # What null leaves in its outputs may be subnormal, at which arithmetic is slow.
    torch.set_flush_denormal(True)
    _null_backend.register()
    dist.init_process_group("tidegate", timeout=TIMEOUT)
    groups = {name: dist.new_group(backend=one, timeout=TIMEOUT) for name, one in BACKENDS.items()}
    gc.freeze()  # What is imported is no garbage, and to look through it takes 0.2 s each time.
    for name in options["models"]:
        for sharding in options["shardings"]:
            cell = measure(name, sharding, options, groups)
            if dist.get_rank() == 0:
                print(json.dumps(cell), flush=True)
            gc.collect()  # FSDP's models are cycles, and the next cell needs the memory
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
