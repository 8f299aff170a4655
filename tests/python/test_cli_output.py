"""Tables hold every word, however narrow the terminal."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli import measure

from tests.python.cli import tidegate
from tests.python.cli_calls import json_of
from tests.python.test_cli_main import in_terminal

SIM = ("-m", "tidegate", "sim", "--fake", "2x4", "--sizes", "1M", "--algo", "column_ring,ring")


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("rich") is None, reason="the extra tidegate[cli] is not installed"
)


def test_table_that_does_not_fit_is_not_cut(tmp_path: Path) -> None:
    for columns in ("60", "200"):
        shown = in_terminal(*SIM, cwd=tmp_path, COLUMNS=columns, NO_COLOR="1")
        assert "column_ring" in shown
        assert "peak buffer" in shown
        assert shown.count("all_gather  1 MiB") == 2


def test_long_runs_show_a_bar_on_terminals(tmp_path: Path) -> None:
    assert "2/2" in in_terminal(*SIM, cwd=tmp_path)


def test_single_piece_shows_a_bar_and_no_count(tmp_path: Path) -> None:
    shown = in_terminal(*SIM[:-1], "ring", cwd=tmp_path)
    assert "all_gather ring of 1 MiB" in shown
    assert "\u2501" in shown
    assert "/1" not in shown


@pytest.mark.parametrize("forced", ["", "ag:ring"])
def test_plan_shows_how_many_candidates_are_priced(tmp_path: Path, forced: str) -> None:
    asked = ("plan", "all_gather", "1M", "--fake", "2x4")
    piped = tidegate(*asked, "--json", cwd=tmp_path)
    assert piped.stderr == ""
    # The price of the size itself and the proof, too.
    pieces = len(json.loads(piped.stdout)["candidates"]) + 2
    shown = in_terminal("-m", "tidegate", *asked, cwd=tmp_path, TIDEGATE_ALGO=forced)
    assert pieces > 10
    assert f"{pieces}/{pieces}" in shown
    assert "proof of " in shown


def test_measured_times_are_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ranks; test_planning.py has a measurement."""

    def times(ranks: int, choice: dict[str, str], first: int, last: int) -> list[Any]:
        return [(name, one, first, len(one) / 1024) for name, one in choice.items()]

    monkeypatch.setattr(measure, "_measure", times)
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path))
    report = json_of(capsys, "measure", "--ranks", "2", "--least", "1000", "--most", "1000")
    assert ["all_gather", "direct", 10, 6 / 1024] in report["seconds"]
    (path,) = tmp_path.iterdir()
    assert report["file"] == str(path)
    assert sorted(json.loads(path.read_text())["seconds"]) == sorted(report["seconds"])
