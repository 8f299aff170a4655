"""`tidegate demo` trains what is shipped with the package, judges it, and shows a failure."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tidegate.cli import demo

from tests.python.cli import tidegate
from tests.python.cli_calls import complaint_of
from tests.python.tree import ROOT

STATISTICS = {
    "version": 1,
    "groups": {
        "0": {
            "ops": {
                "all_gather": {"calls": 4, "bytes": 4096, "errors": 0},
                "reduce_scatter": {"calls": 2, "bytes": 2048, "errors": 0},
            }
        }
    },
    "links": {"shm": {"bytes": 1000}},
}


def test_two_steps_agree_with_one_process(tmp_path: Path) -> None:
    done = tidegate("demo", "--steps", "2", "--skip-gloo", "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.partition("== summary")[2]
    assert "greatest parameter difference" in summary
    assert "rank 0 counted" in summary
    for name in ("loss.svg", "checkpoint/.metadata", "stats.jsonl"):
        assert (tmp_path / "out" / name).exists(), name


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    done = tidegate("demo", "--output", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("tidegate demo: ")
    assert "files that are not the demo's" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "my only copy"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--output", "file"), "/file: Not a directory; name a folder that can be made"),
        (("--output", "/proc/demo"), "--output /proc/demo: No such file or directory; "),
        (("--backend", "glue"), "--backend glue: torch knows none called so; there are "),
        (("--backend", "cpu:glue,cuda:nccl"), "--backend cpu:glue,cuda:nccl: torch knows none"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert complaint in complaint_of(capsys, 2, "demo", *arguments)
    assert (tmp_path / "file").exists()


def test_backends_may_be_named_by_device() -> None:
    demo.check_backend("cpu:gloo,cuda:tidegate")


def test_the_script_is_the_example_and_knows_nothing_of_tidegate() -> None:
    shipped = demo.TRAIN.read_text()
    assert shipped == (ROOT / "examples/train_fsdp2.py").read_text()
    imported = set()
    for node in ast.walk(ast.parse(shipped)):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert not any(str(name).startswith("tidegate") for name in imported)


def written(tmp_path: Path, *ranks: int, **changes: object) -> Path:
    path = tmp_path / "stats.jsonl"
    lines = [json.dumps({**STATISTICS, "rank": rank, **changes}) for rank in ranks]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_counters_that_fit_are_accepted(tmp_path: Path) -> None:
    traffic = demo.read_traffic(written(tmp_path, 0, 1))
    counts = demo.check_traffic(traffic, {"all_gather_single": 4, "reduce_scatter_single": 2})
    assert counts["all_gather calls"] == 4
    assert counts["shm bytes"] == 1000


def test_counters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(demo.DemoError, match="carried nothing"):
        demo.read_traffic(tmp_path / "absent")
    one_rank = demo.read_traffic(written(tmp_path, 0))
    with pytest.raises(demo.DemoError, match="rank 1 wrote no statistics"):
        demo.check_traffic(one_rank, {})
    both = demo.read_traffic(written(tmp_path, 0, 1))
    with pytest.raises(demo.DemoError, match="4 all_gather calls counted, 5 issued"):
        demo.check_traffic(both, {"all_gather_single": 5})
    silent = demo.read_traffic(written(tmp_path, 0, 1, links={"shm": {"bytes": 0}}))
    with pytest.raises(demo.DemoError, match="no bytes went through shared memory"):
        demo.check_traffic(silent, {})
    with pytest.raises(demo.DemoError, match="line 1: cannot be read"):
        demo.read_traffic(written(tmp_path, 0, version=99))
