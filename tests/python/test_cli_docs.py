"""The commands of docs/cli.md run, and print what the page shows."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.python.cli_calls import output_of
from tests.python.tree import ROOT

PAGE = (ROOT / "docs/cli.md").read_text()
SHOWN = re.findall(r"^```\n\$ tidegate (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
#: A figure with its unit, which changes with the figure: "980 us", "1.01 ms".
FIGURE = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?%?(?: (?:ns|us|ms|s|B|[KMGT]iB)\b)?")


def rows(text: str) -> list[str]:
    """Lines without what a better algorithm or another compiler changes in them: figures, widths of
    columns, the order of candidates that take equally long."""
    return sorted(" ".join(FIGURE.sub("#", line).split()) for line in text.splitlines())


def test_each_command_is_shown() -> None:
    assert {command.split()[0] for command, _ in SHOWN} == {"topo", "plan", "sim", "estimate"}


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_output_is_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], command: str, shown: str
) -> None:
    printed = output_of(capsys, *shlex.split(command))
    if command.startswith("sim") or "--why" in command:
        # Simulated times. What was asked for, the choice, every candidate and column must be there.
        assert printed.splitlines()[0] == shown.splitlines()[0]
        assert rows(printed) == rows(shown)
    else:
        assert printed.splitlines() == shown.splitlines()


def test_rows_differ_in_more_than_figures_and_order() -> None:
    table = "algorithm  predicted\nring       1.8 ms     97.8%\nbruck      980 us     9%\n"
    assert rows(table) == rows("algorithm predicted\nbruck 1 ms 10%\nring 2 ms 90.1%\n")
    assert rows(table) != rows(table.replace("bruck", "direct"))
    assert rows(table) != rows(table + "direct 2 ms 9%\n")
    assert rows(table) != rows(table.replace("97.8%", "97.8%  chosen"))
