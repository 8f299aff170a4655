"""Runs the fault matrix and prints one line a kind: `python -m tests.faults.campaign`.

Exits with 1 if a promise was broken. `--only KIND --seed S --run I --verbose` repeats one run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from tests.faults.kinds import (
    BY_NAME,
    KINDS,
    Kind,
    default_seed,
    repeat_command,
    run_once,
    start_server,
)
from tests.faults.outcome import NOTICE_LIMIT_MS, Outcome
from tests.support.backend import BACKEND

HEADER = (
    f"{'kind':<19}{'runs':>5}{'failed':>8}{'hangs':>7}{'leaks':>7}"
    f"{'median ms':>11}{'worst ms':>10}  {'culprit named':<14}{'seconds':>8}"
)


def broken_promise(kind: Kind, outcomes: Sequence[Outcome]) -> str | None:
    """What holds of all runs together: ranks notice within the promised time in the median."""
    noticed = [ms for outcome in outcomes for ms in outcome.notice_ms]
    if kind.promises_notice and noticed and statistics.median(noticed) > NOTICE_LIMIT_MS:
        return f"the median rank noticed after {statistics.median(noticed):.0f} ms"
    return None


def line(kind: Kind, outcomes: Sequence[Outcome], seconds: float) -> str:
    noticed = [ms for outcome in outcomes for ms in outcome.notice_ms]
    named = [outcome.named for outcome in outcomes if outcome.named is not None]
    median = f"{statistics.median(noticed):.1f}" if noticed else "-"
    worst = f"{max(noticed):.1f}" if noticed else "-"
    culprit = ("yes" if all(named) else f"no ({named.count(False)} runs)") if named else "-"
    failed = sum(not outcome.ok for outcome in outcomes)
    hangs = sum(outcome.hang for outcome in outcomes)
    leaks = sum(bool(outcome.leaks) for outcome in outcomes)
    return (
        f"{kind.name:<19}{len(outcomes):>5}{failed:>8}{hangs:>7}{leaks:>7}"
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign")
    parser.add_argument("--kills", type=int, default=50, help="runs of the kind 'kill'")
    parser.add_argument(
        "--others", type=int, default=20, help="runs of each other kind (once where one is all)"
    )
    parser.add_argument("--seed", type=int, default=default_seed())
    parser.add_argument(
        "--only", nargs="*", choices=sorted(BY_NAME), help="kinds to run (default: all)"
    )
    parser.add_argument("--run", type=int, help="only this run of each kind")
    parser.add_argument(
        "--verbose", action="store_true", help="describe the runs that went well too"
    )
    options = parser.parse_args(arguments)

    print(f"backend {BACKEND}, seed {options.seed}\n{HEADER}", flush=True)
    failed = False
    with start_server() as server:
        for kind in KINDS:
            if options.only and kind.name not in options.only:
                continue
            number = options.kills if kind.name == "kill" else min(options.others, kind.many)
            indices = range(number) if options.run is None else [options.run]
            if not indices:
                continue
            began = time.monotonic()
            outcomes = [run_once(server, kind, options.seed, index) for index in indices]
            print(line(kind, outcomes, time.monotonic() - began), flush=True)
            for index, outcome in zip(indices, outcomes, strict=True):
                if not outcome.ok or options.verbose:
                    print(describe(outcome, options.verbose))
                if not outcome.ok:
                    failed = True
                    print(f"    again: {repeat_command(kind, options.seed, index)}", flush=True)
            if promise := broken_promise(kind, outcomes):
                failed = True
                print(f"  {kind.name}: {promise}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
