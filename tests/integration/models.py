"""A tiny network whose shapes divide by nothing, its data, and one process as the oracle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, by the ranks and by the oracle alike.

    `gradient_scale`: what the averaged gradients are multiplied by. `micro_batches`: batches whose
    gradients are accumulated for one step. `max_norm`: the norm that gradients are clipped to.
    """

    network: Callable[[], nn.Module] = Net
    dtype: torch.dtype = torch.float32
    gradient_scale: float = 1.0
    micro_batches: int = 1
    max_norm: float | None = None
    adamw: bool = False
    steps: int = STEPS

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.adamw:
            return torch.optim.AdamW(model.parameters(), lr=RATE / 10, foreach=False)
        return sgd(model)

    def build(self) -> nn.Module:
        """The same network on every rank."""
        torch.manual_seed(7)
        return self.network().to(self.dtype)


PLAIN = Recipe()


def build(dtype: torch.dtype = torch.float32) -> Net:
    """The usual network, the same on every rank."""
    model = Recipe(dtype=dtype).build()
    assert isinstance(model, Net)
    return model


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


def train(
    model: nn.Module,
    rank: int,
    recipe: Recipe = PLAIN,
    *,
    micro_batch: Callable[[bool], AbstractContextManager[object]] = lambda last: nullcontext(),
    clip: Callable[[float], object] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> torch.optim.Optimizer:
    """Trains a wrapped model on this rank's samples.

    `micro_batch`: gives the context of each forward and backward; its argument says whether it is
    the last of its step. `clip`: clips the gradients to a norm, in the way of the wrapper.
    """
    optimizer = recipe.optimizer(model) if optimizer is None else optimizer
    for step in range(recipe.steps):
        for index in range(recipe.micro_batches):
            x, y = batch(step * recipe.micro_batches + index, rank, recipe.dtype)
            with micro_batch(index == recipe.micro_batches - 1):
                (loss_of(model(x), y) / recipe.micro_batches).backward()
        if clip is not None:
            assert recipe.max_norm is not None
            clip(recipe.max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@cache
def union_oracle(world_size: int, recipe: Recipe = PLAIN) -> dict[str, torch.Tensor]:
    """Parameters after one process trained on the union of the ranks' samples."""
    model = recipe.build()
    optimizer = recipe.optimizer(model)
    for step in range(recipe.steps):
        for index in range(recipe.micro_batches):
            number = step * recipe.micro_batches + index
            parts = [batch(number, rank, recipe.dtype) for rank in range(world_size)]
            x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            scale = recipe.gradient_scale / recipe.micro_batches
            (loss_of(model(x), y) * scale).backward()
        if recipe.max_norm is not None:
            before = nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
            assert before > recipe.max_norm, "clipping must change something"
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


def average_of_averages(parts: list[torch.Tensor]) -> torch.Tensor:
    """What HSDP does on two replicas: AVG within each, rounded, then AVG over both."""
    middle = len(parts) // 2
    return average([average(parts[:middle]), average(parts[middle:])])


def premul_sum(factor: float) -> Reduce:
    """PREMUL_SUM as documented: factor and sum in fp32, in rank order, one rounding."""

    def reduce(parts: list[torch.Tensor]) -> torch.Tensor:
        single = torch.tensor(factor, dtype=torch.float32)
        return _rank_order_sum([part.float() * single for part in parts]).to(parts[0].dtype)

    return reduce


def scaled_sum(before: float, after: float) -> Reduce:
    """SUM with a division before and one after it, each in the dtype of the gradients."""

    def reduce(parts: list[torch.Tensor]) -> torch.Tensor:
        dtype = parts[0].dtype
        return _rank_order_sum([part / before for part in parts]).to(dtype) / after

    return reduce


def power_of_two_factors(world_size: int) -> tuple[float, float]:
    """How FSDP splits a division around a sum that may overflow: a power of two near the root."""
    before = 1
    while world_size % before == 0 and world_size / before > before:
        before *= 2
    return before, world_size / before


def emulated_ranks(
    world_size: int,
    param_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    reduce: Reduce,
    scaler: torch.amp.GradScaler | None = None,
) -> dict[str, torch.Tensor]:
    """Parameters after one process did, rank by rank, what mixed-precision FSDP computes."""
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None else scaler
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
            loss = loss_of(functional_call(model, lowered, (x.to(param_dtype),)), y)
            scaler.scale(loss).backward()
            for name, value in lowered.items():
                assert value.grad is not None
                gradients.setdefault(name, []).append(value.grad.to(reduce_dtype))
        for name, value in model.named_parameters():
            value.grad = reduce(gradients[name]).float()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}


def rank_by_rank(
    world_size: int,
    loss: Callable[[nn.Module, int, int], torch.Tensor | None],
    reduce: Reduce,
    recipe: Recipe = PLAIN,
) -> dict[str, torch.Tensor]:
    """Parameters after one process computed `loss(model, step, rank)` for each rank in turn and
    stepped with what `reduce` made of the gradients; a parameter without one counts as 0.
    """
    model = recipe.build()
    optimizer = recipe.optimizer(model)
    for step in range(recipe.steps):
        gradients: list[list[torch.Tensor]] = []
        for rank in range(world_size):
            optimizer.zero_grad()
            value = loss(model, step, rank)
            if value is not None:
                value.backward()
            gradients.append(
                [
                    torch.zeros_like(each) if each.grad is None else each.grad
                    for each in model.parameters()
                ]
            )
        for parameter, parts in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = reduce(list(parts)).to(parameter.dtype)
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}
