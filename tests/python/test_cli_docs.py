"""The commands of docs/cli.md run, and begin as the page shows."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.python.cli_calls import output_of
from tests.python.tree import ROOT

PAGE = (ROOT / "docs/cli.md").read_text()
SHOWN = re.findall(r"^```\n\$ tidegate (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)


def test_each_command_is_shown() -> None:
    assert {command.split()[0] for command, _ in SHOWN} == {"topo", "plan", "sim"}


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_output_begins_as_the_page_shows(
    capsys: pytest.CaptureFixture[str], command: str, shown: str
) -> None:
    # The figures below the first line are those of the algorithms, which get better.
    assert output_of(capsys, *shlex.split(command)).splitlines()[0] == shown.splitlines()[0]
