"""Runs pytest suites one after another and prints one table of what came out of them.

    python -m tests.support.suites --into DIR [--limit SECONDS] [--total SECONDS] SUITE ...

A suite is a pytest process of its own with DIR/<suite>.log and DIR/<suite>.xml (JUnit), so that one
that crashes or hangs is a line of the table and not the end of the run. The table is also in
DIR/table.txt, anew after each suite. Exits non-zero if a suite failed a test or ran none, or was
cut short; one that was skipped as a whole, with a reason (no GPU), fails nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]

# "rows": the areas of the integration table, by how their names begin, that every supported torch
# has to run, and at how many ranks.
AREAS = ("fsdp1", "fsdp2", "ddp", "checkpoint")
AREA_RANKS = 4
# A suite that is silent for longer than a whole `make test` takes is stuck.
LIMIT_S = 1800.0

COLUMNS = "{:<13} {:<7} {:>7} {:>7} {:>7} {:>8}  {}"


@dataclass
class Result:
    """What one suite did. `problem` says why its numbers are not those of a whole run."""

    suite: str
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    cases: int = 0  # of the conformance matrix, which are not pytest's
    failed_cases: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def verdict(self) -> str:
        if self.problem or self.failed or not (self.passed or self.skipped):
            return "FAILED"
        return "ok" if self.passed else "skipped"


def arguments_of(suite: str) -> list[str]:
    """What pytest is given to run a suite: a folder of tests, or one of the names below."""
    if suite == "registration":
        names = ("registration", "launchers", "versions")
        return [f"tests/python/test_{name}.py" for name in names]
    if suite == "rows":
        from tests.integration.rows import AREAS as areas

        return [
            f"tests/integration/test_training.py::test_row[{row.name}]"
            for area, rows in areas.items()
            for row in rows
            if area.startswith(AREAS) and row.world_size == AREA_RANKS
        ]
    if not (ROOT / "tests" / suite).is_dir():
        raise SystemExit(f"no suite {suite!r}: registration, rows or a folder of tests/")
    return [f"tests/{suite}"]


def read(suite: str, path: Path) -> Result:
    """The numbers of a JUnit file."""
    result = Result(suite)
    for run in ElementTree.parse(path).getroot().iter("testsuite"):
        result.seconds += float(run.get("time", 0))
        for prop in run.iter("property"):
            count = int(prop.get("value", 0))
            if prop.get("name") == "conformance_cases":
                result.cases = count
            elif prop.get("name") == "conformance_failures":
                result.failed_cases = count
        for test in run.iter("testcase"):
            skip = test.find("skipped")
            if test.find("failure") is not None or test.find("error") is not None:
                result.failed += 1
            elif skip is not None:
                result.skipped[skip.get("message", "no reason given")] += 1
            else:
                result.passed += 1
    return result


def run(suite: str, into: Path, limit_s: float) -> Result:
    """Runs one suite; what it prints goes to its log and to standard output."""
    report = into / f"{suite}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-u", "-m", "pytest", "-q", f"--junit-xml={report}"]
    # The rows are chosen by name: the slice of `make test` must not hide any.
    extent = {"TIDEGATE_TEST_ALL": "1"} if suite == "rows" else {}
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, *arguments_of(suite)],
        cwd=ROOT,
        env={**os.environ, **extent},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=os.setpgrp,
    )
    late = threading.Event()

    def end() -> None:
        # With its children: one that is left keeps the pipe open, and the loop below reads on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def end_late() -> None:
        late.set()
        end()

    timer = threading.Timer(limit_s, end_late)
    timer.start()
    assert process.stdout is not None
    try:
        with (into / f"{suite}.log").open("w") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                print(line, end="", flush=True)
        status = process.wait()
    finally:
        timer.cancel()
        end()
    result = read(suite, report) if report.exists() else Result(suite)
    result.seconds = time.monotonic() - start
    if late.is_set():
        result.problem = f"ended after {limit_s:.0f} s"
    elif status not in (0, 1) or (status == 1 and not result.failed):
        result.problem = f"pytest exited with status {status}"
    return result


def details(result: Result) -> str:
    parts = [result.problem] if result.problem else []
    if result.cases:
        parts.append(f"{result.cases} cases, {result.failed_cases} failed")
    parts += [f"{count} skipped: {reason}" for reason, count in result.skipped.items()]
    return "; ".join(parts)


def table(results: Sequence[Result]) -> str:
    lines = [COLUMNS.format("suite", "result", "passed", "failed", "skipped", "seconds", "")]
    for result in results:
        numbers = (result.passed, result.failed, sum(result.skipped.values()))
        seconds = f"{result.seconds:.1f}"
        lines.append(
            COLUMNS.format(result.suite, result.verdict, *numbers, seconds, details(result))
        )
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    parser.add_argument("--into", type=Path, required=True, help="folder of logs and JUnit files")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one suite")
    parser.add_argument("--total", type=float, default=math.inf, help="seconds for all of them")
    options = parser.parse_args()
    # Through `finally`, so that no suite goes on without its runner.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.into.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.total
    results = []
    for suite in options.suites:
        left = deadline - time.monotonic()
        if left > 0:
            results.append(run(suite, options.into, min(options.limit, left)))
        else:
            results.append(Result(suite, problem="not run: no time was left"))
        (options.into / "table.txt").write_text(table(results) + "\n")
    print(table(results))
    return 0 if all(result.verdict != "FAILED" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
