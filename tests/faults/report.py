"""How outcomes are shown: a line for the runs of a kind, the details of one run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from tests.faults.outcome import NOTICE_LIMIT_MS, Outcome
from tests.faults.product import Case

HEADER = (
    f"{'kind':<19}{'runs':>5}{'failed':>8}{'hangs':>7}{'leaks':>7}"
    f"{'median ms':>11}{'worst ms':>10}  {'culprit named':<14}{'seconds':>8}"
)


def broken_promise(outcomes: Sequence[Outcome]) -> str | None:
    """What holds of all runs together: ranks notice within the promised time in the median."""
    noticed = [ms for outcome in outcomes for ms in outcome.notice_ms]
    if noticed and statistics.median(noticed) > NOTICE_LIMIT_MS:
        return f"the median rank noticed after {statistics.median(noticed):.0f} ms"
    return None


def line(name: str, outcomes: Sequence[Outcome], seconds: float) -> str:
    noticed = [ms for outcome in outcomes for ms in outcome.notice_ms]
    named = [outcome.named for outcome in outcomes if outcome.named is not None]
    median = f"{statistics.median(noticed):.1f}" if noticed else "-"
    worst = f"{max(noticed):.1f}" if noticed else "-"
    culprit = ("yes" if all(named) else f"no ({named.count(False)} runs)") if named else "-"
    failed = sum(not outcome.ok for outcome in outcomes)
    hangs = sum(outcome.hang for outcome in outcomes)
    leaks = sum(bool(outcome.leaks) for outcome in outcomes)
    return (
        f"{name:<19}{len(outcomes):>5}{failed:>8}{hangs:>7}{leaks:>7}"
        f"{median:>11}{worst:>10}  {culprit:<14}{seconds:>8.1f}"
    )


def describe(outcome: Outcome, verbose: bool) -> str:
    parts = [f"  {outcome.kind}: {outcome.variant}"]
    parts += [f"    problem: {problem}" for problem in outcome.problems]
    parts += [f"    leak: {leak}" for leak in outcome.leaks]
    if verbose:
        parts += [f"    {key}: {value}" for key, value in outcome.notes.items()]
        parts.append(f"    noticed after ms: {[round(ms, 1) for ms in outcome.notice_ms]}")
    return "\n".join(parts)


def coverage(cases: Sequence[Case], faults: Sequence[str], phases: Sequence[str]) -> str:
    """How many runs each pair of fault and phase had, and what else they went through."""
    pairs = Counter((one.fault, one.phase) for one in cases)
    rows = [f"{'runs':<19}" + "".join(f"{phase:>10}" for phase in phases)]
    for fault in faults:
        rows.append(f"{fault:<19}" + "".join(f"{pairs[fault, phase]:>10}" for phase in phases))
    operations = Counter(one.operation for one in cases)
    sizes = Counter(one.ranks for one in cases)
    rows.append("operations: " + ", ".join(f"{n} {c}" for n, c in sorted(operations.items())))
    rows.append("ranks: " + ", ".join(f"{n}: {c}" for n, c in sorted(sizes.items())))
    return "\n".join(rows)
