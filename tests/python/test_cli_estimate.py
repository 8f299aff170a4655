"""`tidegate estimate`: bytes by layout and mode, and what docs/offload.md says of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tidegate.cli import footprint
from tidegate.cli.footprint import Job, Need, Tensors, layout_of

from tests.python.cli import environment
from tests.python.cli_calls import complaint_of, json_of, output_of
from tests.python.tree import ROOT
from tests.support.interpreter import run_script

Capture = pytest.CaptureFixture[str]
PAGE = ROOT / "docs/offload.md"


@pytest.mark.parametrize(
    ("optimizer", "dtype", "master", "states", "total"),
    [
        ("adamw", "fp32", "auto", "fp32", 16),
        ("adamw", "bf16", "auto", "fp32", 16),
        ("adamw", "fp16", "fp32", "fp32", 16),
        ("adamw", "bf16", "split", "fp32", 14),
        ("adamw", "bf16", "none", "fp32", 12),
        ("adamw", "bf16", "split", "bf16", 10),
        ("adamw", "fp32", "none", "bf16", 12),
        ("adamw", "bf16", "split", "8bit", 8 + 2 * 4 / 256),
        ("adam-amsgrad", "fp32", "none", "fp32", 20),
        ("sgd", "fp32", "auto", "fp32", 8),
        ("sgd-momentum", "bf16", "auto", "fp32", 12),
        ("adagrad", "fp32", "auto", "fp32", 12),
        ("lion", "bf16", "split", "fp32", 10),
    ],
)
def test_bytes_of_a_parameter(
    optimizer: str, dtype: str, master: str, states: str, total: float
) -> None:
    assert layout_of(optimizer, dtype, master, states).total == total


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("7B", 7 * 10**9), ("124M", 124 * 10**6), ("1.3B", 1_300_000_000), ("0.5k", 500)),
        *(("124439808", 124439808), ("1T", 10**12), ("999999999999999", 999999999999999)),
    ],
)
def test_parameters_are_counted_in_powers_of_a_thousand(text: str, count: int) -> None:
    assert footprint.parameters(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("512G", 512 << 30), ("1.5TiB", 3 << 39), ("4096", 4096), ("64MiB", 64 << 20), ("9B", 9)],
)
def test_memory_is_counted_in_powers_of_1024(text: str, count: int) -> None:
    assert footprint.memory(text) == count


def modes(job: Job, *layout: str) -> dict[str, Need]:
    return {need.mode: need for need in footprint.needs(job, layout_of(*layout))}


def test_modes_divide_what_they_shard() -> None:
    found = modes(Job(1 << 30, ranks=16, ranks_per_node=8), "adamw", "bf16", "auto", "fp32")
    gib = 1 << 30
    assert found["none, sharded"].device_rank == 16 * gib // 16
    assert found["none, replicated"].device_rank == 16 * gib
    # Parameters and gradients are FSDP's, the rest is the arena's.
    assert (found["M1"].device_rank, found["M1"].host_rank) == (0, gib)
    assert found["M1"].arena_rank == 12 * gib // 16
    # Gradients come down and parameters go up, so the host has them, too.
    assert (found["M2"].device_rank, found["M2"].host_rank) == (4 * gib // 16, gib)
    assert found["M2"].arena_rank == found["M2"].host_rank
    assert "CUDA" in found["M2"].remark
    # Every rank has the model; master and states are divided by the ranks of a node, and what a
    # rank publishes is its part of the parameters.
    assert found["M4"].arena_rank == 14 * gib // 8
    assert found["M4"].host_rank == 4 * gib + 14 * gib // 8
    assert found["M4"].host_node == 8 * found["M4"].host_rank


def test_without_the_engine_states_are_not_compressed() -> None:
    job = Job(1 << 20, 1, 1)
    small = modes(job, "adamw", "bf16", "split", "8bit")
    assert small["none, sharded"].device_rank == 16 << 20
    assert small["M1"].host_rank == pytest.approx(8.03 * (1 << 20), rel=0.002)
    plain = modes(job, "adamw", "bf16", "none", "fp32")
    assert plain["none, sharded"].device_rank == 8 << 20


def test_arena_rounds_to_lines_and_torch_to_powers_of_two() -> None:
    assert footprint.arena_bytes([1, 65, 4000]) == 8192
    mib = 1 << 20
    assert footprint.arena_bytes([mib + 1, 1]) == mib + 2 * 4096
    assert footprint.arena_bytes([512 * mib + 1]) == 514 * mib
    assert footprint.arena_bytes([]) == footprint.pinned_by_torch([]) == 0
    assert footprint.pinned_by_torch([1, 64, 65, (1 << 30) + 1]) == 1 + 64 + 128 + (2 << 30)
    need = modes(Job((1 << 28) + 1, 1, 1), "adamw", "fp32", "auto", "fp32")["M1"]
    assert need.arena_rank == pytest.approx(2 << 30, rel=2e-3)
    assert need.pinned_by_torch_rank == 4 << 30


def test_tensors_are_rounded_one_by_one() -> None:
    assert Tensors(10, 3).allocations(4) == [16, 12, 12]
    assert Tensors(2, 3).allocations(4) == [4, 4]  # of nothing there is no tensor
    assert Tensors(300, 1).allocations(1 + 4 / 256) == [300, 8]
    one = modes(Job(3 << 20, 1, 1), "sgd-momentum", "fp32", "auto", "fp32")["M1"]
    many = modes(Job(3 << 20, 1, 1, tensors=3), "sgd-momentum", "fp32", "auto", "fp32")["M1"]
    assert (one.pinned_by_torch_rank, many.pinned_by_torch_rank) == (16 << 20, 12 << 20)


def test_no_optimizer_without_states_has_an_arena_it_does_not_need() -> None:
    assert modes(Job(1000, 1, 1), "sgd", "fp32", "auto", "fp32")["M1"].arena_rank == 0


def test_json_has_every_mode_and_whether_it_fits(capsys: Capture) -> None:
    asked = ("estimate", "--params", "7B", "--ranks", "8", "--dtype", "bf16")
    found = json_of(capsys, *asked, "--memory", "128G")
    assert found["parameters"] == 7 * 10**9
    assert found["layout"]["bytes_per_parameter"] == 16
    assert found["node"] == {"available_bytes": 128 << 30, "lockable_bytes": None}
    rows = {row["mode"]: row for row in found["modes"]}
    assert list(rows) == ["none, sharded", "none, replicated", "M1", "M2", "M4"]
    assert {mode: row["fits"] for mode, row in rows.items()} == {
        **{"none, sharded": True, "none, replicated": True},
        **{"M1": True, "M2": True, "M4": False},
    }
    # This machine has memory, and a kernel that says so.
    here = json_of(capsys, "estimate", "--params", "1K")["node"]
    assert here["available_bytes"] > 1 << 20


def test_ranks_of_a_node_default_to_eight(capsys: Capture) -> None:
    assert json_of(capsys, "estimate", "--params", "1M")["ranks_per_node"] == 1
    asked = ("estimate", "--params", "1M", "--ranks", "64", "--memory", "1G")
    assert json_of(capsys, *asked)["ranks_per_node"] == 8
    assert "64 ranks on 16 nodes of 4\n" in output_of(capsys, *asked, "--ranks-per-node", "4")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--params 7X", "--params 7X: a number such as 7B, 124M, 1.3B or 124439808"),
        ("--params 0", "--params 0: 1 to 1000T parameters"),
        ("--params 2000T", "--params 2000T: 1 to 1000T parameters"),
        ("--params 7B --ranks 0", "--ranks 0: 1 to 1,048,576"),
        ("--params 7B --ranks 4 --ranks-per-node 8", "--ranks-per-node 8: 1 to 4"),
        ("--params 7B --tensors 0", "--tensors 0: 1 to"),
        ("--params 7B --optimizer adma", "--optimizer adma: none of adamw, adam,"),
        ("--params 7B --dtype fp8", "--dtype fp8: none of fp32, bf16, fp16"),
        ("--params 7B --master both", "--master both: none of auto, none, fp32, split"),
        ("--params 7B --states 4bit", "--states 4bit: none of fp32, bf16, 8bit"),
        ("--params 7B --master split", "--master split with --dtype fp32: "),
        ("--params 7B --dtype fp16 --master split", "only bf16 is the upper half of fp32"),
        ("--params 7B --optimizer lion --states 8bit", "--states 8bit with --optimizer lion: "),
        ("--params 7B --dtype bf16 --master none --states 8bit", "auto, fp32 or split"),
        ("--params 7B --memory much", "--memory much: bytes such as 512G"),
        (f"--params {'9' * 400}.5", "9.5: 1 to 1000T parameters"),
        (f"--params 7B --memory {'9' * 400}.5", "9.5: at most 1048576T"),
        (f"--params {'9' * 5000}", "9: a number such as 7B"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: str, complaint: str) -> None:
    assert complaint in complaint_of(capsys, 2, "estimate", *arguments.split())


def test_no_torch_is_needed(tmp_path: Path) -> None:
    script = """
    import sys; sys.modules['torch'] = None
    from tidegate.cli.main import main
    sys.exit(main(['estimate', '--params', '124M', '--json']))
    """
    assert '"available_bytes": ' in run_script(script, tmp_path, env=environment()).stdout
    assert sys.modules["torch"] is not None


def test_layouts_are_those_of_the_optimizers() -> None:
    from tidegate.offload import _layout

    assert (footprint.MASTERS, footprint.STATES) == (_layout.MASTERS, _layout.STATES)
    assert layout_of("adamw", "fp32", "auto", "8bit").state == 1 + 4 / _layout.BLOCK


def test_the_documented_bytes_of_layouts_are_those_of_the_command() -> None:
    lines = PAGE.read_text().split("## Memory")[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "`" in line]
    checked = 0
    for cells in rows:
        options = dict(re.findall(r"--(\w+) ([\w-]+)", cells[0]))
        if not options or len(cells) < 6:
            continue
        layout = layout_of(
            options.get("optimizer", "adamw"),
            options.get("dtype", "fp32"),
            options.get("master", "auto"),
            options.get("states", "fp32"),
        )
        figures = [float(cell) for cell in cells[1:6]]
        states = len(footprint.OPTIMIZERS[layout.optimizer]) * layout.state
        parts = [layout.gradient, layout.parameter, layout.master_bytes, states, layout.total]
        assert figures == pytest.approx(parts, abs=0.005), cells[0]
        checked += 1
    assert checked >= 12
