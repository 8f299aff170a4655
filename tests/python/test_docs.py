"""What the documentation quotes is what the tests run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tidegate import _backend

from tests.python.cli_calls import output_of, titles
from tests.python.tree import ROOT

FIGURE = re.compile(r"!\[(\w+) (\w+) --fake (\w+)\]\((figures/\w+\.svg)\)")
FIGURES = FIGURE.findall((ROOT / "docs/algorithms.md").read_text())
EXAMPLE = ROOT / "tests/unit/collectives/support/example_algorithm.h"


def test_the_algorithm_of_the_documentation_is_the_one_that_is_tested() -> None:
    document = (ROOT / "docs/algorithms.md").read_text()
    quoted = document.split("```cpp\n")[1].split("```")[0].strip()
    source = EXAMPLE.read_text()
    body = source.split("namespace tidegate {\n")[1].split("}  // namespace tidegate")[0].strip()
    assert quoted == body
    assert len(body.splitlines()) < 60


def test_every_all_gather_has_a_figure() -> None:
    cluster = _backend.load_shim().Cluster.fake("4x2")
    shown = {name for collective, name, _, _ in FIGURES if collective == "all_gather"}
    assert shown == set(cluster.algorithms("all_gather"))
    files = {f"figures/{path.name}" for path in (ROOT / "docs/figures").iterdir()}
    assert files == {path for _, _, _, path in FIGURES}


@pytest.mark.parametrize(("collective", "algorithm", "cluster", "path"), FIGURES)
def test_figures_are_what_the_tool_draws(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    collective: str,
    algorithm: str,
    cluster: str,
    path: str,
) -> None:
    """Arrow by arrow. TIDEGATE_TEST_REGENERATE=1 draws them anew."""
    figure = ROOT / "docs" / path
    drawn = figure if os.environ.get("TIDEGATE_TEST_REGENERATE") else tmp_path / "figure.svg"
    asked = ("plan", collective, "1M", "--algo", algorithm, "--fake", cluster)
    output_of(capsys, *asked, "--svg", drawn)
    assert titles(figure, "line") == titles(drawn, "line")
