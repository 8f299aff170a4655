"""In which order a training gathers and computes: what prefetching changes, and nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.integration import models
from tests.integration.models import Recipe
from tests.integration.rows.dispatched import asynchronous, operation_of

Order = list[list[str]]


class _Log(TorchDispatchMode):
    """While it is active, `steps` gets the all-gathers of this thread and what is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Order = []

    def mark(self, event: str) -> None:
        self.steps[-1].append(event)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if operation_of(func) == "all_gather":
            self.mark("async gather" if asynchronous(func, args, kwargs or {}) else "gather")
        return func(*args, **(kwargs or {}))


def assert_order(order: Order, first: str, later: str) -> None:
    """That the first step is `first` and every later one `later`; events are split by commas."""
    wanted = [first.split(", "), *([later.split(", ")] * (models.STEPS - 1))]
    assert order == wanted, order


def order_of(model: nn.Module, rank: int, recipe: Recipe) -> Order:
    """Trains a wrapped `models.Net`; for each step the all-gathers among the parts of the net.

    Named are the forward of a block, "forward 0", and the moment in backward when a gradient comes
    out of the head, "backward head", or into the middle of a block, "backward 0".
    """
    log = _Log()

    def mark_gradient(event: str):
        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            output.register_hook(lambda gradient: log.mark(event))

        return hook

    def micro_batch(last: bool):
        log.steps.append([])
        return nullcontext()

    for index, block in enumerate(model.blocks):  # type: ignore[arg-type]
        inner = getattr(block, "module", block)  # FSDP1 gathers before it calls that
        inner.register_forward_pre_hook(lambda *_, event=f"forward {index}": log.mark(event))
        inner.up.register_forward_hook(mark_gradient(f"backward {index}"))
    model.head.register_forward_hook(mark_gradient("backward head"))  # type: ignore[union-attr]
    with log:
        models.train(model, rank, recipe, micro_batch=micro_batch)
    return log.steps
