"""Tensors in the shared memory of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """Return an uninitialised CPU tensor of shape ``size`` in the shared memory of ``group``.

    ``size`` is as in ``torch.empty``: ``empty(2, 3)`` or ``empty((2, 3))``. ``dtype`` defaults to
    ``torch.get_default_dtype()``, ``group`` to the default group.

    The other ranks read such a tensor where it lies when it is the input of a collective of
    ``group``, one copy less than for any other tensor; so does a contiguous part of it, and an
    ``all_gather_single`` whose input is its own slice of such an output. Each rank may have its own
    kind of tensors from call to call, and results are equal bit for bit. What is done with it
    otherwise is what can be done with any tensor, but that its storage cannot be resized. It may
    outlive the group; its memory goes back to the machine soon after the last reference.

    Where the shared memory is full (``TIDEGATE_HEAP_BYTES``) or there is none, because the group
    has one rank, the tensor is ordinary; the first time that there is no room in a group a warning
    says so.

    Raises ``ValueError`` if ``group`` does not use tidegate on the CPU, this rank is not in it, or
    a size is negative; ``torch.distributed.DistBackendError`` (a ``RuntimeError``) if the group
    has failed, was shut down, or cannot be joined: like an operation, the first tensor of a group
    waits for the rank that makes its memory.
    """
    import torch
    import torch.distributed as dist

    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    if any(length < 0 for length in shape):
        raise ValueError(f"tidegate.empty: sizes must not be negative; got {tuple(shape)}")
    if dist.get_rank(group) < 0:
        raise ValueError("tidegate.empty: this rank is not a member of the group")
    members = dist.group.WORLD if group is None else group
    assert members is not None  # get_rank has raised if there is no default group
    device = torch.device("cpu")
    backend = members._get_backend(device)
    if backend.name() != "tidegate":
        raise ValueError(
            "tidegate.empty: the group uses " + backend.name() + " on the CPU, not tidegate"
        )
    tensor: torch.Tensor = backend.allocate_tensor(
        shape.numel(), dtype=dtype or torch.get_default_dtype(), device=device
    )
    return tensor.view(shape)
