"""Torch's own distributed suite over gloo and tidegate, and what the two make of it.

    python -m tests.upstream.suite [--ranks 3 4] [--only TEST ...] [--json FILE]

Gloo runs the installed source as it is, tidegate the same source with its name tests rewritten
(`rewrite.py`). Results go to FILE, one JSON object a line, as soon as they are known; a run that
finds results there takes them for its own, so that an interrupted run can be continued. What failed
while other tests ran is run once more alone, and the second result counts.

The exit status is 1 if gloo passes a test that tidegate fails, if a test that gloo runs is skipped
for tidegate, or if torch refuses more than 15 tests for the name alone.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.upstream.loader import test_names
from tests.upstream.rewrite import NAME
from tests.upstream.verdict import (
    LOG_MARK,
    MAX_REFUSALS,
    SHORTFALL,
    Class,
    Result,
    classify,
    refusals,
    refused_at,
)

ROOT = Path(__file__).resolve().parents[2]
DRIVER = (sys.executable, "-m", "tests.upstream.driver")
BACKENDS = ("gloo", NAME)
RANKS = (3, 4)
LISTED = (
    Class.WORSE,
    Class.SKIPPED,
    Class.REFUSED,
    Class.NEITHER_PASSES,
    Class.TIDEGATE_ONLY,
)

Key = tuple[str, int, str]  # backend, ranks, test


class Run:
    """The results of one run, in its file and in memory: of two of one test the last counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.results: dict[Key, Result] = {}
        self.retried: set[Key] = set()
        self._lock = threading.Lock()
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                key = (result.backend, result.ranks, result.test)
                if key in self.results:
                    self.retried.add(key)
                self.results[key] = result

    def drive(self, backend: str, ranks: int, tests: Sequence[str]) -> None:
        """Runs `tests`; one that takes its driver with it has failed, and the others still run."""
        left = collections.deque(tests)
        while left:
            with tempfile.TemporaryFile() as log:
                driver = subprocess.Popen(
                    [*DRIVER, backend, str(ranks), *left],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
                assert driver.stdout is not None
                for line in driver.stdout:
                    self.add(Result(**json.loads(line)))
                    left.popleft()
                status = driver.wait()
                if left:
                    log.seek(0)
                    text = log.read()[-4000:].decode(errors="replace")
                    text = f"the driver ended with status {status}\n{text}"
                    self.add(Result(left.popleft(), backend, ranks, "failed", 0.0, text))

    def add(self, result: Result) -> None:
        with self._lock:
            self.results[(result.backend, result.ranks, result.test)] = result
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")

    def run(self, backends: Sequence[str], ranks: Sequence[int], tests: Sequence[str]) -> None:
        """Runs what has no result yet, one driver a backend at a time, then failures once more."""
        for size in ranks:
            with concurrent.futures.ThreadPoolExecutor(len(backends)) as drivers:
                parts = {
                    backend: [test for test in tests if (backend, size, test) not in self.results]
                    for backend in backends
                }
                for _ in drivers.map(lambda b, n=size, p=parts: self.drive(b, n, p[b]), backends):
                    pass
        for backend, size in itertools.product(backends, ranks):
            again = [
                test
                for test in tests
                if self.results[(backend, size, test)].outcome == "failed"
                and (backend, size, test) not in self.retried
            ]
            self.retried.update((backend, size, test) for test in again)
            self.drive(backend, size, again)


def compare(run: Run, ranks: int, tests: Iterable[str]) -> dict[Class, list[str]]:
    """The tests of one world size by what they amount to."""
    classes: dict[Class, list[str]] = {each: [] for each in Class}
    known = refusals()
    for test in tests:
        gloo, ours = (run.results[(backend, ranks, test)] for backend in BACKENDS)
        classes[classify(gloo, ours, known)].append(test)
    return classes


def table(by_ranks: dict[int, dict[Class, list[str]]]) -> str:
    """How many tests are in each class, a column for each world size."""
    head = f"{'tests':<40}" + "".join(f"{f'{ranks} ranks':>10}" for ranks in by_ranks)
    rows = [head]
    for each in Class:
        counts = [len(classes[each]) for classes in by_ranks.values()]
        rows.append(f"{each.value:<40}" + "".join(f"{count:>10}" for count in counts))
    return "\n".join(rows)


def details(run: Run, ranks: int, classes: dict[Class, list[str]]) -> Iterable[str]:
    """A line a test for the classes that somebody will want to look into."""
    known = refusals()
    for each in LISTED:
        for test in classes[each]:
            gloo, ours = (run.results[(backend, ranks, test)] for backend in BACKENDS)
            line = f"{ranks} ranks, {each.value}: {test}"
            if each is Class.REFUSED:
                line += f" ({refused_at(ours.detail, known)})"
            elif each is Class.TIDEGATE_ONLY:
                line += f" (gloo {gloo.outcome}: {_summary(gloo)})"
            else:
                line += f" ({_summary(ours)})"
            yield line


def _summary(result: Result) -> str:
    """What the last exception says, or the reason of a skip."""
    text = result.detail.partition(LOG_MARK)[0].strip().splitlines() or [""]
    if result.outcome != "failed":
        return text[-1]
    errors = [line for line in text if re.match(r"[\w.]*(Error|Exception|Exit|Died)\b", line)]
    return (errors[-1] if errors else text[-1])[:200]


def refused_count(classes: Iterable[dict[Class, list[str]]]) -> int:
    """Tests that torch refuses, each counted once whatever the number of ranks."""
    return len({test for each in classes for test in each[Class.REFUSED]})


def falls_short(by_ranks: dict[int, dict[Class, list[str]]]) -> list[str]:
    """What is against the promise of this module, in words; empty if it holds."""
    wrong = [
        f"{ranks} ranks: {len(classes[each])} {each.value}"
        for ranks, classes in by_ranks.items()
        for each in SHORTFALL
        if classes[each]
    ]
    if (count := refused_count(by_ranks.values())) > MAX_REFUSALS:
        wrong.append(f"{count} tests refused by torch, at most {MAX_REFUSALS} expected")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--only", nargs="+", metavar="TEST", help="names or parts of names")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results are kept")
    options = parser.parse_args(arguments)
    tests = [t for t in test_names() if not options.only or any(o in t for o in options.only)]
    with tempfile.TemporaryDirectory(prefix="tidegate-upstream-") as scratch:
        run = Run(options.json or Path(scratch) / "results")
        began = time.monotonic()
        run.run(options.backends, options.ranks, tests)
        seconds = time.monotonic() - began
    if tuple(options.backends) != BACKENDS:
        for key in itertools.product(options.backends, options.ranks, tests):
            result = run.results[key]
            if options.only or result.outcome == "failed":
                text = result.detail.partition(LOG_MARK)[0].strip()
                print(*key, result.outcome, f"{result.seconds} s", text)
        return 0
    by_ranks = {ranks: compare(run, ranks, tests) for ranks in options.ranks}
    for ranks, classes in by_ranks.items():
        for line in details(run, ranks, classes):
            print(line)
    print(table(by_ranks))
    for backend, size, test in sorted(run.retried):
        outcome = run.results[(backend, size, test)].outcome
        print(f"run once more, alone: {test} on {backend}, {size} ranks: {outcome}")
    print(f"{len(tests)} tests, {seconds:.0f} s")
    wrong = falls_short(by_ranks)
    print("\n".join(f"FAILED: {line}" for line in wrong) or "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
