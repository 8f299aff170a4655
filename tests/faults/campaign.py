"""The fault campaign: `python -m tests.faults.campaign --runs 500 --seed 1`.

Its runs are drawn from the product of faults, phases and operations (`product`); `--only 137`
repeats run 137 of a seed. `--kinds` runs the scenarios that are no point of that product (`kinds`)
instead, each in its number of runs; `--kinds kill fork --run 3` repeats one run of those named.
Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

from tests.faults import product_run
from tests.faults.kinds import (
    BY_NAME,
    KINDS,
    default_seed,
    repeat_command,
    run_once,
    start_server,
)
from tests.faults.outcome import Outcome
from tests.faults.product import FAULTS, PHASES, Case, case
from tests.faults.report import HEADER, broken_promise, coverage, describe, line
from tests.support.backend import BACKEND
from tests.support.processes import ForkServer

# Faults of which ranks learn from the fault itself, not from a deadline or the last of two calls.
PROMISE_NOTICE = ("kill", "abort", "exit")


def run_case(server: ForkServer, one: Case) -> tuple[Outcome, float]:
    """The outcome of a run and the seconds it took."""
    began = time.monotonic()
    outcome = product_run.run(server, one)
    return outcome, time.monotonic() - began


def repeat_case(one: Case) -> str:
    return f"python -m tests.faults.campaign --seed {one.seed} --only {one.index} --verbose"


def run_product(server: ForkServer, seed: int, indices: Iterable[int], verbose: bool) -> bool:
    """Run `indices` of the product; print what failed and a line a fault. True if all is well."""
    outcomes: dict[str, list[Outcome]] = {fault: [] for fault in FAULTS}
    seconds = dict.fromkeys(FAULTS, 0.0)
    cases = []
    for index in indices:
        one = case(seed, index)
        outcome, took = run_case(server, one)
        cases.append(one)
        outcomes[one.fault].append(outcome)
        seconds[one.fault] += took
        if not outcome.ok or verbose:
            print(describe(outcome, verbose), flush=True)
        if not outcome.ok:
            print(f"    again: {repeat_case(one)}", flush=True)
    print(HEADER)
    well = True
    for fault, found in outcomes.items():
        if not found:
            continue
        print(line(fault, found, seconds[fault]), flush=True)
        well = well and all(outcome.ok for outcome in found)
        if fault in PROMISE_NOTICE and (promise := broken_promise(found)):
            well = False
            print(f"  {fault}: {promise}")
    together = [outcome for found in outcomes.values() for outcome in found]
    print(line("all", together, sum(seconds.values())))
    print(coverage(cases, tuple(FAULTS), PHASES), flush=True)
    return well


def run_kinds(server: ForkServer, options: argparse.Namespace) -> bool:
    """Run the scenarios and print a line for each; True if all is well."""
    well = True
    print(HEADER, flush=True)
    for kind in KINDS:
        if options.kinds and kind.name not in options.kinds:
            continue
        number = options.kills if kind.name == "kill" else min(options.others, kind.many)
        indices = range(number) if options.run is None else [options.run]
        if not indices:
            continue
        began = time.monotonic()
        outcomes = [run_once(server, kind, options.seed, index) for index in indices]
        print(line(kind.name, outcomes, time.monotonic() - began), flush=True)
        for index, outcome in zip(indices, outcomes, strict=True):
            if not outcome.ok or options.verbose:
                print(describe(outcome, options.verbose))
            if not outcome.ok:
                well = False
                print(f"    again: {repeat_command(kind, options.seed, index)}", flush=True)
        if kind.promises_notice and (promise := broken_promise(outcomes)):
            well = False
            print(f"  {kind.name}: {promise}", flush=True)
    return well


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.campaign", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=500, help="runs of the product (500)")
    parser.add_argument("--seed", type=int, default=default_seed())
    parser.add_argument("--only", nargs="+", type=int, help="only these runs of the product")
    parser.add_argument(
        "--kinds", nargs="*", choices=sorted(BY_NAME), help="scenarios instead (default: all)"
    )
    parser.add_argument("--kills", type=int, default=50, help="runs of the scenario 'kill'")
    parser.add_argument(
        "--others",
        type=int,
        default=20,
        help="runs of each other scenario (once where that is all)",
    )
    parser.add_argument("--run", type=int, help="only this run of each scenario")
    parser.add_argument(
        "--verbose", action="store_true", help="describe the runs that went well too"
    )
    options = parser.parse_args(arguments)

    print(f"backend {BACKEND}, seed {options.seed}", flush=True)
    with start_server() as server:
        if options.kinds is not None:
            well = run_kinds(server, options)
        else:
            indices = options.only if options.only is not None else range(options.runs)
            well = run_product(server, options.seed, indices, options.verbose)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
