"""The collectives that the fault tests call, by name, on the rank's side."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.support.backend import all_gather_single, reduce_scatter_single


class Operations:
    """Calls over buffers of this rank that are made once; `count` is in elements of one shard."""

    def __init__(self, count: int, group: Any = None, dtype: torch.dtype = torch.float32) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank()
        self.shard = torch.full((count,), float(self.rank + 1), dtype=dtype)
        self.whole = torch.full((count * self.size,), float(self.rank + 1), dtype=dtype)
        self.out_shard = torch.zeros_like(self.shard)
        self.out_whole = torch.zeros_like(self.whole)
        self.began = 0.0  # when the caller last started an operation

    def all_gather(self, asynchronous: bool = False) -> Any:
        return all_gather_single(
            self.out_whole, self.shard, group=self.group, async_op=asynchronous
        )

    def reduce_scatter(self, asynchronous: bool = False) -> Any:
        return reduce_scatter_single(
            self.out_shard,
            self.whole,
            dist.ReduceOp.SUM,
            group=self.group,
            async_op=asynchronous,
        )

    def all_reduce(self, asynchronous: bool = False) -> Any:
        return dist.all_reduce(self.whole, group=self.group, async_op=asynchronous)

    def broadcast(self, asynchronous: bool = False) -> Any:
        return dist.broadcast(self.whole, group=self.group, group_src=0, async_op=asynchronous)

    def all_to_all(self, asynchronous: bool = False) -> Any:
        return dist.all_to_all_single(
            self.out_whole, self.whole, group=self.group, async_op=asynchronous
        )

    def barrier(self, asynchronous: bool = False) -> Any:
        return dist.barrier(group=self.group, async_op=asynchronous)

    def coalesced(self, asynchronous: bool = False) -> Any:
        """An all-gather of three tensors as one operation."""
        parts = self.shard.tensor_split(3)
        outs = [part.new_empty(part.numel() * self.size) for part in parts]
        with dist._coalescing_manager(group=self.group, async_ops=asynchronous) as manager:
            for out, part in zip(outs, parts, strict=True):
                all_gather_single(out, part, group=self.group, async_op=asynchronous)
        return manager if asynchronous else None


# What an error message has to call the operation.
IN_MESSAGES: dict[str, str] = {
    "all_gather": r"\ball_?gather",
    "reduce_scatter": r"\breduce_scatter",
    "all_reduce": r"\ball_?reduce",
    "broadcast": r"\bbroadcast",
    "all_to_all": r"\ball_?to_?all",
    "barrier": r"\bbarrier",
    "coalesced": r"\ball_?gather",
    "send": r"\bsend",
    "recv": r"\brecv",
}
