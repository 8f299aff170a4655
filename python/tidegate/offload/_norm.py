"""The norm of all gradients of a model, of which this process may have a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tidegate.offload._locals import sharded_over

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Groups = tuple[Any, ...]


def norm_of(squares: torch.Tensor) -> float:
    """L2 norm of gradients that are all here; ``squares`` has the sum of squares of each."""
    return _root(float(squares.sum()))


def total_norm(
    everyone: Iterable[torch.Tensor],
    norm_group: ProcessGroup | None,
    sum_up: Callable[[], tuple[list[torch.Tensor], torch.Tensor]],
) -> float:
    """L2 norm over all ranks that hold a part of the gradients.

    ``everyone`` is all parameters, alike on all ranks, whether they have a gradient here or not.
    ``sum_up`` gives those that have one, and the sum of squares of each in this process, float64.
    What a DTensor is sharded over is summed over those groups, what it is replicated over is not;
    other tensors are summed over ``norm_group``, which every member must then do.

    If ``sum_up`` raises, the other ranks of those groups are told and raise RuntimeError.
    """
    classes: dict[Groups, float] = {}
    if norm_group is not None:
        classes[(norm_group,)] = 0.0
    groups_of: dict[torch.Tensor, Groups] = {}
    for parameter in everyone:
        groups = groups_of[parameter] = _summed_over(parameter, norm_group)
        classes.setdefault(groups, 0.0)
    problem: Exception | None = None
    try:
        parameters, squares = sum_up()
        places: dict[Groups, list[int]] = {}
        for place, parameter in enumerate(parameters):
            places.setdefault(groups_of[parameter], []).append(place)
        for groups, members in places.items():
            classes[groups] = float(squares[members].sum())
    except Exception as error:
        problem = error
    total, failed = 0.0, float(problem is not None)
    for groups, part in classes.items():
        told = torch.tensor([part, failed], dtype=torch.float64)
        try:
            for group in groups:
                dist.all_reduce(told, group=group)
        except Exception as error:
            raise (problem or error) from (problem and error)
        total += float(told[0])
        failed = float(told[1])
    if problem is not None:
        raise problem
    if failed:
        raise RuntimeError(
            "the norm of the gradients is not known: another rank that holds a part of them could"
            " not do its step"
        )
    return _root(total)


def _summed_over(parameter: torch.Tensor, norm_group: ProcessGroup | None) -> Groups:
    groups = sharded_over(parameter)
    if not groups and norm_group is not None and type(parameter.data) is torch.Tensor:
        return (norm_group,)
    return groups


def _root(total: float) -> float:
    return math.sqrt(total) if total >= 0 else math.nan
