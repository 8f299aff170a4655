"""`tidegate sim` tells how long plans take on machines that nobody here has."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tidegate import _backend
from tidegate.cli import progress
from tidegate.cli.main import main
from tidegate.cli.simulation import Chunking, Measurement, simulate

from tests.python.cli_calls import MACHINES, complaint_of, json_of, output_of, shapes, titles

Capture = pytest.CaptureFixture[str]

# What FakeCluster says of itself (collectives/topology/fake_cluster.h).
NIC_BPS = 50e9
INTER_SECONDS = 5e-6
MIB = 1 << 20


def rows_of(capsys: Capture, *arguments: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json_of(capsys, "sim", *arguments)["rows"]
    return rows


def test_one_message_takes_its_latency_and_its_bytes(capsys: Capture) -> None:
    (row,) = rows_of(capsys, "--fake", "2x1", "--algo", "direct", "--sizes", "128K")
    assert row["seconds"] == pytest.approx(INTER_SECONDS + 65536 / NIC_BPS, rel=1e-9)
    assert row["tier_bytes"] == {
        "rank": pytest.approx(131072 * 2),
        "node": 0,
        "leaf": 131072,
        "spine": 0,
    }


def test_columns_carry_each_byte_between_nodes_once(capsys: Capture) -> None:
    (row,) = rows_of(capsys, "--fake", "4x4", "--algo", "column_ring", "--sizes", "16M")
    # Every node gets the shards of the three others, and each rank reads three neighbours'.
    assert row["tier_bytes"]["leaf"] == 3 * 16 * MIB
    assert row["tier_bytes"]["node"] == 4 * 3 * 16 * MIB
    assert row["tier_bytes"]["spine"] == 0
    (ring,) = rows_of(capsys, "--fake", "4x4", "--algo", "ring", "--sizes", "16M", "--round-robin")
    assert ring["tier_bytes"]["leaf"] == 15 * 16 * MIB


def test_nothing_is_faster_than_the_bound(capsys: Capture) -> None:
    rows = rows_of(
        capsys,
        *("--fake", "2x4", "--sizes", "4K,1M,64M", "--coll"),
        "all_gather,reduce_scatter,all_reduce,broadcast",
    )
    assert len(rows) > 3 * 3 * 15
    for row in rows:
        assert not row["error"]
        assert 0 < row["bound_seconds"] <= row["seconds"] * (1 + 1e-9)


def test_rows_come_as_asked_and_the_fastest_first(capsys: Capture) -> None:
    rows = rows_of(capsys, "--fake", "2x2", "--sizes", "64K,4K", "--coll", "all_reduce,all_gather")
    keys = list(dict.fromkeys((row["collective"], row["bytes"]) for row in rows))
    assert keys == [
        *(("all_reduce", 65536), ("all_reduce", 4096)),
        *(("all_gather", 65536), ("all_gather", 4096)),
    ]
    for key in keys:
        times = [row["seconds"] for row in rows if (row["collective"], row["bytes"]) == key]
        assert times == sorted(times)


def test_simulation_and_plan_agree(capsys: Capture) -> None:
    for size in ("64K", "3M", "1G"):  # a chunk, some, and a pipeline that is continued
        plan = json_of(capsys, "plan", "all_gather", size, "--fake", "2x4")
        (row,) = rows_of(capsys, "--fake", "2x4", "--sizes", size, "--algo", plan["algorithm"])
        assert row["seconds"] == pytest.approx(plan["predicted_seconds"], rel=1e-9)


def test_long_pipelines_are_continued_in_a_straight_line() -> None:
    cluster = _backend.load_shim().Cluster.fake("2x4")
    executor = Chunking(best=False, bytes=0, buffer=0)
    total = 96 * MIB
    found = simulate(cluster, "all_gather", "column_ring", total, 0, executor)
    assert isinstance(found, Measurement)
    if not found.extrapolated:
        found = simulate(cluster, "all_gather", "ring", total, 0, executor)
    assert isinstance(found, Measurement)
    assert found.extrapolated
    exact = cluster.simulate("all_gather", "ring", total)
    assert found.chunks == exact["chunks"]
    assert found.seconds == pytest.approx(exact["seconds"], rel=0.01)
    assert found.tier_bytes == pytest.approx(exact["tier_bytes"], rel=0.01)
    assert found.peak_stage_bytes == exact["peak_stage_bytes"]


def test_ranks_of_a_node_stand_for_all(capsys: Capture) -> None:
    arguments = ("--sizes", "8M", "--algo", "column_bruck,ring", "--chunk", "64K")
    rows = rows_of(capsys, "--ranks", 96, *arguments)
    cluster = _backend.load_shim().Cluster.fake("12x8")
    for row in rows:
        exact = cluster.simulate("all_gather", row["algorithm"], 8 * MIB, chunk_bytes=65536)
        assert row["seconds"] == pytest.approx(exact["seconds"], rel=1e-9)
        assert row["tier_bytes"] == pytest.approx(exact["tier_bytes"], rel=1e-9)


def test_thousands_of_ranks_take_seconds(capsys: Capture) -> None:
    shown = output_of(capsys, "sim", "--ranks", 4096, "--sizes", "64M", "--algo", "column_bruck")
    first, _, _, row = shown.splitlines()
    assert first.startswith("4,096 ranks on 512 nodes of 8, the best chunks")
    words = row.split()
    assert words[:4] == ["all_gather", "64", "MiB", "column_bruck"]
    assert float(words[6].rstrip("%")) > 80  # of the bound


def test_spine_has_a_column_where_there_is_one(capsys: Capture) -> None:
    arguments = ("--fake", "64x2", "--sizes", "1M", "--algo", "column_ring", "--fabric")
    assert "by spine" not in output_of(capsys, "sim", *arguments, "single_switch")
    shown = output_of(capsys, "sim", *arguments, "fat_tree").splitlines()
    # 32 nodes below a leaf, so that of 64 hops round the ring two climb.
    assert shown[2].split() == [
        *("collective", "size", "algorithm", "time", "of", "bound", "chunks"),
        *("in", "nodes", "by", "leaf", "by", "spine", "peak", "buffer"),
    ]
    (row,) = rows_of(capsys, *arguments, "fat_tree")
    assert row["tier_bytes"]["spine"] * 31 == row["tier_bytes"]["leaf"]


def test_ranks_fill_nodes_of_eight(capsys: Capture) -> None:
    shown = output_of(capsys, "sim", "--ranks", 20, "--sizes", "4K", "--algo", "ring")
    assert shown.startswith("20 ranks on nodes of 8+8+4, chunks of the executor\n")
    one = output_of(capsys, "sim", "--ranks", 3, "--sizes", "4K", "--algo", "ring")
    assert one.startswith("3 ranks on one node, ")


def test_buffer_bounds_the_chunks(capsys: Capture) -> None:
    arguments = ("--fake", "4x4", "--algo", "column_ring", "--chunk", "best", "--sizes")
    (wide,) = rows_of(capsys, *arguments, "64K")
    (narrow,) = rows_of(capsys, *arguments, "64K", "--buffer", "4K")
    assert 0 < narrow["peak_stage_bytes"] <= 4096 < wide["peak_stage_bytes"]
    some = output_of(capsys, "sim", *arguments, "64K,1G", "--buffer", "4K")
    assert "column_ring of 1 GiB: 64 chunks need more than the 4 KiB of --buffer" in some


def test_nothing_that_was_simulated_is_a_failure(capsys: Capture) -> None:
    arguments = ("--algo", "column_ring", "--chunk", "best", "--sizes", "1G", "--buffer", "4K")
    assert main(["sim", "--fake", "4x4", *arguments]) == 1
    assert "64 chunks need more than the 4 KiB" in capsys.readouterr().out


def test_described_machines_are_simulated(capsys: Capture) -> None:
    rows = rows_of(capsys, "--topo", MACHINES / "dgx_h100.json", "--sizes", "8M")
    assert {row["tier_bytes"]["leaf"] for row in rows} == {0}
    assert len(rows) >= 4


def test_plot_has_a_curve_for_each_algorithm_and_the_bound(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "times.svg"
    arguments = ("--fake", "2x2", "--algo", "ring,direct", "--sizes", "4K,64K,1M", "--plot", path)
    output_of(capsys, "sim", *arguments)
    assert sorted(titles(path, "polyline")) == ["bound", "direct", "ring"]
    for curve in shapes(path, "polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in curve.get("points", "").split()]
        assert len(points) == 3
        # To the right and upwards: more bytes, more time.
        assert points == sorted(points)
        assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    for stream, shown in ((Terminal(), "...\n"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", stream)
        with progress.Progress(3) as bar:
            for _ in range(3):
                bar.next("a piece")
                bar.done()
        assert stream.getvalue() == shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "say how many ranks: --ranks 64, --fake 8x8 or --topo FILE"),
        (("--ranks", "0"), "--ranks 0: there must be 1 to 131072"),
        (("--ranks", "99999999999999"), "--ranks 99999999999999: there must be 1 to 131072"),
        (("--fake", "2x2", "--sizes", "1M,,2M"), '"" does not start with a number'),
        (("--fake", "2x2", "--sizes", "1Q"), '"1Q" has an unknown unit'),
        (("--fake", "2x2", "--coll", "all_gathr"), "no collective is called all_gathr"),
        (("--fake", "2x2", "--algo", "rong"), "no all_gather called rong serves"),
        (
            ("--fake", "2x2", "--coll", "all_to_all", "--algo", "direct"),
            "no all_to_all called direct serves on 4 ranks on 2 nodes of 2",
        ),
        (("--fake", "2x2", "--chunk", "0"), "--chunk 0: at least 64 bytes, executor or best"),
        (("--fake", "2x2", "--chunk", "some"), '"some" does not start with a number'),
        (("--fake", "2x2", "--coll", "broadcast", "--root", "4"), "--root 4: the ranks are 0 to 3"),
        (("--topo", "/nowhere.json"), "cannot read /nowhere.json"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in complaint_of(capsys, 2, "sim", *arguments)
