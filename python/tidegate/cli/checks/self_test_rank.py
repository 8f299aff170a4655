"""One rank of doctor's self-test: `self_test_rank.py STORE_FILE RANK RANKS`.

An unmodified program, as a user writes it: the backend is a name, nothing of tidegate is imported.
"""

import os
import sys
from datetime import timedelta

# Two ranks, whatever the machine: spinning threads would only slow the start.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist


def main(store: str, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "tidegate",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=30),
    )
    elements = 100_003  # odd, and more than one chunk
    mine = torch.arange(elements, dtype=torch.float64) + rank
    total = mine.clone()
    dist.all_reduce(total)
    expected = torch.arange(elements, dtype=torch.float64) * ranks + sum(range(ranks))
    if not torch.equal(total, expected):
        raise SystemExit("all_reduce: the sum is wrong")
    gathered = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(gathered, mine)
    for peer, block in enumerate(gathered):
        if not torch.equal(block, mine - rank + peer):
            raise SystemExit(f"all_gather: the block of rank {peer} is wrong")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
