"""The rows of the integration table, each against its oracle."""

from __future__ import annotations

import pytest

from tests.conformance.cases import run_all
from tests.integration import models
from tests.integration.rows import AREAS, ROWS, selection
from tests.integration.table import run_line
from tests.support.pools import PoolKeeper


@pytest.mark.parametrize("name", [row.name for row in selection()])
def test_row(name: str, pools: PoolKeeper) -> None:
    """`make test` takes a part of the rows; `make test-all` takes all, and runs each twice."""
    row = ROWS[name]
    if reason := row.why_skipped():
        pytest.skip(reason)
    line = run_line(row, pools, twice=run_all())
    assert not line.problems, line.text()


def test_two_runs_give_the_same_bits(pools: PoolKeeper) -> None:
    line = run_line(ROWS["fsdp2_w4"], pools, twice=True)
    assert not line.problems, line.text()


def test_the_slice_has_rows_of_every_area() -> None:
    taken = {row.name for row in selection()}
    for area, rows in AREAS.items():
        assert taken & {row.name for row in rows}, area


def test_the_oracle_depends_on_every_rank() -> None:
    """A rank left out of the average must show: by far more than any row may differ."""
    two, three = models.union_oracle(2), models.union_oracle(3)
    assert max(float((two[name] - three[name]).abs().max()) for name in two) > 1e-2
