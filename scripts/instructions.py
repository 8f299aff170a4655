"""Counts the instructions of bench/instructions by callgrind and holds them against a budget.

A count does not depend on what else the machine does, so a slowdown of a few in a hundred is seen
where times show nothing. It does depend on the compiler and the C library: the budget names those
that it was recorded with, and is not compared under others. Exits with 1 when a count is above.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

BUDGET = Path(__file__).resolve().parent.parent / "bench/instructions/budget.json"
TOLERANCE = 0.02
NO_AVX2 = 77
# The memcpy of one kind of processor, so that the count is the same on all.
TUNABLES = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-ERMS,-FSRM"


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def count(program: str, scenario: str) -> int | None:
    """Instructions of the counted part; None where the machine has no AVX2."""
    run = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=tidegate_counted",
            program,
            scenario,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "GLIBC_TUNABLES": TUNABLES},
    )
    if run.returncode == NO_AVX2:
        return None
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or collected is None or collected[1] == "0":
        raise SystemExit(f"{scenario}: valgrind gave no count\n{run.stdout}{run.stderr}")
    return int(collected[1])


def verdict(measured: int, allowed: int) -> str:
    if measured > allowed * (1 + TOLERANCE):
        return "ABOVE"
    return "below: record it" if measured < allowed * (1 - TOLERANCE) else "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--record", action="store_true", help="write the budget anew")
    options = parser.parse_args()

    toolchain = output_of(options.program, "--toolchain").strip()
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    if not options.record and budget.get("toolchain") != toolchain:
        print(
            f"==> instructions SKIPPED: the budget is for gcc {budget.get('toolchain')}, "
            f"this is gcc {toolchain}"
        )
        return 0

    counts: dict[str, int] = {}
    above = 0
    for scenario in output_of(options.program).split():
        measured = count(options.program, scenario)
        if measured is None:
            print("==> instructions SKIPPED: this processor has no AVX2")
            return 0
        counts[scenario] = measured
        allowed = budget.get("instructions", {}).get(scenario)
        note = "no budget: record it" if allowed is None else verdict(measured, allowed)
        change = "" if allowed is None else f"{100 * (measured / allowed - 1):+.2f}%"
        print(f"{scenario:28} {measured:>12,} {change:>8}  {note}")
        above += note == "ABOVE" or allowed is None
    if options.record:
        document = {"toolchain": toolchain, "instructions": counts}
        BUDGET.write_text(json.dumps(document, indent=2) + "\n")
        print(f"recorded in {BUDGET}")
        return 0
    if above:
        print(
            "more instructions than recorded: mend it, or say in the commit what they are for "
            "and record them with: make instructions-record",
            file=sys.stderr,
        )
    return min(above, 1)


if __name__ == "__main__":
    sys.exit(main())
