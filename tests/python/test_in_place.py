"""gather and scatter with the own block in place: nothing is copied, and all is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.jobs import expect_right

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("tidegate")
rank, ranks = dist.get_rank(), dist.get_world_size()
for root in range(ranks):
    for elements in (1, 1000, 300_001):
        rows = torch.arange(ranks * elements, dtype=torch.float32).view(ranks, elements) + root
        whole = rows.clone() if rank == root else torch.full_like(rows, -1)
        own = whole[rank]
        dist.scatter(own, list(whole) if rank == root else None, src=root)
        assert torch.equal(own, rows[rank]), (root, elements)
        assert rank != root or torch.equal(whole, rows), (root, elements)
        own += 1
        dist.gather(own, list(whole) if rank == root else None, dst=root)
        assert rank != root or torch.equal(whole, rows + 1), (root, elements)
        # Blocks that overlap in another way are still copied first.
        shifted = rows[0].clone() if rank == root else torch.empty(elements)
        blocks = [shifted] * ranks if rank == root else None
        dist.scatter(shifted, blocks, src=root)
        assert torch.equal(shifted, rows[0]), (root, elements)
os.write(1, b"right\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_own_block_in_place(tmp_path: Path, ranks: int) -> None:
    expect_right(SCRIPT, tmp_path, ranks)
