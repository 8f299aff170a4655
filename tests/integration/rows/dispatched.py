"""Counts the collectives that leave torch's dispatcher: what the backend must have counted, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

_OPERATIONS = {
    "_c10d_functional": {
        "all_gather_into_tensor": "all_gather",
        "all_gather_into_tensor_coalesced": "all_gather",
        "all_gather_into_tensor_out": "all_gather",
        "all_reduce": "all_reduce",
        "all_reduce_": "all_reduce",
        "all_reduce_coalesced": "all_reduce",
        "all_to_all_single": "all_to_all",
        "broadcast": "broadcast",
        "broadcast_": "broadcast",
        "reduce_scatter_tensor": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
    },
    "c10d": {
        "_allgather_base_": "all_gather",
        "_reduce_scatter_base_": "reduce_scatter",
        "allgather_": "all_gather",
        "allgather_into_tensor_coalesced_": "all_gather",
        "allreduce_": "all_reduce",
        "alltoall_base_": "all_to_all",
        "broadcast_": "broadcast",
        "reduce_scatter_tensor_coalesced_": "reduce_scatter",
        "scatter_": "scatter",
    },
}


def operation_of(func: Any) -> str | None:
    """tidegate's name of a collective of the dispatcher; None for anything else."""
    return _OPERATIONS.get(func.namespace, {}).get(func._opname)


def asynchronous(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a collective of `torch.distributed` is called with async_op=True."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    where = names.index("async_op" if "async_op" in names else "asyncOp")
    return bool(given.get(names[where], func._schema.arguments[where].default_value))


class Dispatched(TorchDispatchMode):
    """While it is active, `calls` counts this thread's collectives under tidegate's names.

    A coalesced one counts as one call for each of its tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if any(issubclass(type_, DTensor) for type_ in types):
            return NotImplemented  # what it consists of comes by in its turn
        operation = operation_of(func)
        if operation is not None:
            coalesced = "coalesced" in func._opname
            self.calls[operation] += len(args[0]) if coalesced else 1
        return func(*args, **(kwargs or {}))
