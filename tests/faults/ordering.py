"""Orders that deadlock a backend which works in the order of calls: all have to complete."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.faults.outcome import Context, Outcome, expect_exit, watched_job
from tests.support.backend import all_gather_single, reduce_scatter_single
from tests.support.processes import Rank

GROUP_TIMEOUT = 15.0
COUNTS = (16, 1 << 16, 1 << 20)


def _value(source: int, item: int) -> float:
    return float(source * 100 + item + 1)


def groups_main(rank: Rank) -> None:
    """Several groups over the same ranks, one operation in each, in an order that differs."""
    torch.set_num_threads(1)
    args = rank.args
    size, count = rank.world_size, args["count"]
    rank.join(GROUP_TIMEOUT)
    orders = args["orders"]
    groups = [dist.new_group() for _ in orders[0]]
    problems = []
    for round_ in range(args["rounds"]):
        started: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}
        for index in orders[rank.rank]:
            mine = torch.full((count,), _value(rank.rank, index))
            everybody = torch.tensor([_value(r, index) for r in range(size)])
            group = groups[index]
            if index % 3 == 0:
                work = dist.all_reduce(mine, group=group, async_op=True)
                started[index] = (work, mine, everybody.sum().expand(count))
            elif index % 3 == 1:
                out = torch.zeros(count * size)
                work = all_gather_single(out, mine, group=group, async_op=True)
                started[index] = (work, out, everybody.repeat_interleave(count))
            else:
                out = torch.zeros(count)
                work = reduce_scatter_single(
                    out, mine.repeat(size), dist.ReduceOp.SUM, group=group, async_op=True
                )
                started[index] = (work, out, everybody.sum().expand(count))
        for index in reversed(orders[rank.rank]) if round_ % 2 else orders[rank.rank]:
            work, out, expected = started[index]
            work.wait()
            if not torch.equal(out, expected):
                problems.append(f"round {round_}: the result of group {index} is wrong")
    rank.report("done", problems=problems)
    dist.destroy_process_group()


def opposite_groups(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 4, 3)[context.index % 3]
    number = random.choice((2, 3, 5))
    orders = [list(range(number)), list(reversed(range(number)))]
    while len(orders) < size:
        orders.append(random.sample(range(number), number))
    args = {"orders": orders, "count": random.choice(COUNTS), "rounds": 4}
    outcome.variant = f"{size} ranks, {args}"
    _run(context, outcome, "groups_main", size, args)


def pairs_main(rank: Rank) -> None:
    """Point-to-point: every rank issues its isends before its irecvs, with tags crossed."""
    torch.set_num_threads(1)
    args = rank.args
    size, count, tags = rank.world_size, args["count"], args["tags"]
    rank.join(GROUP_TIMEOUT)
    right, left = (rank.rank + 1) % size, (rank.rank - 1) % size
    problems = []
    for round_ in range(args["rounds"]):
        sends = []
        for peer in {right, left}:
            for tag in tags:
                tensor = torch.full((count + tag,), _value(rank.rank, tag) + round_)
                sends.append(dist.isend(tensor, peer, tag=tag))
        receives = []
        for peer in {right, left}:
            for tag in args["crossed"]:
                tensor = torch.zeros(count + tag)
                receives.append((peer, tag, tensor, dist.irecv(tensor, peer, tag=tag)))
        if args["sends_first"]:
            for work in sends:
                work.wait()
        for peer, tag, tensor, work in receives:
            work.wait()
            if not bool((tensor == _value(peer, tag) + round_).all()):
                problems.append(f"round {round_}: tag {tag} from rank {peer} is {tensor[0]}")
        for work in sends:
            work.wait()
    rank.report("done", problems=problems)
    dist.destroy_process_group()


def crossed_sends(context: Context, outcome: Outcome) -> None:
    random = context.random
    size = (2, 4, 3)[context.index % 3]
    tags = list(range(random.choice((1, 2, 4))))
    args = {
        "count": random.choice(COUNTS),
        "rounds": 3,
        "tags": tags,
        "crossed": list(reversed(tags)),
        "sends_first": random.random() < 0.5,
    }
    outcome.variant = f"{size} ranks, {args}"
    _run(context, outcome, "pairs_main", size, args)


def _run(context: Context, outcome: Outcome, target: str, size: int, args: dict[str, Any]) -> None:
    with watched_job(context, outcome, f"{__name__}:{target}", size, args=args) as job:
        for rank, report in job.expect("done", None, 40).items():
            outcome.problems += [f"rank {rank}: {problem}" for problem in report["problems"]]
        expect_exit(outcome, job, job.ranks())
