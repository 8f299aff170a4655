"""A mixture of experts, one a rank: tokens travel by uneven all-to-all, there and back."""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

from tests.integration.models import STEPS, sgd
from tests.integration.rows.base import FP64_TOLERANCE, Meter, Outcome, Row, Tensors, compare
from tests.support.workers import RankContext

WIDTH, TOKENS = 6, 17
FP64 = torch.float64


def _modules(experts: int) -> tuple[nn.Linear, list[nn.Sequential]]:
    torch.manual_seed(23)
    router = nn.Linear(WIDTH, experts).to(FP64)
    return router, [
        nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH)).to(FP64)
        for _ in range(experts)
    ]


def _tokens(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(900 * step + rank)
    # Later ranks have more tokens.
    shape = TOKENS + rank, WIDTH
    x = torch.randn(shape, generator=generator, dtype=FP64)
    return x, torch.randn(shape, generator=generator, dtype=FP64)


def _parameters(router: nn.Module, experts: dict[int, nn.Module]) -> Tensors:
    named = {f"router.{name}": value for name, value in router.named_parameters()}
    for index, expert in experts.items():
        named |= {f"expert{index}.{name}": value for name, value in expert.named_parameters()}
    return {name: value.detach() for name, value in named.items()}


@cache
def _oracle(ranks: int) -> Tensors:
    router, experts = _modules(ranks)
    optimizer = sgd(nn.ModuleList([router, *experts]))
    for step in range(STEPS):
        for rank in range(ranks):
            x, y = _tokens(step, rank)
            gates = router(x).softmax(-1)
            weight, choice = gates.max(-1)
            every = torch.stack([expert(x) for expert in experts])
            output = every[choice, torch.arange(len(x))] * weight[:, None]
            ((output - y).square().mean() / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return _parameters(router, dict(enumerate(experts)))


def _train(context: RankContext) -> Outcome:
    me, n = context.rank, context.world_size
    router, experts = _modules(n)
    expert = experts[me]
    optimizer = sgd(nn.ModuleList([router, expert]))
    with Meter() as meter:
        for step in range(STEPS):
            x, y = _tokens(step, me)
            weight, choice = router(x).softmax(-1).max(-1)
            order = choice.argsort(stable=True)
            sent = choice.bincount(minlength=n)
            taken = torch.empty_like(sent)
            dist.all_to_all_single(taken, sent)
            there, back = sent.tolist(), taken.tolist()
            arrived = funcol.all_to_all_single_autograd(x[order], back, there, dist.group.WORLD)
            done = funcol.all_to_all_single_autograd(expert(arrived), there, back, dist.group.WORLD)
            output = torch.empty_like(x).index_copy(0, order, done + 0) * weight[:, None]
            ((output - y).square().mean() / n).backward()
            for value in router.parameters():
                dist.all_reduce(value.grad)
            optimizer.step()
            optimizer.zero_grad()
    oracle = _oracle(n)
    found = _parameters(router, {me: expert})
    return compare(found, {name: oracle[name] for name in found}, meter.used)


ROWS = tuple(
    Row(
        f"experts_w{n}",
        n,
        _train,
        "mixture of experts, one a rank, over uneven all_to_all_single with gradients",
        # Counts, there and back; the input needs no gradient, so only the way back has one.
        calls={"all_to_all": 4 * STEPS, "all_reduce": 2 * STEPS},
        tolerance=FP64_TOLERANCE,
    )
    for n in (2, 3, 4)
)
