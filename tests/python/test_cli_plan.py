"""`tidegate plan` chooses, says why, proves, and prints what a rank does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tidegate import offload
from tidegate.cli.cluster import load_shim

from tests.python.cli_calls import MACHINES, complaint_of, json_of, output_of, shapes, titles
from tests.python.tree import ROOT

Capture = pytest.CaptureFixture[str]

# What FakeCluster says of itself (collectives/topology/fake_cluster.h).
NIC_BPS = 50e9
INTER_SECONDS = 5e-6
MIB = 1 << 20


def test_bound_is_that_of_the_slowest_cut(capsys: Capture) -> None:
    plan = json_of(capsys, "plan", "all_gather", "64M", "--fake", "4x4")
    assert plan["bytes"] == 64 * MIB
    assert plan["bound_seconds"] == pytest.approx(3 / 4 * 64 * MIB / NIC_BPS, rel=1e-9)
    assert "node cut" in plan["bound_cut"]
    assert plan["predicted_seconds"] >= plan["bound_seconds"]


def test_prediction_of_one_message_is_latency_and_bytes(capsys: Capture) -> None:
    plan = json_of(capsys, "plan", "all_gather", "128K", "--fake", "2x1", "--algo", "direct")
    assert plan["algorithm"] == "direct"
    assert plan["predicted_seconds"] == pytest.approx(INTER_SECONDS + 65536 / NIC_BPS, rel=1e-9)


def test_fastest_candidate_is_chosen(capsys: Capture) -> None:
    for size in ("4K", "64M"):
        plan = json_of(capsys, "plan", "reduce_scatter", size, "--fake", "4x4")
        times = {entry["algorithm"]: entry["seconds"] for entry in plan["candidates"]}
        assert list(times.values()) == sorted(times.values())
        # Of what is within 2% the simplest is taken.
        assert times[plan["algorithm"]] <= 1.02 * min(times.values())
        assert {"ring", "column_ring", "leader_ring", "recursive_doubling"} <= times.keys()


def test_why_lists_the_candidates_and_marks_the_choice(capsys: Capture) -> None:
    arguments = ("plan", "all_gather", "64M", "--fake", "2x4")
    plan = json_of(capsys, *arguments)
    shown = output_of(capsys, *arguments, "--why")
    table = shown.split("Candidates at 96 MiB")[1].splitlines()[2:]
    assert [line.split()[0] for line in table] == [c["algorithm"] for c in plan["candidates"]]
    chosen = [line.split()[0] for line in table if line.endswith(" chosen")]
    assert chosen == [plan["algorithm"]]
    assert f"algorithm  {plan['algorithm']}: fastest of" in shown
    assert "% of the bound" in shown
    assert "Candidates" not in output_of(capsys, *arguments)


def test_plans_are_verified(capsys: Capture) -> None:
    small = output_of(capsys, "plan", "all_reduce", "1M", "--fake", "3+1")
    assert "\nverified   yes, every step of every rank\n" in small
    large = output_of(
        capsys, "plan", "all_gather", "1M", "--fake", "20x4", "--algo", "column_bruck"
    )
    assert "\nverified   yes, by symmetry\n" in large
    arguments = ("plan", "all_gather", "1M", "--fake", "257x4", "--algo", "column_bruck")
    assert "\nverified   no: above 1,024 ranks" in output_of(capsys, *arguments)
    assert "\nverified   yes, by symmetry\n" in output_of(capsys, *arguments, "--verify")


def test_nodes_below_a_leaf_stand_for_all(capsys: Capture) -> None:
    # Neither is a shift by one node a symmetry, nor would all 16,384 ranks be simulated in time.
    machine = MACHINES / "cluster_2048_fat_tree_4to1.json"
    arguments = ("--topo", machine, "--algo", "column_far_first")
    plan = json_of(capsys, "plan", "all_gather", "64M", *arguments)
    assert plan["bound_seconds"] < plan["predicted_seconds"] < 10 * plan["bound_seconds"]


def test_steps_are_those_of_the_golden_file(capsys: Capture) -> None:
    golden = (ROOT / "tests/data/schedules/all_gather_column_ring_2x2.txt").read_text()
    arguments = ("plan", "all_gather", "1M", "--fake", "2x2", "--algo", "column_ring")
    for rank in range(4):
        *program, verdict = output_of(capsys, *arguments, "--steps", rank).splitlines()
        assert program[0].startswith(f"all_gather column_ring rank {rank} of 4 ")
        assert "\n".join(program) in golden
        assert verdict == "verified: yes, every step of every rank"
    as_json = json_of(capsys, *arguments, "--steps", 3)
    assert (as_json["tidegate_schedule"], as_json["rank"], as_json["ranks"]) == (1, 3, 4)


def test_setting_forces_the_choice(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ALGO", "ag:ring")
    shown = output_of(capsys, "plan", "all_gather", "1M", "--fake", "2x4")
    assert "algorithm  ring: forced by TIDEGATE_ALGO" in shown
    monkeypatch.setenv("TIDEGATE_ALGO", "ag:rong")
    complaint = complaint_of(capsys, 2, "plan", "all_gather", "1M", "--fake", "2x4")
    assert "TIDEGATE_ALGO" in complaint
    assert "rong" in complaint


@pytest.mark.parametrize(
    "machine",
    # All candidates of 16,384 ranks take half a minute.
    sorted(path.stem for path in MACHINES.glob("*.json") if "cluster" not in path.stem),
)
def test_each_described_machine_has_a_plan(capsys: Capture, machine: str) -> None:
    plan = json_of(capsys, "plan", "all_gather", "4M", "--topo", MACHINES / f"{machine}.json")
    assert 0 < plan["bound_seconds"] <= plan["predicted_seconds"] * (1 + 1e-9)


def test_picture_has_an_arrow_for_each_hop(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "hops.svg"
    output_of(
        capsys,
        *("plan", "all_gather", "1M", "--fake", "2x4", "--algo", "column_ring", "--svg", path),
    )
    hops = titles(path, "line")
    # Each rank puts its block to its column's other rank, and reads two of each of three others.
    puts = [f"rank {rank} to rank {(rank + 4) % 8}: 1 block" for rank in range(8)]
    assert sorted(hop for hop in hops if hop in puts) == puts
    assert len(hops) == 8 + 8 * 3 * 2
    assert any("all_gather column_ring" in (text.text or "") for text in shapes(path, "text"))


def test_picture_of_many_ranks_is_refused(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "hops.svg"
    arguments = ("--fake", "20x4", "--algo", "ring", "--svg", path)
    assert "80 ranks do not fit" in complaint_of(capsys, 2, "plan", "all_gather", "1M", *arguments)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("all_gather", "64Q"), '"64Q" has an unknown unit; use K, M, G or T'),
        (("all_gather", "much"), '"much" does not start with a number'),
        (("all_gather", "-1M"), "-1M"),
        (("all_gathr", "64M"), "no collective is called all_gathr; there are all_gather,"),
        (("all_gather", "1M", "--algo", "rong"), "is called rong; there are direct, column_ring"),
        (("all_gather", "1M", "--algo", "one_shot"), "is called one_shot; there are direct"),
        (("all_gather", "1M", "--steps", "4"), "--steps 4: the ranks are 0 to 3"),
        (("all_gather", "1M", "--steps", "9" * 11), "--steps 99999999999: the ranks are 0 to 3"),
        (("broadcast", "1M", "--root", "9"), "--root 9: the ranks are 0 to 3"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: tuple[str, ...], complaint: str) -> None:
    # argparse takes what starts with a dash for an option.
    words = [word if word != "-1M" else " -1M" for word in arguments]
    assert complaint in complaint_of(capsys, 2, "plan", *words, "--fake", "2x2")


def test_steps_as_json_are_the_schedule_alone(capsys: Capture) -> None:
    text = output_of(
        capsys, *("plan", "all_gather", "1M", "--fake", "1x2", "--steps", "0", "--json")
    )
    assert json.loads(text)["collective"] == "all_gather"


def test_this_machine_reduces_in_one_pass_as_its_groups_do(capsys: Capture) -> None:
    plan = json_of(capsys, "plan", "all_reduce", "64M", "--ranks", "4")
    excluded = {c["algorithm"]: c["excluded"] for c in plan["candidates"]}
    assert excluded[plan["algorithm"]] == ""
    assert "several passes" in excluded["ring"]


def test_measured_times_of_this_machine_decide(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Has this process read its settings before, as whatever ran earlier may have.
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    offload.SGD([parameter], lr=1.0).step()
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path))
    arguments = ("plan", "all_gather", "64K", "--ranks", "3")
    assert json_of(capsys, *arguments)["algorithm"] != "ring"
    assert "measured" not in output_of(capsys, *arguments, "--why")
    size_class = (64 << 10).bit_length()
    load_shim().keep_measured(3, [("all_gather", "ring", size_class, 2e-6)])
    plan = json_of(capsys, *arguments)
    assert (plan["algorithm"], plan["reason"].split(",")[0]) == ("ring", "fastest as measured")
    shown = output_of(capsys, *arguments, "--why")
    (ring,) = [line.split() for line in shown.splitlines() if line.startswith("ring ")]
    assert ring[-3:] == ["2", "us", "chosen"]
    # Another number of ranks, or a described machine: not what was measured.
    assert json_of(capsys, *arguments[:-1], "4")["algorithm"] != "ring"
    assert json_of(capsys, *arguments[:-2], "--fake", "1x3")["algorithm"] != "ring"
