"""The fault campaign under pytest: a seeded slice, or more of it with TIDEGATE_TEST_ALL=1."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.faults.campaign import PROMISE_NOTICE, repeat_case, run_case
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
from tests.faults.product import FAULTS, PHASES, case
from tests.faults.report import broken_promise, describe, line
from tests.support.processes import ForkServer

ALL = os.environ.get("TIDEGATE_TEST_ALL", "0") not in ("", "0")
LAPS = 6 if ALL else 1  # a lap goes once through all pairs of fault and phase


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with start_server() as running:
        yield running


@pytest.mark.timeout(1800)  # every wait in a run has its own limit; this one is for all runs
@pytest.mark.parametrize("fault", FAULTS)
def test_product(fault: str, server: ForkServer) -> None:
    seed = default_seed()
    cases = [case(seed, index) for index in range(LAPS * len(FAULTS) * len(PHASES))]
    outcomes: list[Outcome] = []
    failures = []
    seconds = 0.0
    for one in cases:
        if one.fault != fault:
            continue
        outcome, took = run_case(server, one)
        seconds += took
        outcomes.append(outcome)
        if not outcome.ok:
            failures.append(f"{describe(outcome, False)}\n    again: {repeat_case(one)}")
    print(line(fault, outcomes, seconds))
    if fault in PROMISE_NOTICE and (promise := broken_promise(outcomes)):
        failures.append(promise)
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(1800)
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
    print(line(kind.name, outcomes, time.monotonic() - began))
    if kind.promises_notice and (promise := broken_promise(outcomes)):
        failures.append(promise)
    assert not failures, "\n".join(failures)
