"""All-gathers keep to TIDEGATE_AG_RATE; nothing else is held, and no bit changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.python.jobs import run_job

RATE = 64 << 20
BURST = 1 << 20

SCRIPT = """
import os
import time
import torch
import torch.distributed as dist
import tidegate

def gathered(ranks, elements, round_, asynchronous):
    part = torch.arange(elements, dtype=torch.float32) + dist.get_rank() * 1000 + round_
    whole = torch.empty(elements * ranks)
    work = dist.all_gather_into_tensor(whole, part, async_op=asynchronous)
    return work, whole

def check(ranks, elements, round_, whole):
    for rank, part in enumerate(whole.view(ranks, elements)):
        expected = torch.arange(elements, dtype=torch.float32) + rank * 1000 + round_
        assert torch.equal(part, expected), (rank, round_)

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    ranks = dist.get_world_size()
    elements = (1 << 20) // 4 // (ranks - 1) + 1
    read = elements * 4 * (ranks - 1)
    limits = tidegate.stats()["admission"]["limits"]
    assert (limits["rate"], limits["burst"]) == ({rate}, {burst}), limits
    dist.barrier()
    for asynchronous in (False, True):
        begin = time.monotonic()
        pending = [gathered(ranks, elements, i, asynchronous) for i in range(12)]
        for i, (work, whole) in enumerate(pending):
            if work is not None:
                work.wait()
            check(ranks, elements, i, whole)
        took = time.monotonic() - begin
        # 12 times a MiB: had more than the burst and the rate passed, it would have taken less.
        assert took >= (12 * read - {burst}) / {rate}, (asynchronous, took)
    admission = tidegate.stats()["admission"]
    assert admission["waits"] > 0 and admission["wait_seconds"] > 0, admission
    # Reductions are not held, of whatever size.
    part = torch.empty(1 << 20)
    for _ in range(8):
        dist.reduce_scatter_tensor(part, torch.ones(ranks << 20))
        assert part[-1] == ranks
    dist.broadcast(part, 0)
    assert tidegate.stats()["admission"]["waits"] == admission["waits"]
    os.write(1, b"kept\\n")
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("single_copy", ["0", "64M"])
def test_all_gathers_never_read_more_than_burst_and_rate(
    ranks: int, single_copy: str, tmp_path: Path
) -> None:
    env = {
        "TIDEGATE_AG_RATE": "64M",
        "TIDEGATE_AG_BURST": "1M",
        "TIDEGATE_SINGLE_COPY_BYTES": single_copy,
    }
    done = run_job(SCRIPT.format(rate=RATE, burst=BURST), tmp_path, ranks, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["kept"] * ranks


RELEASED = """
import os
import time
import pytest
import torch
import torch.distributed as dist
import tidegate

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    ranks = dist.get_world_size()
    part = torch.full((1 << 22,), float(dist.get_rank()))
    whole = torch.empty(part.numel() * ranks)
    dist.barrier()
    with pytest.raises(ValueError, match="TIDEGATE_AG_RATE=fast is not accepted"):
        tidegate.set_limits(rate="fast")
    with pytest.raises(ValueError, match="TIDEGATE_AG_BURST=1048576 is the burst of no rate"):
        tidegate.set_limits(burst=1 << 20)
    limits = tidegate.stats()["admission"]["limits"]
    assert (limits["rate"], limits["burst"]) == (None, None)
    begin = time.monotonic()
    works = [dist.all_gather_into_tensor(whole, part, async_op=True)]
    tidegate.set_limits(rate="1M")
    limits = tidegate.stats()["admission"]["limits"]
    assert (limits["rate"], limits["burst"]) == (1 << 20, 1 << 20)
    works.append(dist.all_gather_into_tensor(whole, part, async_op=True))
    gathered = (ranks - 1) * part.numel() * 4
    while time.monotonic() < begin + 0.5:
        assert not works[1].is_completed()
    tidegate.set_limits()
    for work in works:
        work.wait()
    # Held to the end, each would have taken this long.
    assert time.monotonic() - begin < (gathered - (1 << 20)) / (1 << 20)
    assert torch.equal(whole.view(ranks, -1)[:, 0], torch.arange(ranks, dtype=torch.float32))
    os.write(1, b"released\\n")
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_limits_can_be_set_and_lifted_while_all_gathers_run(ranks: int, tmp_path: Path) -> None:
    done = run_job(RELEASED, tmp_path, ranks, {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["released"] * ranks


ALONE = """
import torch.distributed as dist

dist.init_process_group("tidegate", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TIDEGATE_AG_RATE": "0"}, "TIDEGATE_AG_RATE=0 is not accepted.*1 MiB to 1 TiB"),
        ({"TIDEGATE_AG_RATE": "-5M"}, "TIDEGATE_AG_RATE=-5M is not accepted"),
        ({"TIDEGATE_AG_RATE": "fast"}, "TIDEGATE_AG_RATE=fast is not accepted"),
        ({"TIDEGATE_AG_RATE": "9000T"}, "TIDEGATE_AG_RATE=9000T is not accepted"),
        ({"TIDEGATE_AG_BURST": "1M"}, "TIDEGATE_AG_BURST=1048576 is the burst of no rate"),
        (
            {
                "TIDEGATE_AG_RATE": "2M",
                "TIDEGATE_STAGE_BYTES": "64M",
                "TIDEGATE_CHUNK_BYTES": "8M",
            },
            "less than a chunk a second; legal are 8388608 and more",
        ),
    ],
)
def test_a_rate_that_cannot_be_kept_is_refused(
    env: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = run_job(ALONE, tmp_path, 1, env)
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr
