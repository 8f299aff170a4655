"""`tidegate topo` shows machines as the planner sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate import _backend

from tests.python.cli_calls import MACHINES, complaint_of, json_of, output_of, shapes, titles

Capture = pytest.CaptureFixture[str]


def test_this_machine_has_a_rank_for_each_processor(capsys: Capture) -> None:
    usable = _backend.load_shim().machine()["usable_cpus"]
    shown = output_of(capsys, "topo")
    assert shown.startswith(f"{usable} rank{'s' if usable > 1 else ''} on one node\n")
    assert "NUMA node" in shown
    assert output_of(capsys, "topo", "--ranks", 3).startswith("3 ranks on one node\n")


def test_this_machine_is_what_the_settings_say(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_TOPO_FILE", str(MACHINES / "laptop.json"))
    assert output_of(capsys, "topo", "--ranks", 4).startswith("laptop: 4 ranks on one node\n")
    complaint = complaint_of(capsys, 2, "topo", "--ranks", 3)
    assert "TIDEGATE_TOPO_FILE" in complaint
    assert "describes 4 ranks, the group has 3" in complaint


def test_tree_and_ways_of_a_dgx(capsys: Capture) -> None:
    lines = output_of(capsys, "topo", "--file", MACHINES / "dgx_h100.json").splitlines()
    assert lines[0] == "DGX H100: 8 ranks on one node"
    rank = next(number for number, line in enumerate(lines) if line.startswith("    rank5 "))
    assert lines[rank - 1].startswith("  gpu5 ")
    assert "nvswitch NVL 450 GB/s" in lines[rank - 1]
    assert "NIC 50 GB/s rail 3" in "\n".join(lines)
    ways = [line for line in lines if line.startswith("from ")]
    assert len(ways) == 8
    assert all(line.count("NVL 450") == 7 for line in ways)


def test_equal_nodes_are_shown_once(capsys: Capture) -> None:
    shown = output_of(capsys, "topo", "--file", MACHINES / "cluster_2048_fat_tree_4to1.json")
    assert "node0 .. node2047 (2,048 alike)" in shown
    assert "16,384 ranks on 2,048 nodes of 8" in shown
    assert "fabric/leaf0 (512 alike)" in shown
    # 4 nodes of 8 NICs of 25 GB/s below a leaf, whose uplink has a quarter of that.
    assert "32 x NIC NET 25 GB/s, 800 ns; 1 x switch NET 200 GB/s, 400 ns" in shown
    assert len(shown.splitlines()) < 60


def test_made_up_clusters_have_the_shape_that_was_asked_for(capsys: Capture) -> None:
    shown = output_of(capsys, "topo", "--fake", "3+1")
    assert shown.startswith("fake cluster: 4 ranks on nodes of 3+1\n")
    assert shown.count("NET 50") == 2 + 2 * 3 + 1  # NICs, ways between nodes, switch
    rails = json_of(capsys, "topo", "--fake", "2x4", "--fabric", "rail_only", "--rails", 2)
    assert rails["tidegate_topology"] == 1
    dealt = output_of(capsys, "topo", "--fake", "2x2", "--round-robin")
    assert "rank 0, 2 " in dealt
    assert dealt.splitlines()[-4].split()[2:] == ["-", "NET", "50", "LOC", "150", "NET", "50"]


def test_json_is_a_file_that_describes_the_same(capsys: Capture, tmp_path: Path) -> None:
    for arguments in (("--fake", "3+1"), ("--file", MACHINES / "hgx_a100.json")):
        described = output_of(capsys, "topo", *arguments, "--json")
        path = tmp_path / "machine.json"
        path.write_text(described)
        assert output_of(capsys, "topo", "--file", path, "--json") == described
        plain = output_of(capsys, "topo", *arguments)
        assert output_of(capsys, "topo", "--file", path) == plain


def test_what_is_hardly_true_is_a_warning(capsys: Capture) -> None:
    shown = output_of(capsys, "topo", "--file", MACHINES / "vm_hidden_switches.json")
    warnings = [line for line in shown.splitlines() if line.startswith("warning: ")]
    assert any("2.5 GT/s" in line and "and 63 like it" in line for line in warnings)
    assert "warning" not in output_of(capsys, "topo", "--file", MACHINES / "dgx_h100.json")


def test_picture_has_every_vertex_and_link_once(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "dgx.svg"
    output_of(capsys, "topo", "--file", MACHINES / "dgx_h100.json", "--svg", path)
    cluster = _backend.load_shim().Cluster.file(str(MACHINES / "dgx_h100.json"))
    drawn = [title.split(",")[0] for title in titles(path, "rect")]
    inside = [vertex["id"] for vertex in cluster.vertices() if vertex["kind"] != "node"]
    assert sorted(drawn) == sorted(inside)
    assert any(text.text == "dgx" for text in shapes(path, "text"))
    assert len(titles(path, "line")) == len(cluster.links())


def test_picture_of_a_large_cluster_is_small(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "cluster.svg"
    output_of(capsys, "topo", "--fake", "512x8", "--fabric", "fat_tree", "--svg", path)
    assert any(text.text == "and 508 nodes more" for text in shapes(path, "text"))
    assert path.stat().st_size < 50_000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--file", "/nowhere.json"), "cannot read /nowhere.json: No such file"),
        (("--fake", "2y4"), "nodes x ranks of each, as in 2x4"),
        (("--fake", "0x4"), "describes no cluster"),
        (("--fake", "100000x100000"), "at most 131072 are supported"),
        *(
            (("--fake", "2x4", "--rails", rails), f"--rails {rails}: there must be 1 to 1024")
            for rails in ("0", "-1", "99999999999")
        ),
        (("--fake", "2x4", "--oversubscription", "0"), "--oversubscription 0: at least 1"),
        (("--ranks", "99999999999999"), "--ranks 99999999999999: there must be 1 to 131072"),
        (("--fake", "2x4", "--ranks", "7"), "--ranks 7, but 2x4 has 8"),
        (("--fabric", "fat_tree"), "of a made-up cluster alone"),
        (("--ranks", "0"), "--ranks 0: there must be 1 to 131072"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in complaint_of(capsys, 2, "topo", *arguments)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tidegate_topology": 7}, "$.tidegate_topology"),
        ({"nodes": []}, "$: a topology without a node"),
        ({"speed": 1}, "speed"),
    ],
)
def test_malformed_files_are_refused_with_their_path(
    capsys: Capture, tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "machine.json"
    laptop = json.loads((MACHINES / "laptop.json").read_text())
    path.write_text(json.dumps(laptop | change))
    told = complaint_of(capsys, 2, "topo", "--file", path)
    assert str(path) in told
    assert complaint in told


def test_text_that_is_no_json_is_refused_with_its_line(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{\n  "tidegate_topology": 1,\n  "nodes": [\n')
    assert "line 4" in complaint_of(capsys, 2, "topo", "--file", path)


def test_bytes_that_are_no_text_are_named_with_their_file(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(b"\xff\xfe")
    complaint = complaint_of(capsys, 2, "topo", "--topo", path)
    assert f"{path}: line 1, column 1: " in complaint
    assert r"\xff" in complaint


def test_picture_that_cannot_be_written_is_a_failure(capsys: Capture) -> None:
    told = complaint_of(capsys, 1, "topo", "--fake", "2x2", "--svg", "/nowhere/x.svg")
    assert "/nowhere/x.svg cannot be written: No such file or directory" in told
