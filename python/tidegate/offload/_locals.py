"""What lies in this process of parameters and gradients that may be DTensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

#: Types of tensors that are all in this process.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part in this process: the shard of a DTensor, any other tensor itself."""
    if type(tensor) in PLAIN:
        return tensor
    # to_local() is an autograd function of some 20 us, and there may be thousands of parameters.
    local: torch.Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    wait = getattr(local, "wait", None)  # Of a functional collective that is still under way.
    return local if wait is None else wait()


def gradient_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The part of ``gradient`` for ``local_of(parameter)``."""
    if isinstance(gradient, DTensor):
        if not isinstance(parameter, DTensor):
            raise TypeError("the gradient is a DTensor and its parameter is not")
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(placements=parameter.placements)
    elif isinstance(parameter, DTensor):
        raise TypeError("the parameter is a DTensor and its gradient is not")
    return local_of(gradient)


def like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """``local`` as what ``parameter`` is: a DTensor of the same placements, or itself."""
    if not isinstance(parameter, DTensor):
        return local
    wrapped: torch.Tensor = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return wrapped


def sharded_over(parameter: torch.Tensor) -> tuple[Any, ...]:
    """The process groups over which the elements of a DTensor are spread; () of other tensors.

    () also of one on a mesh that this rank is not in.
    """
    if not isinstance(parameter, DTensor):
        return ()
    mesh = parameter.device_mesh
    if mesh.get_coordinate() is None:
        return ()
    return tuple(
        mesh.get_group(dim)
        for dim, placement in enumerate(parameter.placements)
        if not isinstance(placement, Replicate) and mesh.size(dim) > 1
    )


def is_flattened(parameter: torch.Tensor) -> bool:
    """Whether it is FSDP1's: a flat parameter, or a part of one."""
    return bool(getattr(parameter, "_fsdp_flattened", False))


def stream_of(parameter: torch.Tensor, place: int) -> int:
    """Which random numbers round the states of the ``place``-th parameter.

    Shards of one DTensor have different ones, as their elements are different ones; replicas must
    have the same. FSDP1's flat parameters do not say which of the two they are.
    """
    shard = 0
    for group in sharded_over(parameter):
        shard = shard * dist.get_world_size(group) + dist.get_rank(group)
    return shard << 32 | place
