"""Sharded and replicated training against one process, row by row."""

from __future__ import annotations

import pytest

from tests.integration import models
from tests.integration.rows import ROWS, run_row
from tests.integration.table import checkpoint_lines, line_of
from tests.support.pools import PoolKeeper

BY_RANKS = sorted(ROWS.values(), key=lambda row: row.world_size)


@pytest.mark.parametrize("name", [row.name for row in BY_RANKS])
def test_equals_one_process(name: str, pools: PoolKeeper) -> None:
    row = ROWS[name]
    line = line_of(row, pools.get(row.world_size).run(run_row, name))
    assert not line.problems, line.text()


def test_the_oracle_depends_on_every_rank() -> None:
    """A rank left out of the average must show: by far more than any row may differ."""
    two, three = models.union_oracle(2), models.union_oracle(3)
    assert max(float((two[name] - three[name]).abs().max()) for name in two) > 1e-2


@pytest.mark.parametrize("name", ["fsdp2_w4"])
def test_two_runs_give_the_same_bits(name: str, pools: PoolKeeper) -> None:
    pool = pools.get(ROWS[name].world_size)
    first, second = (pool.run(run_row, name) for _ in range(2))
    assert [one.digest for one in first] == [two.digest for two in second]


def test_a_checkpoint_loads_at_other_world_sizes(pools: PoolKeeper) -> None:
    for line in checkpoint_lines(pools):
        assert not line.problems, line.text()
