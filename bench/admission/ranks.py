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
REDUCTIONS_ALONE = 400
REDUCED = 1 << 18  # elements of a rank's part: 1 MiB


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


class Reductions:
    """Reduce-scatters in a group of their own; a part's first element says how many are done."""

    def __init__(self) -> None:
        ranks = dist.get_world_size()
        self.group = dist.new_group(backend="tidegate")
        self.all = torch.zeros(REDUCED * ranks)
        self.part = torch.empty(REDUCED)

    def once(self, is_done: bool) -> bool:
        self.all[::REDUCED] = float(is_done)
        dist.reduce_scatter_tensor(self.part, self.all, group=self.group)
        return self.part[0].item() == dist.get_world_size()

    def alone(self) -> float:
        begin = time.perf_counter()
        for _ in range(REDUCTIONS_ALONE):
            self.once(False)
        return (time.perf_counter() - begin) / REDUCTIONS_ALONE

    def beside(self, gathers: Gathers, calls: int) -> float:
        thread = threading.Thread(target=gathers.run, args=(calls,))
        reductions, begin = 0, time.perf_counter()
        thread.start()
        while not self.once(not thread.is_alive()):
            reductions += 1
        took = time.perf_counter() - begin
        thread.join()
        return took / max(reductions, 1)


def cell(gathers: Gathers, reductions: Reductions, calls: int, burst: float) -> dict[str, float]:
    dist.barrier()
    gathers.run(calls)
    # What the bucket held at the beginning is no part of the rate.
    read = calls * gathers.read
    rate = gathers.rate * max(read - burst, 0) / read
    dist.barrier()
    alone = reductions.alone()
    return {"rate": rate, "kept": alone / reductions.beside(gathers, calls)}


def main(options: dict[str, Any]) -> None:
    dist.init_process_group("tidegate")
    gathers, reductions = Gathers(options["bytes"]), Reductions()
    gathers.run(50)
    reductions.alone()
    for _ in range(options["rounds"]):
        tidegate.set_limits()
        found: dict[str, Any] = {"unlimited": cell(gathers, reductions, UNLIMITED_CALLS, 0)}
        found["limited"] = {}
        for rate in options["rates"]:
            tidegate.set_limits(rate=int(rate))
            burst = tidegate.stats()["admission"]["limits"]["burst"]
            calls = gathers.calls(rate, options["seconds"])
            found["limited"][str(rate)] = cell(gathers, reductions, calls, burst)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
