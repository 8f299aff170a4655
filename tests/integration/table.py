"""Prints the integration table: row, ranks, greatest difference, calls per operation.

    python -m tests.integration.table [ROW ...]

Exits non-zero if a row differs by more than it may or tidegate did not do its work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from tests.integration import checkpoint
from tests.integration.rows import ROWS, Outcome, Row, expected_calls, run_row
from tests.support.counters import Traffic
from tests.support.pools import PoolKeeper
from tests.support.workers import WorkerError

COLUMNS = "{:<22} {:>5} {:>12} {:>9}  {}"


@dataclass(frozen=True)
class Line:
    """One line of the table, whatever produced it."""

    name: str
    ranks: str
    difference: float
    tolerance: float
    used: Traffic | None
    problems: list[str]

    def text(self) -> str:
        calls = "not counted"
        if self.used is not None:
            calls = " ".join(f"{op}={count}" for op, count in sorted(self.used.calls.items()))
        verdict = "" if not self.problems else "  FAILED: " + "; ".join(self.problems)
        return COLUMNS.format(
            self.name,
            self.ranks,
            f"{self.difference:.3g}",
            f"{self.tolerance:.0e}",
            calls + verdict,
        )


def traffic_problems(row: Row, used: Traffic | None) -> list[str]:
    """How the counters differ from what the row must have caused; nothing if not counted."""
    if used is None:
        return []
    problems = []
    wanted = expected_calls(row)
    for op in sorted(wanted.keys() | {"all_gather", "reduce_scatter", "all_reduce"}):
        if used.calls[op] != wanted.get(op, 0):
            problems.append(f"{op}: {used.calls[op]} calls instead of {wanted.get(op, 0)}")
    if used.shm_bytes <= 0:
        problems.append("no bytes went through shared memory")
    return problems


def line_of(row: Row, outcomes: list[Outcome]) -> Line:
    difference = max(outcome.difference for outcome in outcomes)
    problems = []
    if not difference <= row.tolerance:
        problems.append(f"differs by more than {row.tolerance:.0e}")
    for rank, outcome in enumerate(outcomes):
        problems += [f"rank {rank}: {text}" for text in traffic_problems(row, outcome.traffic)]
    return Line(
        row.name, str(row.world_size), difference, row.tolerance, outcomes[0].traffic, problems
    )


def checkpoint_lines(pools: PoolKeeper) -> Iterator[Line]:
    """Saves once and loads at each of the other world sizes."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as path:
        saved = pools.get(checkpoint.SAVED_AT).run(checkpoint.save, path)
        used = saved[0][1]
        whole = checkpoint.join([parts for parts, _ in saved])
        for ranks in checkpoint.LOADED_AT:
            loaded = checkpoint.join(pools.get(ranks).run(checkpoint.load, path))
            difference = checkpoint.greatest_difference(whole, loaded)
            problems = [] if difference == 0 else ["not the same bits"]
            if used is not None and not used.calls:
                problems.append("no calls were counted")
            name = f"dcp_{checkpoint.SAVED_AT}_to_{ranks}"
            label = f"{checkpoint.SAVED_AT}>{ranks}"
            yield Line(name, label, difference, 0.0, used, problems)


def _lines(pools: PoolKeeper, names: list[str]) -> Iterator[Line]:
    for row in sorted(ROWS.values(), key=lambda row: row.world_size):
        if names and row.name not in names:
            continue
        try:
            yield line_of(row, pools.get(row.world_size).run(run_row, row.name))
        except WorkerError as error:
            text = str(error)
            yield Line(row.name, str(row.world_size), float("inf"), row.tolerance, None, [text])
    if not names:
        yield from checkpoint_lines(pools)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default all: {', '.join(ROWS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - ROWS.keys()
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    pools = PoolKeeper()
    failed = 0
    print(COLUMNS.format("row", "ranks", "difference", "allowed", "calls of rank 0"))
    try:
        for line in _lines(pools, arguments.rows):
            print(line.text(), flush=True)
            failed += bool(line.problems)
    finally:
        pools.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
