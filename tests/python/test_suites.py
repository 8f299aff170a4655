"""The tables of suites and versions tell what the runs behind them did."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.python.tree import ROOT
from tests.support import suites, versions

MIXED = """
import pytest

def test_passes(record_testsuite_property):
    record_testsuite_property("conformance_cases", 12)
    record_testsuite_property("conformance_failures", 2)

def test_fails():
    assert False

@pytest.fixture
def broken():
    raise OSError

def test_has_an_error(broken):
    pass

@pytest.mark.parametrize("number", range(3))
def test_is_skipped(number):
    pytest.skip("no such device")
"""
LATE = """
import subprocess

def test_waits_for_a_child_that_has_the_same_output():
    subprocess.run(["sleep", "60"])
"""
PASSING = """
def test_passes():
    pass
"""


def run_pytest(test: str, directory: Path, report: Path) -> int:
    (directory / "test_some.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    done = subprocess.run(
        [*command, "-c", "/dev/null", f"--junit-xml={report}", "test_some.py"],
        cwd=directory,
        capture_output=True,
        timeout=120,
    )
    return done.returncode


def test_a_junit_file_is_read(tmp_path: Path) -> None:
    report = tmp_path / "some.xml"
    assert run_pytest(MIXED, tmp_path, report) == 1
    result = suites.read("some", report)
    assert (result.passed, result.failed, dict(result.skipped)) == (1, 2, {"no such device": 3})
    assert (result.cases, result.failed_cases) == (12, 2)
    assert result.verdict == "FAILED"
    line = suites.table([result]).splitlines()[-1]
    assert line.split()[:5] == ["some", "FAILED", "1", "2", "3"]
    assert line.endswith("12 cases, 2 failed; 3 skipped: no such device")


def test_a_suite_without_a_test_that_passed_is_no_success() -> None:
    assert suites.Result("empty").verdict == "FAILED"
    assert suites.Result("some", passed=1).verdict == "ok"
    assert suites.Result("gpu", skipped=Counter({"no GPU": 3})).verdict == "skipped"
    assert suites.Result("some", passed=1, failed=1).verdict == "FAILED"
    assert suites.Result("cut", passed=1, problem="ended after 5 s").verdict == "FAILED"


def test_a_suite_that_is_late_ends_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_late.py").write_text(LATE)
    options = ["-s", "-p", "no:cacheprovider", "--rootdir=.", "-c", "/dev/null"]
    monkeypatch.setattr(
        suites, "arguments_of", lambda suite: [*options, str(tmp_path / "test_late.py")]
    )
    result = suites.run("late", tmp_path, limit_s=5)
    assert (result.problem, result.verdict) == ("ended after 5 s", "FAILED")
    assert result.seconds < 50  # the child would have held the output for 60


def test_a_suite_for_which_no_time_is_left_fails_without_being_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["suites", "--into", str(tmp_path), "--total", "0", "gpu", "python"]
    monkeypatch.setattr(sys, "argv", command)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert suites.main() == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    lines = (tmp_path / "table.txt").read_text().splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["gpu", "FAILED"], ["python", "FAILED"]]
    assert all(line.endswith("not run: no time was left") for line in lines)


def test_every_chosen_test_exists() -> None:
    for name in ("registration", "rows"):
        paths = {argument.partition("::")[0] for argument in suites.arguments_of(name)}
        assert paths
        assert all((ROOT / path).is_file() for path in paths), paths
    with pytest.raises(SystemExit, match="no suite 'nonsense'"):
        suites.arguments_of("nonsense")


def test_every_torch_runs_the_rows_of_each_kind_of_training_at_four_ranks() -> None:
    from tests.integration.rows import AREAS

    chosen = suites.arguments_of("rows")
    for kind in suites.AREAS:
        rows = [row for area, rows in AREAS.items() if area.startswith(kind) for row in rows]
        at_four = {f"[{row.name}]" for row in rows if row.world_size == suites.AREA_RANKS}
        assert at_four, kind
        assert all(any(test.endswith(name) for test in chosen) for name in at_four), kind


def test_the_versions_table_has_a_line_for_a_torch_that_does_not_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "2.13.0", tmp_path / "2.99.0"
    good.mkdir()
    for suite in versions.SUITES:
        assert run_pytest(PASSING, tmp_path, good / f"{suite}.xml") == 0
    assert versions.main([str(good)]) == 0
    assert versions.main([str(good), str(bad)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "| 2.13.0 | ok | 0 / 0 | 1 / 0 | 1 / 0 | none |",
        "| 2.99.0 | failed | - | - | - | - |",
    ]


def test_a_suite_that_did_not_end_fails_its_torch(tmp_path: Path) -> None:
    folder = tmp_path / "2.13.0"
    folder.mkdir()
    assert run_pytest(PASSING, tmp_path, folder / "rows.xml") == 0
    line, good = versions.line_of(folder)
    assert not good
    assert line.count("not run to its end") == 2


def test_the_gpu_script_names_its_stages() -> None:
    done = subprocess.run(
        [str(ROOT / "tests/gpu/run.sh"), "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "build gpu conformance integration python unit" in done.stderr
