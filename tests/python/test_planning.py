"""What a group plans by: topology files, node names, calibration."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli.main import main

from tests.conformance.cases import run_all
from tests.python.cli_calls import complaint_of
from tests.python.jobs import run_job
from tests.python.test_cli_main import in_terminal

SCRIPT = """
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
if rank == 1 and "OTHER_ALGO" in os.environ:
    os.environ["TIDEGATE_ALGO"] = os.environ["OTHER_ALGO"]
if "NODE_IDS" in os.environ:
    os.environ["TIDEGATE_NODE_ID"] = os.environ["NODE_IDS"].split(",")[rank]
said = []
try:
    dist.init_process_group("tidegate")
    size = dist.get_world_size()
    members = [rank for rank in range(size) if rank % 2 == 1]
    odd = dist.new_group(members)
    for group, ranks in ((None, list(range(size))), (odd, members)):
        if rank not in ranks:
            continue
        for length in (1, 300, 70001):
            whole = torch.empty(length * len(ranks), dtype=torch.int32)
            parts = [torch.arange(length).int() + 100000 * r for r in ranks]
            dist.all_gather_into_tensor(whole, parts[ranks.index(rank)], group=group)
            assert torch.equal(whole, torch.cat(parts)), (rank, length)
            mine = torch.empty(length, dtype=torch.int32)
            dist.reduce_scatter_tensor(mine, whole * (rank + 1), group=group)
            assert torch.equal(mine, parts[ranks.index(rank)] * sum(r + 1 for r in ranks))
            values = torch.randn(length, generator=torch.Generator().manual_seed(rank))
            dist.all_reduce(values, group=group)
            dist.broadcast(values, ranks[0], group=group)
            dist.reduce(values, ranks[-1], group=group)
            said.append(values.numpy().tobytes().hex()[:64])
            chunks = [torch.full((length,), 10 * rank + r) for r in ranks]
            got = [torch.empty(length, dtype=torch.int64) for _ in ranks]
            dist.all_to_all(got, chunks, group=group)
            assert [int(one[0]) for one in got] == [10 * r + rank for r in ranks]
            into = got if rank == ranks[0] else None
            dist.gather(chunks[0], into, dst=ranks[0], group=group)
            firsts = [int(one[0]) for one in into or ()]
            assert into is None or firsts == [10 * r + ranks[0] for r in ranks]
            one = torch.empty(length, dtype=torch.int64)
            dist.scatter(one, chunks if rank == ranks[-1] else None, src=ranks[-1], group=group)
            assert int(one[0]) == 10 * ranks[-1] + rank
    dist.barrier()
    dist.destroy_process_group()
    os.write(1, f"right {rank} {' '.join(said)}\\n".encode())
except (RuntimeError, ValueError) as error:
    os.write(1, (type(error).__name__ + " " + str(error).replace("\\n", " ") + "\\n").encode())
"""


# Splits that are given, and lists, say nothing of other ranks' blocks, be they equal or not.
ALL_TO_ALL = """
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("tidegate")
size = dist.get_world_size()
for length in (0, 1, 300, 70001):
    sent = torch.cat([torch.full((length,), 10 * rank + to) for to in range(size)])
    wanted = torch.cat([torch.full((length,), 10 * r + rank) for r in range(size)])
    for splits in (None, [length] * size):
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, splits, splits)
        assert torch.equal(got, wanted), (rank, length, splits)
    lists = [torch.empty(length, dtype=torch.int64) for _ in range(size)]
    dist.all_to_all(lists, list(sent.chunk(size)) if length else [sent] * size)
    assert torch.equal(torch.cat(lists), wanted), (rank, length)
    into = [length + r + rank for r in range(size)]
    sent = torch.cat([torch.full((count,), 10 * rank + to) for to, count in enumerate(into)])
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, into, into)
    wanted = [torch.full((count,), 10 * r + rank) for r, count in enumerate(into)]
    assert torch.equal(got, torch.cat(wanted)), (rank, length)
# A failure of the next call may reach a rank that is still in this one.
store = dist.distributed_c10d._get_default_store()
store.set(f"right {rank}", "")
store.wait([f"right {r}" for r in range(size)])
mistake = os.environ["MISTAKE"]
count = size * (2 if mistake == "count" and rank == 1 else 1)
splits = [1] * size if mistake == "splits" and rank == 1 else None
got = torch.full((count,), -1)
try:
    dist.all_to_all_single(got, torch.ones(count, dtype=torch.int64), splits, splits)
    said = "nothing"
except RuntimeError as error:
    said = str(error).replace("\\n", " ")
assert torch.equal(got, torch.full((count,), -1))
os.write(1, f"{rank} {said}\\n".encode())
"""


def ranks(tmp_path: Path, size: int, script: str = SCRIPT, **env: str) -> list[str]:
    """What each rank of a job printed, in order."""
    done = run_job(script, tmp_path, size, {"TIDEGATE_CACHE_DIR": str(tmp_path / "cache"), **env})
    (tmp_path / "stderr").write_text(done.stderr)
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == size, done.stdout + done.stderr
    return lines


def all_right(lines: list[str]) -> bool:
    return all(line.startswith(f"right {rank}") for rank, line in enumerate(lines))


def described(tmp_path: Path, cluster: str) -> str:
    """A topology file of a made-up cluster."""
    path = tmp_path / f"{cluster}.json"
    with path.open("w") as file, contextlib.redirect_stdout(file):
        assert main(["topo", "--fake", cluster, "--json"]) == 0
    return str(path)


def calibrations(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((tmp_path / "cache").glob("*"))]


def test_a_described_cluster_is_planned_for_and_subgroups_find_themselves(tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    cluster = described(tmp_path, "3+3")
    lines = ranks(tmp_path, 6, TIDEGATE_TOPO_FILE=cluster, TIDEGATE_TOPO_DUMP_FILE=str(dump))
    assert all_right(lines), lines
    shown = json.loads(dump.read_text())
    assert shown["tidegate_topology"] == 1
    # Only ranks on several nodes can run these; the odd ones are on both, too.
    choice = "ag:column_ring,rs:column_ring,ar:column_bruck"
    assert all_right(ranks(tmp_path, 6, TIDEGATE_TOPO_FILE=cluster, TIDEGATE_ALGO=choice))
    for line in ranks(tmp_path, 6, TIDEGATE_ALGO=choice):
        assert "cannot be run by 6 ranks on 1 node(s)" in line


@pytest.mark.parametrize("mistake", ["splits", "count"])
def test_what_needs_equal_blocks_runs_only_where_all_ranks_see_that_they_are(
    tmp_path: Path, mistake: str
) -> None:
    lines = ranks(
        tmp_path,
        5,
        ALL_TO_ALL,
        TIDEGATE_TOPO_FILE=described(tmp_path, "3+2"),
        TIDEGATE_ALGO="a2a:column",
        TIDEGATE_DEBUG="TRACE",
        MISTAKE=mistake,
    )
    told = {"splits": "give splits on all ranks or on none", "count": "all_to_all splits differ"}
    assert all(told[mistake] in line for line in lines), lines
    said = (tmp_path / "stderr").read_text()
    assert re.search("all_to_all of .* runs column", said)
    assert re.search("all_to_all of .* runs pairwise", said)
    for line in ranks(tmp_path, 2, TIDEGATE_ALGO="a2a:column"):
        assert "possible: direct" in line


def test_a_bad_file_is_told_to_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"tidegate_topology": 1,\n "nodes": [}')
    for line in ranks(tmp_path, 3, TIDEGATE_TOPO_FILE=str(path)):
        assert f"TIDEGATE_TOPO_FILE: {path}" in line
        assert "line 2" in line
    for line in ranks(tmp_path, 3, TIDEGATE_TOPO_FILE=described(tmp_path, "1x2")):
        assert "describes 2 ranks, the group has 3" in line


def test_a_rank_that_cannot_plan_says_so_to_all(tmp_path: Path) -> None:
    cluster = described(tmp_path, "2+1")
    other = "ag:column_recursive_doubling,rs:recursive_doubling"
    lines = ranks(tmp_path, 3, TIDEGATE_TOPO_FILE=cluster, OTHER_ALGO=other)
    assert all("cannot be run by 3 ranks on 2 node(s)" in line for line in lines), lines


def test_ranks_of_differently_named_nodes_are_told_so(tmp_path: Path) -> None:
    assert all_right(ranks(tmp_path, 3, NODE_IDS="a,a,a"))
    lines = ranks(tmp_path, 3, NODE_IDS="a,b,a")
    assert all("TIDEGATE_NODE_ID" in line for line in lines), lines


@pytest.mark.parametrize("cluster", [None, "2+1"])
def test_bits_do_not_depend_on_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str | None
) -> None:
    if cluster is not None:
        monkeypatch.setenv("TIDEGATE_TOPO_FILE", described(tmp_path, cluster))
    first = ranks(tmp_path, 3)
    assert all_right(first), first
    (made,) = calibrations(tmp_path)
    (file,) = (tmp_path / "cache").glob("*")
    assert ranks(tmp_path, 3) == first
    assert calibrations(tmp_path) == [made]
    # A machine with other figures by orders of magnitude.
    file.write_text(json.dumps({**made, "copy_Bps": 3e6, "memory_Bps": 1e14, "signal_s": 4e-5}))
    assert ranks(tmp_path, 3) == first
    file.unlink()
    assert ranks(tmp_path, 3, TIDEGATE_CALIBRATE="0") == first
    assert calibrations(tmp_path) == []


# `tidegate measure`, of each collective the first algorithms alone: a job for each number of one.
MEASURE = """
import sys
from tidegate.cli import measure
from tidegate.cli.main import main
choice, most = measure._choice, int(sys.argv[1])
measure._choice = lambda candidates, index: choice(candidates, index) if index < most else {}
sys.exit(main(["measure", "--ranks", "2", "--least", "1000", "--most", "1000"]))
"""


@pytest.mark.parametrize(
    ("ranks", "topology", "complaint"),
    [
        ("0", "", "--ranks 0: there must be 2 to 64"),
        ("2", "machine.json", "TIDEGATE_TOPO_FILE is set: what is measured is this machine"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    topology: str,
    complaint: str,
) -> None:
    monkeypatch.setenv("TIDEGATE_TOPO_FILE", topology)
    assert complaint in complaint_of(capsys, 2, "measure", "--ranks", ranks)


def test_groups_choose_by_what_was_measured(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    most = "100" if run_all() else "2"
    shown = in_terminal("-c", MEASURE, most, cwd=tmp_path, TIDEGATE_CACHE_DIR=cache)
    assert "two_shot" in shown
    if importlib.util.find_spec("rich") is not None:
        begun = re.search("0/([0-9]+)", shown)
        assert begun is not None
        runs = begun.group(1)
        assert int(runs) > 1
        assert f"{runs}/{runs}" in shown
    said = re.search(r"kept in (\S+)", shown)
    assert said is not None
    path = Path(said.group(1))
    kept = json.loads(path.read_text())
    measured = {(name, algorithm) for name, algorithm, _, _ in kept["seconds"]}
    assert {("all_gather", "direct"), ("all_gather", "ring"), ("reduce", "two_shot")} < measured
    assert all(size_class == 10 and time > 0 for _, _, size_class, time in kept["seconds"])
    first = ranks(tmp_path, 2)
    assert all_right(first), first
    # As if the ring were by far the fastest.
    kept["seconds"] = [
        [name, algorithm, size_class, 1e-9 if algorithm == "ring" else 1.0]
        for name, algorithm, _, _ in kept["seconds"]
        for size_class in range(1, 21)
    ]
    path.write_text(json.dumps(kept))
    assert ranks(tmp_path, 2, TIDEGATE_DEBUG="TRACE") == first
    trace = (tmp_path / "stderr").read_text()
    assert re.search("all_gather of .* runs ring", trace)
    # Its order of reduction is another.
    assert re.search("reduce_scatter of .* runs direct", trace)
    assert not re.search("reduce_scatter of .* runs ring", trace)
