"""op x dtype x reduce op x count x ranks x sync/async against the documented results.

One test per (ranks, operation); the cases behind it run in one call into the ranks. By default a
seeded slice of the matrix, with TIDEGATE_TEST_ALL=1 all of it; TIDEGATE_TEST_SEED repeats a run.
"""

from __future__ import annotations

import pytest

from tests.conformance.cases import Case, pairs, selection
from tests.conformance.runner import Report, barrier_complaint, run_cases
from tests.support.pools import PoolKeeper
from tests.support.workers import WorkerError

MAX_SHOWN = 12
# A failed call costs a fresh set of ranks; past this many, the operation is simply broken.
MAX_RESTARTS = 4
# A group times out by itself after 30 s; these bound a rank that hangs without it.
START_TIMEOUT_S = 60.0


def _failures(cases: list[Case], reports: list[Report]) -> dict[int, list[str]]:
    failures: dict[int, list[str]] = {}
    for rank, report in enumerate(reports):
        for index, complaints in report.complaints.items():
            lines = [f"rank {rank}: {complaint}" for complaint in complaints]
            failures.setdefault(index, []).extend(lines)
    for index, case in enumerate(cases):
        if case.op == "barrier" and all(index in report.observations for report in reports):
            complaint = barrier_complaint([report.observations[index] for report in reports])
            if complaint:
                failures.setdefault(index, []).append(complaint)
    return failures


def _refused_alike(index: int, reports: list[Report]) -> bool:
    """Whether every rank raised the same in the same case, and the group had not failed."""
    words = {text for report in reports for text in report.complaints.get(index, [""])}
    return (
        all(report.finished == index for report in reports)
        and len(words) == 1
        and "DistBackendError" not in words.pop()
    )


def _run(pools: PoolKeeper, ranks: int, cases: list[Case]) -> list[tuple[Case, list[str]]]:
    """Runs all cases, restarting the ranks after a call that raised; returns what failed."""
    failed: list[tuple[Case, list[str]]] = []
    rest = cases
    restarts = 0
    while restarts <= MAX_RESTARTS:
        try:
            timeout = START_TIMEOUT_S + 0.25 * len(rest)
            reports = pools.get(ranks).run(run_cases, rest, timeout_s=timeout)
        except WorkerError as error:
            return [*failed, *((case, [str(error)]) for case in rest)]
        failures = _failures(rest, reports)
        failed += [(rest[index], failures[index]) for index in sorted(failures)]
        finished = min(report.finished for report in reports)
        if finished == len(rest):
            return failed
        if not _refused_alike(finished, reports):
            pools.get(ranks).broken = True
            restarts += 1
        rest = rest[finished + 1 :]
        if not rest:
            return failed
    return [*failed, *((case, ["not run: too many calls raised before it"]) for case in rest)]


@pytest.mark.parametrize(("ranks", "op"), pairs(), ids=lambda value: str(value))
def test_matches_the_documented_results(
    ranks: int, op: str, pools: PoolKeeper, conformance_tally
) -> None:
    cases = selection(ranks, op)
    failed = _run(pools, ranks, cases)
    conformance_tally.add(len(cases), len(failed))
    if failed:
        shown = [
            f"{case.describe()}\n    " + "\n    ".join(lines) for case, lines in failed[:MAX_SHOWN]
        ]
        hidden = len(failed) - len(shown)
        shown += [f"... and {hidden} more"] if hidden else []
        pytest.fail(f"{len(failed)} of {len(cases)} cases failed\n" + "\n".join(shown), False)
