"""The rows of the integration table, gathered from one module an area.

`python -m tests.integration.table` runs and prints them; the tests assert them.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import random

import torch.distributed as dist

from tests.conformance.cases import base_seed, run_all
from tests.integration.rows.base import Outcome, Row
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

_MODULES = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]

# A module with rows is an area, named as the module.
AREAS: dict[str, tuple[Row, ...]] = {
    module.__name__.rpartition(".")[2]: module.ROWS
    for module in _MODULES
    if hasattr(module, "ROWS")
}

# By world size, so that the ranks start once a size.
ROWS: dict[str, Row] = {
    row.name: row
    for row in sorted((row for rows in AREAS.values() for row in rows), key=lambda r: r.world_size)
}
assert len(ROWS) == sum(map(len, AREAS.values())), "two rows have one name"

SLICE = 1 / 4


def selection() -> list[Row]:
    """The rows this run takes: all of them, or a seeded part of every area, no slow one."""
    if run_all():
        return list(ROWS.values())
    taken = set()
    for area, rows in AREAS.items():
        rng = random.Random(f"{base_seed()}/{area}")
        quick = [row for row in rows if not row.slow]
        taken.update(row.name for row in rng.sample(quick, math.ceil(len(quick) * SLICE)))
    return [row for row in ROWS.values() if row.name in taken]


def run_row(context: RankContext, name: str) -> Outcome:
    """Runs a row inside a rank; no rank goes on before all are done with it."""
    run = ROWS[name].run
    assert run is not None, name
    outcome = run(context)
    dist.barrier()
    return outcome


def outcomes_of(row: Row, pools: PoolKeeper) -> list[Outcome]:
    """Runs a row once; one outcome a rank, in rank order."""
    if row.drive is not None:
        return row.drive(pools)
    return pools.get(row.world_size).run(run_row, row.name, timeout_s=row.timeout_s)
