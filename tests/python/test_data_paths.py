"""How bytes pass through the stages never changes a bit of a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.jobs import run_job

SCRIPT = """
import hashlib, json, multiprocessing, os
import torch
import torch.distributed as dist

RUNS_UNDER_STRESS = 200
def digests(group, elements):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            seed = torch.Generator().manual_seed(rank)
            values = torch.randn(elements * ranks, generator=seed).to(dtype)
            part = torch.empty(elements, dtype=dtype)
            dist.reduce_scatter_tensor(part, values, op, group=group)
            whole = torch.empty(elements * ranks, dtype=dtype)
            dist.all_gather_into_tensor(whole, part, group=group)
            dist.all_reduce(values, op, group=group)
            turned = torch.empty_like(values)
            dist.all_to_all_single(turned, values, group=group)
            bits = torch.cat([part, whole, values, turned]).view(torch.uint8).numpy().tobytes()
            found[f"{dtype} {op}"] = hashlib.sha256(bits).hexdigest()
    return found

def stressed():
    short = digests(None, 1001)
    stop = multiprocessing.Event()
    hogs = []
    if dist.get_rank() == 0:
        hogs = [multiprocessing.Process(target=burn, args=(stop,)) for _ in range(os.cpu_count())]
    for hog in hogs:
        hog.start()
    steady = all(digests(None, 1001) == short for _ in range(RUNS_UNDER_STRESS))
    stop.set()
    for hog in hogs:
        hog.join()
    return steady

def burn(stop):
    while not stop.is_set():
        pass

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    found = digests(None, 150001)
    steady = True
    if "STRESS" in os.environ:
        steady = stressed()
    os.write(1, (json.dumps([found, steady]) + "\\n").encode())
    dist.destroy_process_group()
"""


SETTINGS = [
    {"STRESS": "1"},
    {"TIDEGATE_CHUNK_BYTES": "4K", "TIDEGATE_STREAM_BYTES": "0"},
    {"TIDEGATE_CHUNK_BYTES": "100000", "TIDEGATE_STREAM_BYTES": "1T"},
    {"TIDEGATE_STAGE_BYTES": "64K", "TIDEGATE_CALIBRATE": "0"},
    {"TIDEGATE_SINGLE_COPY_BYTES": "1T", "TIDEGATE_CHUNK_BYTES": "64K", "TIDEGATE_HEAP_BYTES": "0"},
    {"TIDEGATE_SINGLE_COPY_BYTES": "0", "OMP_NUM_THREADS": "2"},
]


def test_bits_depend_on_no_chunk_store_or_load(tmp_path: Path) -> None:
    seen = []
    for setting in SETTINGS:
        done = run_job(SCRIPT, tmp_path, 3, {"OMP_NUM_THREADS": "1", **setting})
        assert done.returncode == 0, done.stderr[-3000:]
        ranks = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(ranks) == 3
        assert all(steady for _, steady in ranks)
        seen.append(sorted(json.dumps(found) for found, _ in ranks))
    assert all(one == seen[0] for one in seen)
    assert len(set(json.loads(seen[0][0]).values())) == 6  # Dtypes and operations differ at all.


def _plan(*options: str, **settings: str) -> str:
    """A process of its own: one measures at most once."""
    asked = (sys.executable, "-m", "tidegate", "plan", "all_gather", "64K", *options)
    environment = {**os.environ, **settings}
    return subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout


def test_why_shows_the_paths_of_this_machine(tmp_path: Path) -> None:
    here = ("--ranks", "2", "--json")
    cache = {"TIDEGATE_CACHE_DIR": str(tmp_path)}
    measured = json.loads(_plan(*here, **cache))["data_paths"]
    (kept,) = [json.loads(file.read_text()) for file in tmp_path.iterdir()]
    most = measured.pop("single_copy_bytes")
    assert most in (0, 16 << 20)  # Declared.
    assert measured.pop("single_copy") is (most > 0)
    assert {name: kept[name] for name in measured} == measured
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**kept, "chunk_bytes": 65536}))
    assert json.loads(_plan(*here, **cache))["data_paths"]["chunk_bytes"] == 65536  # Not anew.
    chosen = _plan("--ranks", "2", "--why", TIDEGATE_CHUNK_BYTES="96K", **cache)
    assert "chunks     of at most 96 KiB; results are written past" in chosen
    assert "data_paths" not in json.loads(_plan("--fake", "1x2", "--json", **cache))


UNEVEN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("tidegate")
rank, size = dist.get_rank(), dist.get_world_size()

def sent(peer, large):
    parts = [8 << 10] * size
    parts[-1] = large if peer == 0 else parts[-1]
    seed = torch.Generator().manual_seed(peer)
    return [torch.randint(256, (n,), generator=seed, dtype=torch.uint8) for n in parts]

dist.barrier()
right = True
for large in (100 << 10, 300 << 10, 17 << 20):  # Of rank 0 alone: on either side of both limits.
    wanted = torch.cat([sent(peer, large)[rank] for peer in range(size)])
    for _ in range(4):
        mine, got = sent(rank, large), torch.zeros_like(wanted)
        sizes = [len(sent(peer, large)[rank]) for peer in range(size)]
        dist.all_to_all_single(got, torch.cat(mine), sizes, [len(part) for part in mine])
        right = right and torch.equal(got, wanted)
os.write(1, b"right\\n" if right else b"wrong\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_send_much_and_little_cut_it_alike(tmp_path: Path, size: int) -> None:
    for chunk, once in (("64K", None), ("4K", "16M"), ("64K", "0")):
        settings = {"TIDEGATE_CHUNK_BYTES": chunk, "TIDEGATE_STAGE_BYTES": "4M"}
        if once is not None:
            settings["TIDEGATE_SINGLE_COPY_BYTES"] = once
        done = run_job(UNEVEN, tmp_path, size, settings)
        assert done.stdout.split() == ["right"] * size, done.stderr[-3000:]


BOUND = """
import os
cpus = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % 2]})
import torch
import torch.distributed as dist
import tidegate

dist.init_process_group("tidegate")
rank, size, n = dist.get_rank(), dist.get_world_size(), 1 << 14
shard, gathered = torch.full((n,), float(rank)), torch.empty(size * n)
for _ in range(50):
    dist.all_gather_into_tensor(gathered, shard)
assert gathered.view(size, n).mean(1).tolist() == list(range(size))
copied = tidegate.stats()["links"]["shm"]["single_copy_bytes"]
os.write(1, f"{copied}\\n".encode())
dist.destroy_process_group()
"""


def _copied_once(folder: Path, ranks: int, **settings: str) -> list[int]:
    """Bytes that each of `ranks` ranks, each bound to one of two processors, copied once."""
    done = run_job(BOUND, folder, ranks, settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(line) for line in done.stdout.split()]


def test_ranks_bound_to_a_processor_each_copy_once(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    if _copied_once(tmp_path, 2, TIDEGATE_SINGLE_COPY_BYTES="1T") == [0, 0]:
        pytest.skip("processes may not read each other here")
    # Where calibration has found that it pays, which the next run reads from its file.
    cache = {"TIDEGATE_CACHE_DIR": str(tmp_path / "cache")}
    _copied_once(tmp_path, 2, **cache)
    for file in (tmp_path / "cache").iterdir():
        kept = json.loads(file.read_text())
        assert kept["single_copy_bytes"] in (0, 16 << 20)
        file.write_text(json.dumps(kept | {"single_copy_bytes": 16 << 20}))
    assert all(copied > 0 for copied in _copied_once(tmp_path, 2, **cache))
    assert _copied_once(tmp_path, 2, TIDEGATE_SINGLE_COPY_BYTES="0", **cache) == [0, 0]
    assert _copied_once(tmp_path, 4, **cache) == [0] * 4  # Two to each processor.
    assert all(_copied_once(tmp_path, 4, TIDEGATE_SINGLE_COPY_BYTES="1T"))
