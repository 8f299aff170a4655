"""What the documentation quotes is what the tests run."""

from __future__ import annotations

from tests.python.tree import ROOT

EXAMPLE = ROOT / "tests/unit/collectives/support/example_algorithm.h"


def test_the_algorithm_of_the_documentation_is_the_one_that_is_tested() -> None:
    document = (ROOT / "docs/algorithms.md").read_text()
    quoted = document.split("```cpp\n")[1].split("```")[0].strip()
    source = EXAMPLE.read_text()
    body = source.split("namespace tidegate {\n")[1].split("}  // namespace tidegate")[0].strip()
    assert quoted == body
    assert len(body.splitlines()) < 60
