"""The benches of bench/ run, check what they time, and compare within rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import launch, table
from bench.peers.launch import Place, Plan
from bench.peers.settings import LIBRARIES, MPICH, OPEN_MPI
from bench.targets.__main__ import judge
from bench.training import table as training
from tests.python.tree import ROOT

NODE = ROOT / "build" / "release" / "bench" / "collectives" / "tidegate_bench_node"
needs_node = pytest.mark.skipif(not NODE.exists(), reason="no tidegate_bench_node: make unit")
SCALE = ROOT / "build" / "release" / "bench" / "scale"
needs_scale = pytest.mark.skipif(
    not (SCALE / "tidegate_wins").exists(), reason="no tidegate_scale, tidegate_wins: make unit"
)

IN_PLACE = {"all_gather", "reduce_scatter", "all_reduce"}


@needs_node
def test_node_bench_compares_tensors_in_shared_memory(tmp_path: Path) -> None:
    samples = tmp_path / "samples.json"
    arguments = ["all_gather", "reduce_scatter", "--resident", "--sizes", "70K", "--ranks", "2"]
    arguments += ["--rounds", "2", "--calls", "2", "-J", str(samples)]
    subprocess.run([NODE, *arguments], capture_output=True, check=True)
    for cell in json.loads(samples.read_text())["cells"]:
        assert cell["wrong"] == 0
        assert {"tidegate", "resident", "resident_in_place"} <= set(cell["loops_us"])


@needs_node
def test_node_bench_reports_every_variant_of_every_cell(tmp_path: Path) -> None:
    samples = tmp_path / "samples.json"
    arguments = ["--sizes", "100,70K", "--ranks", "3", "--calls", "2"]
    arguments += ["--passes", "2", "--rounds", "2"]
    ran = subprocess.run(
        [NODE, *arguments, "-J", samples], capture_output=True, text=True, check=True
    )
    found = json.loads(samples.read_text())
    assert set(found["host"]) == {"cpu", "cores", "kernel", "governor", "huge_pages", "load"}
    assert found["options"] == {
        **{"async": False, "load": False},
        **{"passes": 2, "rounds": 2, "warmups": 1},
    }
    assert set(found["disturbance"]) == {"others_percent", "stolen_percent"}
    cells = {(cell["collective"], cell["asked_bytes"]): cell for cell in found["cells"]}
    moved = {"broadcast", "all_to_all", "gather", "scatter"} | IN_PLACE
    assert set(cells) == {(name, size) for name in moved for size in (100, 70 << 10)} | {
        ("barrier", 0)
    }
    for (collective, size), cell in cells.items():
        assert cell["wrong"] == 0
        assert cell["bytes"] % (3 * 64) == 0
        variants = {"tidegate"}
        variants |= {"tidegate_in_place"} if collective in IN_PLACE else set()
        variants |= {"plain", "streaming"} if collective != "barrier" else set()
        variants |= {"bare"} if collective in ("all_gather", "reduce_scatter") else set()
        variants |= {"flags"} if size <= 64 << 10 else set()
        assert set(cell["loops_us"]) == variants
        assert all(len(times) == 4 and min(times) > 0 for times in cell["loops_us"].values())
        assert all(len(each["p50"]) == 4 for each in cell["each_us"].values())
        assert set(cell["each_us"]) == (variants if size <= 64 << 10 else set())
    assert ran.stdout.count("| all_gather | 3 | ordinary | 70 KiB |") == 1


@needs_node
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["reduce"], "reduce: is no collective of this bench"),
        (["--ranks", "65"], '--ranks: wants a number from 1 to 64, got "65"'),
        (["--sizes", "5X"], '"5X"'),
        (["--rounds"], "--rounds: wants a value"),
        (["--fast", "1"], "--fast: no such option"),
    ],
)
def test_node_bench_says_what_is_wrong_with_an_argument(
    arguments: list[str], complaint: str
) -> None:
    ran = subprocess.run([NODE, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert complaint in ran.stderr


@needs_node
def test_the_libraries_that_are_installed_agree_with_the_node_bench_on_the_cells() -> None:
    plan = Plan(["all_gather", "scatter", "barrier"], [100, 4096], 2)
    own = launch.launch_tidegate(plan)
    assert set(own) == {
        *(Place("all_gather", size, placed) for size in (100, 4096) for placed in (False, True)),
        *(Place("scatter", size, False) for size in (100, 4096)),
        Place("barrier", 0, False),
    }
    missing = []
    for library in LIBRARIES:
        program = launch.build(library)
        if isinstance(program, str):
            missing.append(program)
            continue
        for setting in library.settings:
            assert set(launch.launch_mpi(program, library, setting, plan)) == set(own)
    if len(missing) == len(LIBRARIES):
        pytest.skip("; ".join(missing))


def table_rows(program: str, *arguments: str) -> list[dict[str, str]]:
    """Of all Markdown tables that a program of bench/scale prints, by the head of each."""
    ran = subprocess.run([SCALE / program, *arguments], capture_output=True, text=True, check=True)
    rows: list[dict[str, str]] = []
    head: list[str] = []
    for line in ran.stdout.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif set(line) != {"|", "-"}:
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


@needs_scale
def test_scale_table_has_a_row_for_each_collective_and_size() -> None:
    only = ("--only", "one switch", "--algo", "column_bruck", "--chunks", "1")
    rows = table_rows("tidegate_scale", *only, "512")
    assert {row["collective"] for row in rows} == {"all_gather", "reduce_scatter"}
    assert {"1 MB", "64 MB"} <= {row["S"] for row in rows}
    for row in rows:
        assert (row["cluster"], row["algorithm"], row["chunks"]) == ("one switch", *only[3::2])
        assert 0 < float(row["of bound"].rstrip("%")) <= 100
        assert row["S"] != "1 MB" or float(row["ratio"].rstrip("x")) > 10


@needs_scale
def test_wins_table_says_of_every_algorithm_how_often_it_is_the_fastest() -> None:
    rows = table_rows("tidegate_wins", "--small", "2", "--large", "0", "--fixtures", "0")
    named = [row for row in rows if "points" in row]
    assert {"direct", "column_ring", "one_shot", "tree"} <= {row["algorithm"] for row in named}
    for collective in {row["collective"] for row in named}:
        of_it = [row for row in named if row["collective"] == collective]
        calls = max(int(row["points"]) for row in of_it)
        assert sum(int(row["fastest"]) for row in of_it) <= calls == 2
    assert any("can be left out" in row for row in rows)


def test_a_library_is_shown_at_its_best_setting_and_compared_within_rounds() -> None:
    place = Place("all_gather", 64 << 10, False)
    timings = {
        (table.TIDEGATE, ""): [10.0, 20.0, 40.0],
        ("Open MPI", "cma"): [30.0, 30.0, 30.0],
        ("Open MPI", "ucx"): [20.0, 20.0, 90.0],
    }
    text = table.markdown([(2, {place: timings})], ["Open MPI", "MPICH"])
    assert text.splitlines()[-1] == (
        "| all_gather | 2 | 64 KiB |  | 20.00 | 20.00 ucx | - | 2.00 (1.00..2.25) | - |"
    )


def test_mpich_is_meant_for_as_many_ranks_as_cores() -> None:
    assert [MPICH.suits(ranks, cores=2) for ranks in (2, 3)] == [True, False]
    assert OPEN_MPI.suits(3, cores=2)
    assert "mpi_yield_when_idle" in OPEN_MPI.placement(3, cores=2)
    assert "mpi_yield_when_idle" not in OPEN_MPI.placement(2, cores=2)


def test_an_aim_is_judged_by_the_median_of_the_ratios_within_rounds() -> None:
    cell = {
        **{"collective": "all_gather", "ranks": 2, "bytes": 16 << 20, "asked_bytes": 16 << 20},
        "loops_us": {
            "tidegate": [10.0, 10.0, 20.0],
            "tidegate_in_place": [11.0, 5.0, 10.0],
            "streaming": [8.0, 9.0, 19.0],
            "resident": [8.0, 9.0, 20.0],
        },
    }
    quiet = {"options": {"load": False}, "cells": [cell]}
    share, resident, in_place = judge(quiet)
    assert (share.aim, share.measured, share.holds) == (">= 0.85", "0.90 (0.80..0.95)", True)
    assert (resident.aim, resident.measured) == (">= 0.98", "1.00 (0.95..1.00)")
    assert (in_place.measured, in_place.holds) == ("2.00 (0.91..2.00)", True)
    cell["loops_us"]["streaming"] = [8.0, 8.0, 19.0]
    assert next(judge(quiet)).holds is False


def test_the_rival_of_an_aim_is_the_better_library_at_its_better_setting() -> None:
    place = {"collective": "all_reduce", "ranks": 2, "bytes": 64 << 10, "in_place": True}
    samples = [
        {**place, "library": library, "setting": setting, "us": times}
        for library, setting, times in (
            ("tidegate", "", [10.0, 10.0]),
            ("Open MPI", "cma", [50.0, 50.0]),
            ("Open MPI", "ucx", [22.0, 20.0]),
            ("MPICH", "default", [30.0, 30.0]),
        )
    ]
    (verdict,) = judge(samples)
    assert (verdict.what, verdict.aim, verdict.measured, verdict.holds) == (
        *("Open MPI / tidegate, in place", ">= 2.00", "2.10 (2.00..2.20)"),
        True,
    )


def test_a_call_of_torch_is_judged_beside_gloo_and_beside_no_communication() -> None:
    place = {"collective": "all_gather", "ranks": 2, "size": 64 << 10, "type": "bfloat16"}
    samples = {
        "results": [
            {**place, "backend": name, "out_of_place": {"rounds_us": times}, "in_place": None}
            for name, times in (
                ("tidegate", [10.0, 20.0, 10.0]),
                ("gloo", [250.0, 380.0, 190.0]),
                ("null", [3.0, 3.0, 4.0]),
                ("memcpy", [1.0, 1.0, 1.0]),
            )
        ]
    }
    ratio, above_null = judge(samples)
    assert (ratio.what, ratio.aim) == ("gloo / tidegate, bfloat16", ">= 20.00")
    assert (ratio.measured, ratio.holds) == ("19.00 (19.00..25.00)", False)
    assert (above_null.what, above_null.aim) == ("us above null, bfloat16", "<= 10.0")
    assert (above_null.measured, above_null.holds) == ("7.0 (6.0..17.0)", True)


def training_cell(**seconds: list[float]) -> dict[str, Any]:
    """Of steps that take so long, with losses that agree."""
    variants = {
        name.replace("_", " "): {
            **{"seconds": times, "in_collectives": [0.25] * 3, "moving": [0.125] * 3},
            "faults": [512.0] * 3,
            "losses": [] if name == "null" else [3.0, 2.0],
        }
        for name, times in seconds.items()
    }
    return {
        **{"model": "wide", "sharding": "fsdp2", "ranks": 2, "parameters": 100, "threads": 1},
        **{"page_bytes": 4096, "resident_bytes": 1, "variants": variants},
    }


def test_the_gain_of_training_is_the_share_of_what_null_saves_within_rounds() -> None:
    cell = training_cell(
        gloo=[5.0, 9.0, 5.0],
        tidegate=[2.0, 3.0, 3.0],
        null=[1.0, 1.0, 1.0],
        group_memory=[1.0, 2.0, 2.0],
    )
    gain, resident = judge({"training": [cell]})
    assert (gain.what, gain.aim) == ("share of what null saves over gloo", ">= 0.85")
    assert (gain.measured, gain.holds) == ("0.75 (0.50..0.75)", False)
    assert (resident.measured, resident.holds) == ("1.50 (1.50..2.00)", True)
    (line,) = training.times([cell])[1:]
    assert line[3:7] == ["5000.0", "3000.0", "1000.0", "2000.0"]
    line = training.parts([cell])[2]
    assert line[3:] == ["tidegate", "3000.0", "125.0", "125.0", "2750.0", "2.0"]


@pytest.mark.parametrize(
    ("name", "losses", "complaint"),
    [
        ("tidegate", [3.0, 2.01], "losses differ from gloo's by 5.0e-03"),
        ("group memory", [3.0, float("nan")], "losses differ from gloo's by inf"),
        ("gloo", [3.0, 3.5], "the loss goes from 3 to 3.5"),
    ],
)
def test_training_that_goes_wrong_is_told(name: str, losses: list[float], complaint: str) -> None:
    cell = training_cell(gloo=[5.0], tidegate=[2.0], null=[1.0], group_memory=[1.0])
    assert list(training.wrong([cell])) == []
    cell["variants"][name]["losses"] = losses
    assert any(complaint in one for one in training.wrong([cell]))


def test_buffers_that_never_lay_in_the_groups_memory_are_told() -> None:
    cell = training_cell(gloo=[5.0], group_memory=[1.0]) | {"resident_bytes": 0}
    (complaint,) = training.wrong([cell])
    assert "nothing lay in the group's memory" in complaint


def test_the_rate_of_all_gathers_is_measured_beside_reduce_scatters() -> None:
    command = [sys.executable, "-m", "bench.rate_limit", "--ranks", "3", "--rounds", "2"]
    command += ["--seconds", "0.1", "--rates", "5e7", "6e8"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split("|")[1].strip() for line in ran.stdout.splitlines() if line[:1] == "|"]
    broadcasts = ["all-gathers", "---", "unlimited", "half"]
    assert rows == ["rate MB/s", "---", "50", "600", "none", *broadcasts]


def test_training_is_timed_on_every_backend_and_its_losses_agree(tmp_path: Path) -> None:
    samples = tmp_path / "samples.json"
    command = [sys.executable, "-m", "bench.fsdp_step", "--tiny", "--ranks", "3", "--rounds", "2"]
    command += ["--steps", "2", "--markdown", "--json", str(samples)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250)
    assert ran.returncode == 0, ran.stderr
    cells = json.loads(samples.read_text())["training"]
    assert [(cell["model"], cell["sharding"]) for cell in cells] == [
        *(("demo", "fsdp2"), ("demo", "fsdp1"), ("wide", "fsdp2"), ("wide", "fsdp1")),
    ]
    for cell in cells:
        backends = ["gloo", "tidegate", "null"]
        backends += ["group memory"] if cell["sharding"] == "fsdp2" else []
        assert list(cell["variants"]) == backends
        for name, variant in cell["variants"].items():
            assert len(variant["seconds"]) == 2
            parts = (variant[part] for part in ("moving", "in_collectives", "seconds"))
            for moving, inside, whole in zip(*parts, strict=True):
                assert 0 < moving <= inside < whole
            assert len(variant["losses"]) == (0 if name == "null" else 3 + 2 * (1 + 2))
        assert (cell["resident_bytes"] > 0) == (cell["sharding"] == "fsdp2")
    assert ran.stdout.count("| wide | fsdp1 | 3 |") == 1 + 3
