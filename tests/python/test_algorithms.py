"""TIDEGATE_ALGO: what it changes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.jobs import run_job

SCRIPT = """
import os
import torch
import torch.distributed as dist
if os.environ["RANK"] == "1" and "OTHER_ALGO" in os.environ:
    os.environ["TIDEGATE_ALGO"] = os.environ["OTHER_ALGO"]
try:
    dist.init_process_group("tidegate")
    rank, size = dist.get_rank(), dist.get_world_size()
    shard = torch.arange(3000, dtype=torch.int32) + 10000 * rank
    whole = torch.empty(3000 * size, dtype=torch.int32)
    dist.all_gather_into_tensor(whole, shard)
    parts = [torch.arange(3000, dtype=torch.int32) + 10000 * r for r in range(size)]
    assert torch.equal(whole, torch.cat(parts))
    mine = torch.empty(3000, dtype=torch.int32)
    dist.reduce_scatter_tensor(mine, whole * (rank + 1))
    assert torch.equal(mine, shard * sum(range(1, size + 1)))
    for dtype in (torch.int8, torch.float32, torch.bfloat16):
        # The sum of int8 does not fit into int8: its mean has to come from the exact sum.
        tensor = torch.full((5001,), 100 + rank, dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        mean = sum(100 + r for r in range(size)) / size
        expected = torch.tensor(mean).to(torch.int64).to(dtype) if dtype == torch.int8 else mean
        assert torch.allclose(tensor.double(), torch.as_tensor(expected).double(), rtol=2**-8)
    dist.destroy_process_group()
    os.write(1, b"right\\n")
except (RuntimeError, ValueError) as error:
    os.write(1, (type(error).__name__ + " " + str(error).replace("\\n", " ") + "\\n").encode())
"""


def ranks(tmp_path: Path, size: int, **env: str) -> list[str]:
    return run_job(SCRIPT, tmp_path, size, env).stdout.splitlines()


@pytest.mark.parametrize("algorithm", ["ring", "bruck", "far_first", "recursive_doubling"])
def test_a_chosen_algorithm_gives_the_same_results(tmp_path: Path, algorithm: str) -> None:
    size = 4 if algorithm == "recursive_doubling" else 3
    choice = f"ag:{algorithm},rs:{algorithm},ar:{algorithm}"
    assert ranks(tmp_path, size, TIDEGATE_ALGO=choice) == ["right"] * size


def test_an_impossible_choice_is_answered_with_the_possible_ones(tmp_path: Path) -> None:
    for line in ranks(tmp_path, 3, TIDEGATE_ALGO="ag:recursive_doubling"):
        assert line.startswith("ValueError")
        assert "cannot be run by 3 ranks on 1 node(s); possible: direct, ring, bruck" in line
    for line in ranks(tmp_path, 2, TIDEGATE_ALGO="ag:fastest"):
        assert 'no algorithm "fastest" for all_gather; there are direct, ' in line


def test_ranks_with_different_choices_are_told(tmp_path: Path) -> None:
    lines = ranks(tmp_path, 2, TIDEGATE_ALGO="ag:ring", OTHER_ALGO="ag:bruck")
    assert len(lines) == 2
    assert all("set TIDEGATE_ALGO equal on all ranks" in line for line in lines), lines
