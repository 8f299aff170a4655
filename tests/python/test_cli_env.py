"""`tidegate env` shows the backend's own table of settings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import tidegate as package
from tidegate.cli import env

from tests.python.cli import tidegate
from tests.python.tree import ROOT

DOCUMENTED = re.compile(r"\| `(TIDEGATE_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|")


def test_settings_are_those_of_the_page_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    documented = [match.groups() for match in DOCUMENTED.finditer(page)]
    rows = env.settings()
    shown = [
        (row["name"], row["unit"], row["range"], row["default"], row["meaning"]) for row in rows
    ]
    units = {"bytes": "bytes", "seconds": "seconds"}
    assert shown == [
        (name, units.get(kind), accepted, default, meaning)
        for name, kind, accepted, default, meaning in documented
    ]


def test_value_and_source_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_STAGE_BYTES", "64M")
    monkeypatch.setenv("TIDEGATE_STREAM_BYTES", "lots")
    monkeypatch.setenv("TIDEGATE_STATS_FILE", "")
    rows = {row["name"]: row for row in env.settings()}
    stage = rows["TIDEGATE_STAGE_BYTES"]
    assert (stage["value"], stage["source"], stage["error"]) == ("64M", "environment", None)
    assert stage["default"] == "2 MiB"
    stream = rows["TIDEGATE_STREAM_BYTES"]
    assert "TIDEGATE_STREAM_BYTES=lots is not accepted" in stream["error"]
    empty = rows["TIDEGATE_STATS_FILE"]
    assert (empty["value"], empty["source"]) == ("none", "default")


def test_json_and_table_say_the_same(tmp_path: Path) -> None:
    settings = {"TIDEGATE_DEBUG": "INFO", "TIDEGATE_STAGE_BYTE": "1M"}
    done = tidegate("env", "--json", cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["unknown"] == {"TIDEGATE_STAGE_BYTE": "TIDEGATE_STAGE_BYTES"}
    table = tidegate("env", cwd=tmp_path, **settings).stdout
    for row in report["settings"]:
        line = next(line for line in table.splitlines() if line.startswith(row["name"] + " "))
        for column in ("value", "source", "default", "meaning"):
            assert row[column] in line
    assert "TIDEGATE_STAGE_BYTE is no setting of tidegate" in table


def test_bad_value_is_shown_and_is_a_failure(tmp_path: Path) -> None:
    done = tidegate("env", cwd=tmp_path, TIDEGATE_DEBUG="LOUD")
    assert done.returncode == 1
    assert "error: TIDEGATE_DEBUG=LOUD is not accepted" in done.stdout


def test_without_a_shim_one_line_says_so(tmp_path: Path) -> None:
    """A copy of the package without its shared library goes before the installed one."""
    copy = tmp_path / "copy" / "tidegate"
    installed = Path(package.__path__[0])
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = tidegate("env", cwd=tmp_path, PYTHONPATH=str(copy.parent), TIDEGATE_DEBUG="INFO")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "has no shim for the running torch" in done.stderr
    assert "TIDEGATE_DEBUG=INFO" in done.stderr
