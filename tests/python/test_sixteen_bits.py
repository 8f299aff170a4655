"""Sums of 16-bit floats: accumulated in fp32 in the order of the ranks, and rounded once."""

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
for dtype in (torch.bfloat16, torch.float16):
    for elements in (1, 33, 50_001):
        # All ranks know what all ranks have; of one sign, so that nothing cancels.
        torch.manual_seed(elements)
        inputs = [(100 * torch.rand(ranks * elements)).to(dtype) for _ in range(ranks)]
        part = torch.empty(elements, dtype=dtype)
        dist.reduce_scatter_single(part, inputs[rank].clone())
        mine = slice(rank * elements, (rank + 1) * elements)
        total = inputs[0][mine].float()
        for one in inputs[1:]:
            total = total + one[mine].float()
        assert torch.equal(part, total.to(dtype)), (dtype, elements)
        exact = torch.stack([one[mine].double() for one in inputs]).sum(0).to(dtype)
        # Positive floats are ordered as the integers of the same bits.
        apart = part.view(torch.int16).int() - exact.view(torch.int16).int()
        assert apart.abs().max() <= 1, (dtype, elements, apart.abs().max())
os.write(1, b"right\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_reduce_scatter_rounds_once(tmp_path: Path, ranks: int) -> None:
    expect_right(SCRIPT, tmp_path, ranks)
