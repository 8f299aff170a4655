"""Calls of the `tidegate` command in this process, which has loaded torch and the shim already."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli.main import main

from tests.python.tree import ROOT

MACHINES = ROOT / "tests/data/topology"
_SVG = "{http://www.w3.org/2000/svg}"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that succeeds prints; it must have no complaint."""
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(output_of(capsys, *arguments, "--json"))


def complaint_of(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    """The one line of a command that fails with `status`."""
    assert main([str(argument) for argument in arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"tidegate {arguments[0]}: ")
    return captured.err


def shapes(path: Path, element: str) -> list[ElementTree.Element]:
    """The elements of a picture, which must be well-formed."""
    return ElementTree.parse(path).getroot().findall(_SVG + element)


def titles(path: Path, element: str) -> list[str]:
    """What their tooltips say, of those that have one."""
    found = (shape.find(_SVG + "title") for shape in shapes(path, element))
    return [title.text or "" for title in found if title is not None]
