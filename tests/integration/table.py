"""Runs the rows of the integration table and prints them.

    python -m tests.integration.table [--twice] [--markdown | --into FILE] [ROW ...]

Exits non-zero if a row differs by more than it may, if tidegate was not called as often as the row
says, or, with --twice, if a second run of a row gave other bits.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.integration.rows import ROWS, outcomes_of
from tests.integration.rows.base import Outcome, Row
from tests.support.pools import PoolKeeper
from tests.support.workers import WorkerError

MARKER = "<!-- Written by tests.integration.table; see above. -->"
MARKDOWN_HEAD = (
    "| row | what it shows | ranks | greatest difference | allowed | calls of rank 0 |",
    "|---|---|---|---|---|---|",
)
COLUMNS = "{:<28} {:>5} {:>12} {:>9}  {}"


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    row: Row
    difference: float
    calls: Counter[str] | None  # of rank 0
    problems: list[str]

    def calls_text(self) -> str:
        if self.calls is None:
            return "not counted"
        return " ".join(f"{op}={count}" for op, count in sorted(self.calls.items()))

    def text(self) -> str:
        verdict = "" if not self.problems else "  FAILED: " + "; ".join(self.problems)
        return COLUMNS.format(
            self.row.name,
            self.row.ranks,
            f"{self.difference:.3g}",
            f"{self.row.tolerance:.0e}",
            self.calls_text() + verdict,
        )

    def markdown(self) -> str:
        row = self.row
        found = "FAILED" if self.problems else f"{self.difference:.2g}"
        cells = (f"`{row.name}`", row.shows, row.ranks, found, f"{row.tolerance:.0e}")
        return "| " + " | ".join((*cells, self.calls_text())) + " |"


def traffic_problems(row: Row, outcomes: list[Outcome]) -> list[str]:
    """How the counters differ from what the row must have caused; nothing if not counted."""
    problems = []
    total: Counter[str] = Counter()
    read = 0
    for rank, outcome in enumerate(outcomes):
        used = outcome.traffic
        if used is None:
            return []
        total += used.calls
        wanted = row.calls_of(rank)
        for op in sorted((wanted.keys() | used.calls.keys()) - row.some - row.may):
            if used.calls[op] != wanted.get(op, 0):
                calls = f"{used.calls[op]} calls instead of {wanted.get(op, 0)}"
                problems.append(f"rank {rank}: {op}: {calls}")
        read += used.shm_bytes
    # The root of a row reads nothing from anybody.
    if read == 0 and row.world_size > 1:
        problems.append("no bytes went through shared memory")
    problems += [f"{op} was never called" for op in sorted(row.some) if not total[op]]
    return problems


def line_of(row: Row, outcomes: list[Outcome], again: list[Outcome] | None = None) -> Line:
    """Judges one run of a row, and a second one if there was one."""
    assert outcomes, row.name
    difference = max(outcome.difference for outcome in outcomes)
    problems = []
    if not difference <= row.tolerance:
        problems.append(f"differs by more than {row.tolerance:.0e}")
    problems += traffic_problems(row, outcomes)
    if again is not None:
        pairs = zip(outcomes, again, strict=True)
        other = [rank for rank, (one, two) in enumerate(pairs) if one.digest != two.digest]
        if other:
            problems.append(f"a second run gave other bits on ranks {other}")
    used = outcomes[0].traffic
    return Line(row, difference, None if used is None else used.calls, problems)


def run_line(row: Row, pools: PoolKeeper, twice: bool) -> Line:
    """Runs a row once or twice."""
    outcomes = outcomes_of(row, pools)
    return line_of(row, outcomes, outcomes_of(row, pools) if twice else None)


def _lines(names: list[str], twice: bool) -> Iterator[Line]:
    pools = PoolKeeper()
    try:
        for row in ROWS.values():
            if names and row.name not in names:
                continue
            if reason := row.why_skipped():
                print(f"{row.name}: skipped: {reason}", file=sys.stderr)
                continue
            try:
                yield run_line(row, pools, twice)
            except (WorkerError, AssertionError) as error:
                yield Line(row, float("inf"), None, [str(error)])
    finally:
        pools.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default all: {', '.join(ROWS)}")
    parser.add_argument(
        "--twice", action="store_true", help="run every row twice; the bits must be the same"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--markdown", action="store_true", help="print as in docs/features.md")
    shape.add_argument(
        "--into", type=Path, metavar="FILE", help=f"write the table below {MARKER!r} of a file"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - ROWS.keys()
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if arguments.markdown:
        print("\n".join(MARKDOWN_HEAD))
    else:
        print(COLUMNS.format("row", "ranks", "difference", "allowed", "calls of rank 0"))
    lines = []
    for line in _lines(arguments.rows, arguments.twice):
        lines.append(line)
        print(line.markdown() if arguments.markdown else line.text(), flush=True)
        if line.problems and arguments.markdown:
            print(line.text(), file=sys.stderr)
    failed = sum(bool(line.problems) for line in lines)
    runs = "two runs of each, equal bit for bit" if arguments.twice else "one run of each"
    summary = f"{len(lines)} rows, {failed} failures, {runs if not failed else 'see above'}"
    print(summary, file=sys.stderr)
    if arguments.into is not None and not failed:
        kept, marker, _ = arguments.into.read_text().partition(MARKER)
        table = "\n".join([*MARKDOWN_HEAD, *(line.markdown() for line in lines)])
        about = f"{summary}, torch {torch.__version__}."
        arguments.into.write_text(f"{kept}{marker}\n\n{about}\n\n{table}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
