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


def test_every_algorithm_has_a_figure() -> None:
    """Its own, or that of what it is the transpose of."""
    shim = _backend.load_shim()
    transposed = {
        "reduce_scatter": "all_gather",
        "all_reduce": "all_gather",
        "reduce": "broadcast",
    }
    shown = {(collective, name) for collective, name, _, _ in FIGURES}
    for collective in (
        *("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"),
        *("gather", "scatter", "all_to_all"),
    ):
        for nodes in ("4x2", "1x4"):
            for name in shim.Cluster.fake(nodes).algorithms(collective):
                wanted = {(collective, name), (transposed.get(collective, collective), name)}
                assert shown & wanted, f"{collective} {name} of {nodes} has no figure"
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
