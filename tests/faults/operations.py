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

    def coalesced_scatter(self, asynchronous: bool = False) -> Any:
        """A reduce-scatter of three tensors as one operation."""
        outs = self.out_shard.tensor_split(3)
        parts = [out.new_full((out.numel() * self.size,), float(self.rank + 1)) for out in outs]
        with dist._coalescing_manager(group=self.group, async_ops=asynchronous) as manager:
            for out, part in zip(outs, parts, strict=True):
                reduce_scatter_single(
                    out, part, dist.ReduceOp.SUM, group=self.group, async_op=asynchronous
                )
        return manager if asynchronous else None

    def all_gather_list(self, asynchronous: bool = False) -> Any:
        outs = list(self.out_whole.chunk(self.size))
        return dist.all_gather(outs, self.shard, group=self.group, async_op=asynchronous)

    def reduce(self, asynchronous: bool = False) -> Any:
        return dist.reduce(self.whole, group=self.group, group_dst=0, async_op=asynchronous)

    def gather(self, asynchronous: bool = False) -> Any:
        outs = list(self.out_whole.chunk(self.size)) if self.rank == 0 else None
        return dist.gather(self.shard, outs, group=self.group, group_dst=0, async_op=asynchronous)

    def scatter(self, asynchronous: bool = False) -> Any:
        parts = list(self.whole.chunk(self.size)) if self.rank == 0 else None
        return dist.scatter(
            self.out_shard, parts, group=self.group, group_src=0, async_op=asynchronous
        )

    def exchange(self, asynchronous: bool = False) -> Any:
        """A message to and from every other rank, as one batch."""
        batch = []
        for peer, part in enumerate(self.out_whole.chunk(self.size)):
            if peer != self.rank:
                batch.append(dist.P2POp(dist.irecv, part, peer, self.group))
                batch.append(dist.P2POp(dist.isend, self.shard, peer, self.group))
        works = Works(dist.batch_isend_irecv(batch))
        if asynchronous:
            return works
        works.wait()
        return None


class Works:
    """Several Works as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


# What an error message has to call the operation.
IN_MESSAGES: dict[str, str] = {
    "all_gather": r"\ball_?gather",
    "reduce_scatter": r"\breduce_scatter",
    "all_reduce": r"\ball_?reduce",
    "broadcast": r"\bbroadcast",
    "all_to_all": r"\ball_?to_?all",
    "barrier": r"\bbarrier",
    "coalesced": r"\ball_?gather",
    "coalesced_scatter": r"\breduce_scatter",
    "all_gather_list": r"\ball_?gather",
    "reduce": r"\breduce\b",
    "gather": r"\bgather",
    "scatter": r"\bscatter",
    "exchange": r"\b(send|recv)",
    "recv_any": r"\brecv",
    "send": r"\bsend",
    "recv": r"\brecv",
}
