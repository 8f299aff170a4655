"""What a rank of bench.rate_limit runs under torchrun. Rank 0 prints a line of JSON a round."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import tidegate
import torch
import torch.distributed as dist

UNLIMITED_CALLS = 400
CALLS_ALONE = 400
MOVED = 1 << 18  # elements of a rank's part: 1 MiB


class Gathers:
    """All-gathers in a group of their own."""

    def __init__(self, total: int) -> None:
        ranks = dist.get_world_size()
        self.group = dist.new_group(backend="tidegate")
        self.part = torch.ones(total // 4 // ranks)
        self.whole = torch.empty(self.part.numel() * ranks)
        self.read = self.part.numel() * 4 * (ranks - 1)  # bytes, of a call
        self.rate = 0.0

    def calls(self, rate: float, seconds: float) -> int:
        return max(8, round(rate * seconds / self.read))

    def run(self, calls: int) -> None:
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_gather_into_tensor(self.whole, self.part, group=self.group)
        self.rate = calls * self.read / (time.perf_counter() - begin)


class Stream:
    """Calls of another group beside the all-gathers, until all ranks say that those are over."""

    def once(self, is_done: bool) -> bool:
        raise NotImplementedError

    def alone(self) -> float:
        """Seconds of a call."""
        begin = time.perf_counter()
        for _ in range(CALLS_ALONE):
            self.once(False)
        return (time.perf_counter() - begin) / CALLS_ALONE

    def beside(self, gathers: Gathers, calls: int) -> float:
        """Seconds of a call while so many all-gathers run."""
        thread = threading.Thread(target=gathers.run, args=(calls,))
        made, begin = 0, time.perf_counter()
        thread.start()
        while not self.once(not thread.is_alive()):
            made += 1
        took = time.perf_counter() - begin
        thread.join()
        return took / max(made, 1)


class Reductions(Stream):
    """Reduce-scatters; a part's first element says how many are done."""

    def __init__(self) -> None:
        ranks = dist.get_world_size()
        self.group = dist.new_group(backend="tidegate")
        self.all = torch.zeros(MOVED * ranks)
        self.part = torch.empty(MOVED)

    def once(self, is_done: bool) -> bool:
        self.all[::MOVED] = float(is_done)
        dist.reduce_scatter_tensor(self.part, self.all, group=self.group)
        return self.part[0].item() == dist.get_world_size()


class Broadcasts(Stream):
    """A checkpoint's traffic; the first element says whether those of rank 0 are over."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="tidegate")
        self.tensor = torch.zeros(4 * MOVED)

    def once(self, is_done: bool) -> bool:
        if dist.get_rank() == 0:
            self.tensor[0] = float(is_done)
        dist.broadcast(self.tensor, 0, group=self.group)
        return self.tensor[0].item() == 1.0


def cell(gathers: Gathers, stream: Stream, calls: int, burst: float) -> dict[str, float]:
    dist.barrier()
    gathers.run(calls)
    # What the bucket held at the beginning is no part of the rate.
    read = calls * gathers.read
    rate = gathers.rate * max(read - burst, 0) / read
    dist.barrier()
    alone = stream.alone()
    return {"rate": rate, "kept": alone / stream.beside(gathers, calls)}


def broadcast_cells(
    gathers: Gathers, broadcasts: Broadcasts, seconds: float
) -> dict[str, dict[str, float]]:
    """What broadcasts keep of their speed beside all-gathers, unlimited and at half of theirs."""
    found = {"unlimited": cell(gathers, broadcasts, UNLIMITED_CALLS, 0)}
    # Ranks measure each their own rate, and must make equally many calls.
    half = torch.tensor([found["unlimited"]["rate"] / 2])
    dist.broadcast(half, 0)
    rate = int(half.item())
    tidegate.set_limits(rate=rate)
    burst = tidegate.stats()["admission"]["limits"]["burst"]
    found["half"] = cell(gathers, broadcasts, gathers.calls(rate, seconds), burst)
    tidegate.set_limits()
    return found


def main(options: dict[str, Any]) -> None:
    dist.init_process_group("tidegate")
    gathers, reductions, broadcasts = Gathers(options["bytes"]), Reductions(), Broadcasts()
    gathers.run(50)
    reductions.alone()
    broadcasts.alone()
    for _ in range(options["rounds"]):
        tidegate.set_limits()
        found: dict[str, Any] = {"unlimited": cell(gathers, reductions, UNLIMITED_CALLS, 0)}
        found["limited"] = {}
        for rate in options["rates"]:
            tidegate.set_limits(rate=int(rate))
            burst = tidegate.stats()["admission"]["limits"]["burst"]
            calls = gathers.calls(rate, options["seconds"])
            found["limited"][str(rate)] = cell(gathers, reductions, calls, burst)
        tidegate.set_limits()
        found["broadcasts"] = broadcast_cells(gathers, broadcasts, options["seconds"])
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
