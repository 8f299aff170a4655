"""Random programs of all-gathers in several groups under random limits, drawn by hypothesis.

Run by test_admission_programs.py on 4 ranks under torchrun: rank 0 draws a program, tells it to the
others, and all run it at the same time. A run that does not end is a timeout of its operations.
"""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import timedelta
from typing import Any

import tidegate
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RANKS = 4
MEMBERS = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [2, 3], [1, 2, 3], [0, 3]]
LARGEST = 20_000  # elements a rank

Program = dict[str, Any]


@st.composite
def limits(draw: st.DrawFn, waits: list[str]) -> dict[str, Any]:
    return {
        "max_ops": draw(st.sampled_from([1, 1, 2, 3, None])),
        "max_bytes": draw(st.sampled_from([None, "4K", "100K", "1M"])),
        "wait": draw(st.sampled_from(waits)),
    }


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """`calls`: of all ranks, group and elements; `seeds`: of each rank's order, None: as listed."""
    count = draw(st.integers(1, 24))
    groups = draw(st.lists(st.integers(0, len(MEMBERS) - 1), min_size=1, max_size=4, unique=True))
    sizes = st.one_of(st.integers(0, 9), st.integers(10, LARGEST))
    calls = [[draw(st.sampled_from(groups)), draw(sizes)] for _ in range(count)]
    # Threads that wait for room while ranks use groups in different orders lose a second's patience
    # for each call: few of such.
    crossed = draw(st.booleans())
    may_block = not crossed or (count <= 4 and draw(st.integers(0, 9)) == 0)
    waits = ["queue", "block"] if may_block else ["queue"]
    seed = draw(st.integers(0, 1 << 30))
    return {
        "calls": calls,
        # Sync calls in different orders deadlock with any backend.
        "sync": [] if crossed else draw(st.lists(st.integers(0, count - 1), max_size=3)),
        "seeds": [seed + rank if crossed else None for rank in range(RANKS)],
        "waits": [
            draw(st.sampled_from(["in order", "reversed", "shuffled"])) for _ in range(RANKS)
        ],
        "limits": [draw(limits(waits)) for _ in range(RANKS)],
        "sums": draw(st.booleans()),
    }


def values(rank: int, call: int, elements: int) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.float32) + 100_000.0 * rank + call


def order_of(calls: list[tuple[int, int, int]], seed: int | None) -> list[tuple[int, int, int]]:
    """A shuffle that leaves the calls of one group in their order."""
    if seed is None:
        return calls
    queues: dict[int, list[tuple[int, int, int]]] = {}
    for call in calls:
        queues.setdefault(call[1], []).append(call)
    shuffled, generator = [], random.Random(seed)
    while queues:
        group = generator.choice(sorted(queues))
        shuffled.append(queues[group].pop(0))
        if not queues[group]:
            del queues[group]
    return shuffled


def run(program: Program, groups: list[Any]) -> None:
    rank = dist.get_rank()
    mine = [
        (number, group, elements)
        for number, (group, elements) in enumerate(program["calls"])
        if rank in MEMBERS[group]
    ]
    budget = program["limits"][rank]
    tidegate.set_limits(**budget)
    before = tidegate.stats()["admission"]["promotions"]
    pending = []
    summed = torch.full((50,), float(rank))
    sum_work = dist.all_reduce(summed, async_op=True) if program["sums"] else None
    for number, group, elements in order_of(mine, program["seeds"][rank]):
        whole = torch.empty(elements * len(MEMBERS[group]))
        work = dist.all_gather_into_tensor(
            whole,
            values(rank, number, elements),
            group=groups[group],
            async_op=number not in program["sync"],
        )
        pending.append((number, group, elements, work, whole))
    if program["waits"][rank] == "reversed":
        pending.reverse()
    elif program["waits"][rank] == "shuffled":
        random.Random(len(pending)).shuffle(pending)
    for number, group, elements, work, whole in pending:
        if work is not None:
            work.wait()
        for part, member in zip(whole.view(len(MEMBERS[group]), -1), MEMBERS[group], strict=True):
            assert torch.equal(part, values(member, number, elements)), (number, member)
    if sum_work is not None:
        sum_work.wait()
        assert torch.equal(summed, torch.full((50,), 6.0))
    check_marks(budget, mine, before)


def check_marks(budget: dict[str, Any], mine: list[tuple[int, int, int]], before: int) -> None:
    found = tidegate.stats()["admission"]
    promoted = found["promotions"] - before
    used = len({group for _, group, _ in mine})
    if budget["max_ops"] is not None:
        most = budget["max_ops"] + max(0, used - 1) + promoted
        assert found["high_water_ops"] <= most, (found, budget)
    if budget["max_bytes"] is not None:
        largest = max((4 * len(MEMBERS[group]) * size for _, group, size in mine), default=0)
        limit = {"4K": 4 << 10, "100K": 100 << 10, "1M": 1 << 20}[budget["max_bytes"]]
        most = max(limit, largest) + (max(0, used - 1) + promoted) * largest
        assert found["high_water_bytes"] <= most, (found, budget)


class Ranks:
    """The ranks of the job, which run what rank 0 says."""

    def __init__(self) -> None:
        dist.init_process_group("tidegate", timeout=timedelta(seconds=60))
        self.groups = [dist.new_group(members) for members in MEMBERS]
        self.control = dist.new_group()

    def tell(self, what: Program | None) -> None:
        dist.broadcast_object_list([json.dumps(what)], 0, group=self.control)

    def follow(self) -> None:
        while True:
            told: list[Any] = [None]
            dist.broadcast_object_list(told, 0, group=self.control)
            if (program := json.loads(told[0])) is None:
                return
            run(program, self.groups)


def main(examples: int, seed: int) -> None:
    ranks = Ranks()
    if dist.get_rank() != 0:
        ranks.follow()
    else:
        runs = 0

        # Left to its derandomised default it would draw the same programs for every seed.
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(programs())
        def all_end(program: Program) -> None:
            nonlocal runs
            runs += 1
            ranks.tell(program)
            run(program, ranks.groups)

        from hypothesis import seed as seeded

        seeded(seed)(all_end)()
        ranks.tell(None)
        os.write(1, f"{runs} runs\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
