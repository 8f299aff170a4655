"""The fault matrix under pytest: a seeded slice, or all of it with TIDEGATE_TEST_ALL=1."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.faults.campaign import broken_promise, describe, line
from tests.faults.kinds import (
    KINDS,
    Kind,
    default_seed,
    repeat_command,
    run_once,
    runs,
    start_server,
)
from tests.faults.outcome import Outcome
from tests.support.processes import ForkServer

ALL = os.environ.get("TIDEGATE_TEST_ALL", "0") not in ("", "0")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with start_server() as running:
        yield running


@pytest.mark.timeout(
    1800
)  # every wait in a run has its own limit; this one is for all runs of a kind
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_fault(kind: Kind, server: ForkServer) -> None:
    seed = default_seed()
    outcomes: list[Outcome] = []
    failures = []
    began = time.monotonic()
    for index in runs(kind, ALL):
        outcome = run_once(server, kind, seed, index)
        outcomes.append(outcome)
        if not outcome.ok:
            failures.append(
                f"{describe(outcome, False)}\n    again: {repeat_command(kind, seed, index)}"
            )
    print(line(kind, outcomes, time.monotonic() - began))
    if promise := broken_promise(kind, outcomes):
        failures.append(promise)
    assert not failures, "\n".join(failures)
