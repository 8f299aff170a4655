"""Fixtures shared by the Python suites, and the conformance count at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.conformance.cases import base_seed, run_all
from tests.support.pools import PoolKeeper


@dataclass
class Tally:
    """Counts the conformance cases of a session."""

    cases: int = 0
    failures: int = 0

    def add(self, cases: int, failures: int) -> None:
        self.cases += cases
        self.failures += failures


_TALLY = Tally()


@pytest.fixture(scope="session")
def conformance_tally(record_testsuite_property: Callable[[str, object], None]) -> Iterator[Tally]:
    yield _TALLY
    # For who reads the JUnit file: pytest counts a test a (ranks, operation), not its cases.
    record_testsuite_property("conformance_cases", _TALLY.cases)
    record_testsuite_property("conformance_failures", _TALLY.failures)


@pytest.fixture(scope="session")
def pools() -> Iterator[PoolKeeper]:
    keeper = PoolKeeper()
    yield keeper
    keeper.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _TALLY.cases:
        extent = "all" if run_all() else "slice"
        terminalreporter.write_line(
            f"conformance: {_TALLY.cases} cases, {_TALLY.failures} failures "
            f"({extent}, TIDEGATE_TEST_SEED={base_seed()})"
        )
