"""Tables hold every word, however narrow the terminal."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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
