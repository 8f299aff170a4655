"""A tiny network whose shapes divide by nothing, its data, and one process as the oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.func import functional_call

STEPS = 5
UNITS = 3  # what a wrapped model consists of: two blocks and the root
RATE = 0.1
PER_RANK = 6
WIDTH, HIDDEN, FEATURES, TARGETS = 13, 29, 11, 5


class Block(nn.Module):
    """Residual two-layer perceptron with 809 parameters: every sharding of it pads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks between a stem and a head; `scale` has fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, TARGETS)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def build(dtype: torch.dtype = torch.float32) -> Net:
    """The same network on every rank."""
    torch.manual_seed(7)
    return Net().to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's samples of one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(PER_RANK, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(PER_RANK, TARGETS, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.to(target.dtype) - target).square().mean()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def train(model: nn.Module, rank: int, dtype: torch.dtype = torch.float32) -> torch.optim.SGD:
    """Trains a wrapped model on this rank's samples."""
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = batch(step, rank, dtype)
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@cache
def union_oracle(
    world_size: int, dtype: torch.dtype = torch.float32, gradient_scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """Parameters after one process trained on the union of the ranks' samples."""
    model = build(dtype)
    optimizer = sgd(model)
    for step in range(STEPS):
        parts = [batch(step, rank, dtype) for rank in range(world_size)]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        (loss_of(model(x), y) * gradient_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}


Reduce = Callable[[list[torch.Tensor]], torch.Tensor]


def _rank_order_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def average(parts: list[torch.Tensor]) -> torch.Tensor:
    """AVG as documented: fp32 sum in rank order, divided there, one rounding."""
    return (_rank_order_sum(parts) / len(parts)).to(parts[0].dtype)


def scaled_sum(before: float, after: float) -> Reduce:
    """What FSDP2 does around SUM for fp16: divide in fp16 before and after it."""

    def reduce(parts: list[torch.Tensor]) -> torch.Tensor:
        dtype = parts[0].dtype
        return _rank_order_sum([part / before for part in parts]).to(dtype) / after

    return reduce


def emulated_ranks(
    world_size: int, param_dtype: torch.dtype, reduce_dtype: torch.dtype, reduce: Reduce
) -> dict[str, torch.Tensor]:
    """Parameters after one process did, rank by rank, what mixed-precision FSDP2 computes."""
    model = build()
    optimizer = sgd(model)
    for step in range(STEPS):
        gradients: dict[str, list[torch.Tensor]] = {}
        for rank in range(world_size):
            x, y = batch(step, rank, torch.float32)
            lowered = {
                name: value.detach().to(param_dtype).requires_grad_()
                for name, value in model.named_parameters()
            }
            loss_of(functional_call(model, lowered, (x.to(param_dtype),)), y).backward()
            for name, value in lowered.items():
                assert value.grad is not None
                gradients.setdefault(name, []).append(value.grad.to(reduce_dtype))
        for name, value in model.named_parameters():
            value.grad = reduce(gradients[name]).float()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}
