"""How bytes pass through the stages never changes a bit of a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.python.cli_calls import json_of, output_of
from tests.python.jobs import run_job

SCRIPT = """
import hashlib, json, multiprocessing, os
import torch
import torch.distributed as dist

RUNS_UNDER_STRESS = 200
SETTINGS = [
    {}, {"TIDEGATE_CHUNK_BYTES": "4K"}, {"TIDEGATE_CHUNK_BYTES": "100000"},
    {"TIDEGATE_STREAM_BYTES": "0"}, {"TIDEGATE_STREAM_BYTES": "1T"}, {"TIDEGATE_CALIBRATE": "0"},
    {"TIDEGATE_STAGE_BYTES": "64K"}, {"TIDEGATE_STAGE_BYTES": "8M", "TIDEGATE_CHUNK_BYTES": "4M"},
]

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
            bits = torch.cat([part, whole, values]).view(torch.uint8).numpy().tobytes()
            found[f"{dtype} {op}"] = hashlib.sha256(bits).hexdigest()
    return found

def burn(stop):
    while not stop.is_set():
        pass

if __name__ == "__main__":
    dist.init_process_group("tidegate")
    everybody = list(range(dist.get_world_size()))
    results = []
    for setting in SETTINGS:
        os.environ.update(setting)
        group = dist.new_group(everybody)
        results.append(digests(group, 150001))
        for name in setting:
            del os.environ[name]
    short = digests(None, 1001)
    stop = multiprocessing.Event()
    hogs = []
    if dist.get_rank() == 0:
        hogs = [multiprocessing.Process(target=burn, args=(stop,)) for _ in range(os.cpu_count())]
    for hog in hogs:
        hog.start()
    stressed = [digests(None, 1001) for _ in range(RUNS_UNDER_STRESS)]
    stop.set()
    for hog in hogs:
        hog.join()
    equal = all(result == results[0] for result in results)
    steady = all(result == short for result in stressed)
    os.write(1, (json.dumps([equal, steady, len(set(results[0].values()))]) + "\\n").encode())
    dist.destroy_process_group()
"""


def test_bits_depend_on_no_chunk_store_or_load(tmp_path: Path) -> None:
    done = run_job(SCRIPT, tmp_path, 3, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        equal, steady, different = json.loads(line)
        assert equal
        assert steady
        assert different == 6  # Dtypes and operations are told apart at all.


def test_why_shows_the_paths_of_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path))
    arguments = ("plan", "all_gather", "64K", "--ranks", "2")
    measured = json_of(capsys, *arguments)["data_paths"]
    assert measured == json_of(capsys, *arguments)["data_paths"]  # Kept, not measured again.
    (kept,) = [json.loads(file.read_text()) for file in tmp_path.iterdir()]
    assert {name: kept[name] for name in measured} == measured
    monkeypatch.setenv("TIDEGATE_CHUNK_BYTES", "96K")
    assert json_of(capsys, *arguments)["data_paths"]["chunk_bytes"] == 96 << 10
    assert "chunks     of at most 96 KiB; results of" in output_of(capsys, *arguments, "--why")
    assert "data_paths" not in json_of(capsys, *arguments[:-2], "--fake", "1x2")
