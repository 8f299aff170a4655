"""The norm of all gradients of a model, of which this process may have a part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tidegate.offload._locals import PLAIN, sharded_over

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Over which the sum of squares of a parameter's gradient is summed; () if it is all here.
Groups = tuple[Any, ...]
#: Parameters, and the sum of squares of the gradient of each in this process, float64.
Squares = tuple[list[torch.Tensor], torch.Tensor]


def norm_of(squares: torch.Tensor) -> float:
    """L2 norm of gradients that are all here; ``squares`` has the sum of squares of each."""
    return _root(float(squares.sum()))


class SharedNorm:
    """The norm of a step over all ranks that hold a part of the gradients.

    ``everyone`` is all parameters, alike on all ranks, whether they have a gradient here or not.
    What a DTensor is sharded over is summed over those groups, what it is replicated over is not;
    other tensors are summed over ``norm_group``, which every member must then do.

    Its methods are calls of all ranks of those groups. If what is to be done raises on one, that
    one raises it and the others RuntimeError.
    """

    def __init__(self, everyone: list[torch.Tensor], norm_group: ProcessGroup | None) -> None:
        self._norm_group = norm_group
        self._known: dict[object, Groups] = {}
        self._all_here = norm_group is None and PLAIN.issuperset(map(type, everyone))
        classes = dict.fromkeys([] if norm_group is None else [(norm_group,)])
        if not self._all_here:
            classes.update(dict.fromkeys(map(self._summed_over, everyone)))
        self._classes = [groups for groups in classes if groups]

    def agree(self, prepare: Callable[[], None]) -> None:
        """Do ``prepare``; if this returns, all ranks have done it."""

        def nothing() -> dict[Groups, float]:
            prepare()
            return {}

        self._exchange(nothing)

    def of(self, sum_up: Callable[[], Squares]) -> float:
        """The norm of what ``sum_up`` gives; not all parameters need be among it."""
        return _root(self._exchange(lambda: self._sums_of(*sum_up())))

    def _sums_of(
        self, parameters: list[torch.Tensor], squares: torch.Tensor
    ) -> dict[Groups, float]:
        if self._all_here:
            return {(): float(squares.sum())}
        places: dict[Groups, list[int]] = {}
        for place, parameter in enumerate(parameters):
            places.setdefault(self._summed_over(parameter), []).append(place)
        return {groups: float(squares[members].sum()) for groups, members in places.items()}

    def _exchange(self, sum_up: Callable[[], dict[Groups, float]]) -> float:
        """The total of what ``sum_up`` gives for each of the classes, over their groups."""
        problem: Exception | None = None
        parts: dict[Groups, float] = {}
        try:
            parts = sum_up()
        except Exception as error:
            problem = error
        total, failed = parts.get((), 0.0), float(problem is not None)
        for groups in self._classes:
            told = torch.tensor([parts.get(groups, 0.0), failed], dtype=torch.float64)
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
                "the norm of the gradients is not known: another rank that holds a part of them"
                " could not do its step"
            )
        return total

    def _summed_over(self, parameter: torch.Tensor) -> Groups:
        if isinstance(parameter, DTensor):
            # There may be thousands, which lie on few meshes in few ways.
            key = (id(parameter.device_mesh), parameter.placements)
            if key not in self._known:
                self._known[key] = sharded_over(parameter)
            return self._known[key]
        if self._norm_group is not None and type(parameter.data) is torch.Tensor:
            return (self._norm_group,)
        return ()


def _root(total: float) -> float:
    return math.sqrt(total) if total >= 0 else math.nan
