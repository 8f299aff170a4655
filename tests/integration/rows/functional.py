"""Functional collectives, their gradients, and torch.distributed.nn, each against its formula.

Values are small integers, so that every sum is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn
from torch.distributed.device_mesh import init_device_mesh

from tests.integration.rows.base import Meter, Outcome, Row, Tensors, compare
from tests.integration.rows.dispatched import Dispatched
from tests.support.workers import RankContext

# Renamed in torch 2.13; the old names warn there.
all_gather = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
reduce_scatter = getattr(funcol, "reduce_scatter_single", None) or funcol.reduce_scatter_tensor
all_gather_coalesced = (
    getattr(funcol, "all_gather_single_coalesced", None) or funcol.all_gather_into_tensor_coalesced
)
reduce_scatter_coalesced = (
    getattr(funcol, "reduce_scatter_single_coalesced", None)
    or funcol.reduce_scatter_tensor_coalesced
)
all_gather_autograd = (
    getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd
)
reduce_scatter_autograd = (
    getattr(funcol, "reduce_scatter_single_autograd", None) or funcol.reduce_scatter_tensor_autograd
)

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
    "product": lambda parts: parts.prod(0),
}


def _data(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What `rank` puts in; a multiple of twelve but for 12 = 1, so that averages are exact, too."""
    generator = torch.Generator().manual_seed(100 * rank + sum(shape))
    return (12 * torch.randint(-6, 6, shape, generator=generator)).to(dtype)


def _from_all(ranks: list[int], *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([_data(rank, *shape, dtype=dtype) for rank in ranks])


def _splits(sender: int, receiver: int) -> int:
    """Rows that one place sends to another: uneven, and none between some."""
    return (2 * sender + 3 * receiver + 1) % 5


class Results:
    """What was found and what should have been, by name."""

    def __init__(self) -> None:
        self.found: Tensors = {}
        self.wanted: Tensors = {}

    def add(self, name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert name not in self.found, name
        # A functional collective returns before it is done; the first use waits for it.
        self.found[name] = found.detach() + 0 if found.is_floating_point() else found.clone()
        self.wanted[name] = wanted
        assert self.found[name].dtype == wanted.dtype, name


def _plain(results: Results, label: str, group, ranks: list[int], me: int) -> None:
    """Every functional collective once, in a group given as torch admits it."""
    n, place = len(ranks), ranks.index(me)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        everybody = _from_all(ranks, 2 * n, 3, dtype=dtype)
        mine = everybody[place].clone()
        name = f"{label}, {dtype}, "
        for dim in (0, 1):
            wanted = torch.cat(list(everybody), dim)
            results.add(f"{name}all_gather {dim}", all_gather(mine, dim, group), wanted)
        total = everybody.sum(0)
        share = total.chunk(n)[place]
        results.add(f"{name}reduce_scatter", reduce_scatter(mine, "sum", 0, group), share)
        wide = mine.t().contiguous()
        share = total.t().chunk(n, 1)[place]
        results.add(f"{name}reduce_scatter 1", reduce_scatter(wide, "sum", 1, group), share)
        root = ranks[-1]
        results.add(f"{name}broadcast", funcol.broadcast(mine, n - 1, group), everybody[-1])
        assert root == ranks[n - 1]
        results.add(f"{name}input", mine, everybody[place])  # nobody writes to it
        for op, reduction in REDUCTIONS.items():
            if dtype == torch.bfloat16 and op == "product":
                continue  # rounds, in an order of its own in the formula
            if dtype.is_floating_point or op != "avg":
                found = funcol.all_reduce(mine, op, group)
                results.add(f"{name}all_reduce {op}", found, reduction(everybody))

    # Uneven exchange, and a permutation made of it.
    sent = [_splits(place, other) for other in range(n)]
    taken = [_splits(other, place) for other in range(n)]
    rows = [_data(ranks[p], 4 * 5, 2)[: sum(_splits(p, o) for o in range(n))] for p in range(n)]
    wanted = torch.cat([rows[p].split([_splits(p, o) for o in range(n)])[place] for p in range(n)])
    found = funcol.all_to_all_single(rows[place].clone(), taken, sent, group)
    results.add(f"{label}, all_to_all", found, wanted)
    even = _from_all(ranks, n, 3)
    found = funcol.all_to_all_single(even[place].clone(), None, None, group)
    results.add(f"{label}, even all_to_all", found, even[:, place])
    following = [(p + 1) % n for p in range(n)]
    found = funcol.permute_tensor(even[place].clone().flatten(), following, group)
    results.add(f"{label}, permute", found, even[place - 1].flatten())

    # Several tensors of other shapes in one call.
    shapes = ((n, 3), (2 * n,), (n, 1, 5))
    several = [_from_all(ranks, *shape) for shape in shapes]
    mine_of = [one[place].clone() for one in several]
    for index, found in enumerate(funcol.all_reduce_coalesced(mine_of, "max", group)):
        results.add(f"{label}, all_reduce of {index}", found, several[index].amax(0))
    for index, found in enumerate(all_gather_coalesced(mine_of, group)):
        results.add(f"{label}, all_gather of {index}", found, several[index].flatten(0, 1))
    for index, found in enumerate(reduce_scatter_coalesced(mine_of, "sum", [0] * 3, group)):
        share = several[index].sum(0).chunk(n)[place]
        results.add(f"{label}, reduce_scatter of {index}", found, share)


def _functional(context: RankContext) -> Outcome:
    me, n = context.rank, context.world_size
    everybody = list(range(n))
    line = init_device_mesh("cpu", (n,))
    groups: list[tuple[str, object, list[int]]] = [
        ("group", dist.group.WORLD, everybody),
        ("mesh", line, everybody),
        ("ranks", everybody, everybody),
    ]
    if n == 4:
        grid = init_device_mesh("cpu", (2, 2))
        low = me // 2 * 2
        groups.append(("mesh dim 0", (grid, 0), [me % 2, me % 2 + 2]))
        groups.append(("mesh dim 1", (grid, 1), [low, low + 1]))
    results = Results()
    with Meter() as meter, Dispatched() as seen:
        for label, group, ranks in groups:
            _plain(results, label, group, ranks, me)
    if meter.used is not None:
        assert meter.used.calls == seen.calls, (meter.used.calls, seen.calls)
    return compare(results.found, results.wanted, meter.used)


def _gradients(context: RankContext) -> Outcome:
    """The gradient of sum(weight * f(x)) at x, where `f` communicates; each rank has weights."""
    me, n = context.rank, context.world_size
    ranks = list(range(n))
    world = dist.group.WORLD
    results = Results()

    def gradient(name: str, f, shape: tuple[int, ...], wanted: torch.Tensor) -> None:
        x = _data(me, *shape).requires_grad_()
        y = f(x)
        weight = _data(me + 50, *y.shape)
        (y * weight).sum().backward()
        assert x.grad is not None
        results.add(name, x.grad, wanted)

    def weights(*shape: int) -> torch.Tensor:
        return torch.stack([_data(rank + 50, *shape) for rank in ranks])

    with Meter() as meter:
        gathered = weights(2 * n, 3).sum(0).chunk(n)[me]
        scattered = weights(2, 3).flatten(0, 1)
        summed = weights(4, 3).sum(0)
        gradient("all_gather", lambda x: all_gather_autograd(x, 0, world), (2, 3), gathered)
        gradient(
            "reduce_scatter",
            lambda x: reduce_scatter_autograd(x, "sum", 0, world),
            (2 * n, 3),
            scattered,
        )
        sent = [_splits(me, other) for other in ranks]
        taken = [_splits(other, me) for other in ranks]
        backwards = torch.cat(
            [
                _data(r + 50, sum(_splits(o, r) for o in ranks), 2).split(
                    [_splits(o, r) for o in ranks]
                )[me]
                for r in ranks
            ]
        )
        gradient(
            "all_to_all",
            lambda x: funcol.all_to_all_single_autograd(x, taken, sent, world),
            (sum(sent), 2),
            backwards,
        )
        gradient("nn.all_reduce", dist_nn.all_reduce, (4, 3), summed)
        gradient("nn.all_gather", lambda x: torch.cat(dist_nn.all_gather(x)), (2, 3), gathered)
        gradient(
            "nn.reduce_scatter",
            lambda x: dist_nn.reduce_scatter(torch.empty(2, 3), list(x.chunk(n))),
            (2 * n, 3),
            scattered,
        )
        gradient(
            "nn.all_to_all_single",
            lambda x: dist_nn.all_to_all_single(torch.empty(sum(taken), 2), x, taken, sent),
            (sum(sent), 2),
            backwards,
        )
        root = n - 1
        only_root = summed if me == root else torch.zeros(4, 3)
        gradient("nn.broadcast", lambda x: dist_nn.broadcast(x, root), (4, 3), only_root)
        # The output is defined on the root alone, so its weights are the only ones that count.
        gradient("nn.reduce", lambda x: dist_nn.reduce(x, root), (4, 3), _data(root + 50, 4, 3))
    return compare(results.found, results.wanted, meter.used)


_EVERY = frozenset({"all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"})

ROWS = (
    *(
        Row(
            f"functional_w{n}",
            n,
            _functional,
            "every functional collective, coalesced and uneven; groups by name, mesh and ranks",
            calls={},
            some=_EVERY,
            tolerance=0.0,
        )
        for n in (2, 3, 4)
    ),
    *(
        Row(
            f"functional_gradients_w{n}",
            n,
            _gradients,
            "gradients through functional collectives and torch.distributed.nn",
            calls={
                "all_gather": 4,
                "all_reduce": 2,
                "all_to_all": 5,
                "broadcast": 2,
                "reduce": 2,
                "reduce_scatter": 3,
            },
            tolerance=0.0,
        )
        for n in (2, 3, 4)
    ),
)
