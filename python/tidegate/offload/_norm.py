"""The norm of all gradients of a model, of which this process may have a part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tidegate.offload._locals import sharded_over

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def total_norm(
    parameters: list[torch.Tensor], squares: torch.Tensor, norm_group: ProcessGroup | None
) -> float:
    """L2 norm over all ranks that hold a part of these gradients.

    ``squares`` has the sum of squares of each parameter's gradient in this process, float64. What
    a DTensor is sharded over is summed over those groups, what it is replicated over is not;
    other tensors are summed over ``norm_group``, which every member must then do.
    """
    classes: dict[tuple[Any, ...], list[int]] = {}
    if norm_group is not None:
        classes[(norm_group,)] = []
    for place, parameter in enumerate(parameters):
        groups = sharded_over(parameter)
        if not groups and norm_group is not None and type(parameter.data) is torch.Tensor:
            groups = (norm_group,)
        classes.setdefault(groups, []).append(place)
    total = 0.0
    for groups, places in classes.items():
        part = squares[places].sum()
        for group in groups:
            dist.all_reduce(part, group=group)
        total += float(part)
    return math.sqrt(total) if total >= 0 else math.nan
