"""A program that runs under torchrun with TORCH_DISTRIBUTED_DEBUG=DETAIL, and who starts it.

    torchrun ... -m tests.integration.detailed DIRECTORY

Each rank writes what it found to DIRECTORY/rank<r>.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.rows.base import (
    FP32_TOLERANCE,
    Tensors,
    digest_of,
    greatest_difference,
    local_parameters,
    local_shards,
)
from tests.integration.rows.fsdp2 import shard
from tests.integration.torchrun import torchrun
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.counters import traffic

GROUP_TIMEOUT_S = 60.0


def plain(rank: int, n: int) -> None:
    """Every operation once, synchronously and not."""
    mine = torch.arange(n * 3.0).view(n, 3) + 100 * rank
    every = torch.stack([torch.arange(n * 3.0).view(n, 3) + 100 * r for r in range(n)])
    total = every.sum(0)
    for asynchronous in (False, True):

        def done(work: Any) -> None:
            assert (work is not None) == asynchronous, work  # noqa: B023
            if work is not None:
                work.wait()

        reduced = mine.clone()
        done(dist.all_reduce(reduced, async_op=asynchronous))
        assert torch.equal(reduced, total)
        gathered = torch.empty(n * n, 3)
        done(all_gather_single(gathered, mine, async_op=asynchronous))
        assert torch.equal(gathered, every.flatten(0, 1))
        parts = [torch.empty(n, 3) for _ in range(n)]
        done(dist.all_gather(parts, mine, async_op=asynchronous))
        assert torch.equal(torch.stack(parts), every)
        share = torch.empty(1, 3)
        done(reduce_scatter_single(share, mine, dist.ReduceOp.SUM, async_op=asynchronous))
        assert torch.equal(share[0], total[rank])
        sent = mine.clone()
        done(dist.broadcast(sent, src=n - 1, async_op=asynchronous))
        assert torch.equal(sent, every[-1])
        reduced = mine.clone()
        done(dist.reduce(reduced, dst=0, async_op=asynchronous))
        assert rank != 0 or torch.equal(reduced, total)
        at_root = [torch.empty(n, 3) for _ in range(n)] if rank == 0 else None
        done(dist.gather(mine, at_root, dst=0, async_op=asynchronous))
        assert at_root is None or torch.equal(torch.stack(at_root), every)
        rows = list(mine.clone().split(1)) if rank == 0 else None
        row = torch.empty(1, 3)
        done(dist.scatter(row, rows, src=0, async_op=asynchronous))
        assert torch.equal(row[0], every[0][rank])
        swapped = torch.empty(n, 3)
        done(dist.all_to_all_single(swapped, mine, async_op=asynchronous))
        assert torch.equal(swapped, every[:, rank])
        done(dist.barrier(async_op=asynchronous))
    after, before = (rank + 1) % n, (rank - 1) % n
    received = torch.empty(n, 3)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, received, before)]
    )
    for work in works:
        work.wait()
    assert torch.equal(received, every[before])


def fsdp2(rank: int, n: int) -> tuple[Tensors, float]:
    model = models.build()
    shard(model, init_device_mesh("cpu", (n,)))
    models.train(model, rank)
    found = local_parameters(model)
    wanted = local_shards(models.union_oracle(n), n, rank)
    return found, greatest_difference(found, wanted)


def ddp(rank: int, n: int) -> tuple[Tensors, float]:
    model = DistributedDataParallel(models.build())
    models.train(model, rank)
    found = {name: value.detach() for name, value in model.module.named_parameters()}
    return found, greatest_difference(found, models.union_oracle(n))


# Rank 1 makes another call than the others: another operation, size or dtype.
MISTAKES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "operation": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.broadcast(torch.ones(4), src=0),
    ),
    "shape": (
        lambda: dist.all_reduce(torch.ones(4, 2)),
        lambda: dist.all_reduce(torch.ones(4, 3)),
    ),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64)),
    ),
}


def mistake(name: str, rank: int) -> dict[str, Any]:
    dist.barrier()
    began = time.monotonic()
    try:
        MISTAKES[name][rank == 1]()
    except RuntimeError as error:
        return {"text": str(error), "seconds": time.monotonic() - began}
    raise AssertionError(f"{name}: no error")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("tidegate", timeout=timedelta(seconds=GROUP_TIMEOUT_S))
    rank, n = dist.get_rank(), dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    found: dict[str, Any] = {
        "level": dist.get_debug_level().name,
        "wrapper": type(backend).__name__,
        "backend": dist.get_backend(),
    }
    plain(rank, n)
    sharded, found["fsdp2"] = fsdp2(rank, n)
    replicated, found["ddp"] = ddp(rank, n)
    found["digest"] = digest_of(sharded) + digest_of(replicated)
    now = traffic()
    assert now is not None
    found["calls"], found["shm_bytes"] = dict(now.calls), now.shm_bytes
    found["mistakes"] = {name: mistake(name, rank) for name in MISTAKES}
    # A call that was refused did not reach the backend: the group is as good as before.
    plain(rank, n)
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


# --- outside the ranks ----------------------------------------------------------------------------

# torch's own words for what each side called.
SIDES = {
    "operation": ("ALLREDUCE", "BROADCAST"),
    "shape": ("[4, 2]", "[4, 3]"),
    "dtype": ("Float", "Double"),
}


def launch(directory: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank found."""
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    torchrun("tests.integration.detailed", directory, ranks=ranks, env=env)
    return [json.loads((directory / f"rank{r}.json").read_text()) for r in range(ranks)]


def assert_wrapped(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert (one["level"], one["backend"]) == ("DETAIL", "tidegate")
        assert one["wrapper"] == "_ProcessGroupWrapper", one["wrapper"]
        assert one["fsdp2"] <= FP32_TOLERANCE
        assert one["ddp"] <= FP32_TOLERANCE


def assert_named(name: str, found: list[dict[str, Any]]) -> None:
    """Every rank says at once how its call differs from rank 1's, and that from rank 0's."""
    for rank, one in enumerate(found):
        mistake = one["mistakes"][name]
        assert mistake["seconds"] < 5, mistake
        for word in (*SIDES[name], f"Rank {rank}", "Rank 0" if rank == 1 else "Rank 1"):
            assert word in mistake["text"], (rank, word, mistake["text"])


if __name__ == "__main__":
    main()
