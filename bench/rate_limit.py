"""How well all-gathers keep to a rate, and what that leaves to a concurrent reduce-scatter.

    python -m bench.rate_limit

In each round and for each rate: all-gathers alone, by which the rate is measured, then again with
reduce-scatters in another group meanwhile, which are compared with reduce-scatters alone in the
same round. Two groups of the same processes; tidegate.set_limits changes the rate.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tidegate.cli.benchmark.host import fingerprint
from tidegate.cli.benchmark.launch import lines_of_rank_0
from tidegate.cli.errors import CommandError

ROOT = Path(__file__).resolve().parents[1]
RATES = [10e6, 50e6, 200e6, 500e6, 1e9, 2e9]


def main() -> int:
    arguments = parse()
    options = {
        **{"rates": arguments.rates, "rounds": arguments.rounds, "seconds": arguments.seconds},
        "bytes": arguments.bytes,
    }
    try:
        lines = list(
            lines_of_rank_0("bench.admission.ranks", json.dumps(options), arguments.ranks, ROOT)
        )
    except CommandError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(", ".join(f"{name} {what}" for name, what in fingerprint().items()))
    show([json.loads(line) for line in lines])
    return 0


def show(rounds: list[dict[str, Any]]) -> None:
    unlimited = [one["unlimited"]["rate"] for one in rounds]
    print(f"\nUnlimited all-gathers: {of(unlimited, 1e-6, 0)} MB/s.\n")
    print("| rate MB/s | measured MB/s | off % | reduce-scatter kept % | aim % |")
    print("|---|---|---|---|---|")
    for key in rounds[0]["limited"]:
        cells = [one["limited"][key] for one in rounds]
        asked = float(key)
        share = 0.0 if asked <= 500e6 else asked / median(unlimited)
        print(
            f"| {asked / 1e6:.0f} | {of([cell['rate'] for cell in cells], 1e-6, 1)} "
            f"| {of([cell['rate'] / asked - 1 for cell in cells], 100, 2)} "
            f"| {of([cell['kept'] for cell in cells], 100, 0)} | {90 * (1 - share):.0f} |"
        )
    kept = [one["unlimited"]["kept"] for one in rounds]
    print(f"| none | {of(unlimited, 1e-6, 0)} | | {of(kept, 100, 0)} | |")


def of(values: list[float], scale: float, digits: int) -> str:
    """The median with its spread."""
    least, middle, most = (scale * value for value in (min(values), median(values), max(values)))
    return f"{middle:.{digits}f} ({least:.{digits}f}..{most:.{digits}f})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rate_limit", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of all-gathers, for each rate")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of an all-gather's output")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="bytes a second")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
