"""What tidegate does beside a GPU: serves CPU tensors, refuses the device's readably."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.interpreter import run_script
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def _refuse(context: RankContext) -> tuple[str, str, float]:
    """What a CUDA tensor raises on every rank, and what the group computes after that."""
    kind = text = ""
    try:
        dist.all_reduce(torch.ones(4, device="cuda:0"))
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    value = torch.full((4,), float(context.rank + 1))
    dist.all_reduce(value)
    return kind, text, float(value[3])


def test_a_cuda_tensor_is_refused_by_name_and_the_group_goes_on(pools: PoolKeeper) -> None:
    for kind, text, total in pools.get(2).run(_refuse):
        assert kind == "ValueError", (kind, text)
        assert "cuda:0" in text
        assert "cpu" in text
        assert total == 3.0


def _reduce_pinned(context: RankContext) -> list[float]:
    value = torch.tensor([1.0, 2.0, 3.0]).mul_(context.rank + 1).pin_memory()
    assert value.is_pinned()
    dist.all_reduce(value)
    return value.tolist()


def test_pinned_memory_is_served(pools: PoolKeeper) -> None:
    assert pools.get(2).run(_reduce_pinned) == [[3.0, 6.0, 9.0]] * 2


def test_nccl_serves_the_gpu_of_the_same_group(tmp_path: Path) -> None:
    if not dist.is_nccl_available():
        pytest.skip("this torch was built without NCCL")
    script = """
        import os, torch, torch.distributed as dist
        torch.cuda.set_device(0)
        store = dist.FileStore(os.environ["STORE"], 1)
        dist.init_process_group("cpu:tidegate,cuda:nccl", store=store, rank=0, world_size=1)
        for device in ("cpu", "cuda"):
            value = torch.tensor([1.5, -2.0], device=device)
            dist.all_reduce(value)
            backend = dist.group.WORLD._get_backend(torch.device(device))
            print(device, type(backend).__name__, value.tolist())
        dist.destroy_process_group()
    """
    done = run_script(script, tmp_path, STORE=str(tmp_path / "store"))
    assert done.stdout.splitlines()[-2:] == [
        "cpu ProcessGroupTidegate [1.5, -2.0]",
        "cuda ProcessGroupNCCL [1.5, -2.0]",
    ]
