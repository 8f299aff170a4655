"""What a rank of `tidegate bench --inflight` runs. Rank 0 prints a line of JSON for each answer."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

import tidegate
from tidegate.cli.benchmark.inflight import WAITS, Answer, Question
from tidegate.cli.benchmark.ranks import TIMEOUT

_SECONDS_A_ROUND = 0.03


class _Batch:
    """The tensors of one size, used again and again; each call has its own values."""

    def __init__(self, calls: int, total: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        elements = max(1, total // 4 // ranks)
        self.parts = [torch.full((elements,), 1000.0 * rank + call) for call in range(calls)]
        self.wholes = [torch.empty(elements * ranks) for _ in range(calls)]

    def run(self) -> tuple[float, float]:
        """Seconds for issuing all calls, and until the last is done."""
        begin = time.perf_counter()
        works = [
            dist.all_gather_into_tensor(whole, part, async_op=True)
            for whole, part in zip(self.wholes, self.parts, strict=True)
        ]
        issued = time.perf_counter()
        for work in works:
            work.wait()
        return issued - begin, time.perf_counter() - begin

    def check(self) -> None:
        for call, whole in enumerate(self.wholes):
            for rank, part in enumerate(whole.view(dist.get_world_size(), -1)):
                if not bool((part == 1000.0 * rank + call).all()):
                    raise RuntimeError(f"wrong result: call {call}, part of rank {rank}")
            whole.zero_()


def measure(question: Question) -> Iterator[Answer]:
    """The answers, on every rank; budgets take turns within each round."""
    torch.set_num_threads(1)
    dist.init_process_group("tidegate", timeout=TIMEOUT)
    for total in question.sizes:
        batch = _Batch(question.calls, total)
        batch.run()
        repeats = _repeats(batch)
        cells = [
            (budget, wait)
            for budget in question.budgets()
            for wait in (WAITS if budget else WAITS[:1])
        ]
        rounds: list[list[dict[str, Any]]] = [[] for _ in cells]
        for _ in range(question.rounds):
            for (budget, wait), found in zip(cells, rounds, strict=True):
                found.append(_round(batch, budget, wait, repeats))
        for (budget, wait), found in zip(cells, rounds, strict=True):
            yield Answer(
                total,
                budget,
                wait,
                [one["seconds"] for one in found],
                [one["issuing"] for one in found],
                max(one["high_water_ops"] for one in found),
                max(one["high_water_bytes"] for one in found),
                sum(one["promotions"] for one in found),
            )
    tidegate.set_limits()
    dist.barrier()
    dist.destroy_process_group()


def _round(batch: _Batch, budget: dict[str, int], wait: str, repeats: int) -> dict[str, Any]:
    limits: dict[str, Any] = {**budget, "wait": wait}
    tidegate.set_limits(**limits)
    before = tidegate.stats()["admission"]
    dist.barrier()
    batch.run()
    times = [batch.run() for _ in range(repeats)]
    batch.check()
    after = tidegate.stats()["admission"]
    return {
        "issuing": sum(issuing for issuing, _ in times) / repeats,
        "seconds": sum(seconds for _, seconds in times) / repeats,
        "high_water_ops": after["high_water_ops"],
        "high_water_bytes": after["high_water_bytes"],
        "promotions": after["promotions"] - before["promotions"],
    }


def _repeats(batch: _Batch) -> int:
    """As many batches as fill a round, equal on all ranks."""
    _, took = batch.run()
    longest = torch.tensor([took])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return max(1, round(_SECONDS_A_ROUND / float(longest.item())))


def main(question: Question) -> None:
    for answer in measure(question):
        if os.environ["RANK"] == "0":
            print(json.dumps(asdict(answer)), flush=True)


if __name__ == "__main__":
    main(Question(**json.loads(sys.argv[1])))
