"""How well all-gathers keep to a rate, and what that leaves to a concurrent reduce-scatter.

    python -m bench.rate_limit

In each round and for each rate: all-gathers alone, by which the rate is measured, then again with
reduce-scatters in another group meanwhile, which are compared with reduce-scatters alone in the
same round. At last with broadcasts, a checkpoint's traffic, while all-gathers are held to half of
what they reach without a limit. Groups of the same processes; tidegate.set_limits changes the rate.
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

from bench.training.table import spread

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
    rounds = [json.loads(line) for line in lines]
    show(rounds)
    show_broadcasts(rounds)
    return 0


def show(rounds: list[dict[str, Any]]) -> None:
    unlimited = [one["unlimited"]["rate"] / 1e6 for one in rounds]
    print(f"\nUnlimited all-gathers: {spread(unlimited, '{:.0f}')} MB/s.\n")
    print("| rate MB/s | measured MB/s | off % | reduce-scatter kept % | aim % |")
    print("|---|---|---|---|---|")
    for key in rounds[0]["limited"]:
        cells = [one["limited"][key] for one in rounds]
        asked = float(key) / 1e6
        share = 0.0 if asked <= 500 else asked / median(unlimited)
        measured = [cell["rate"] / 1e6 for cell in cells]
        print(
            f"| {asked:.0f} | {spread(measured, '{:.1f}')} "
            f"| {spread([100 * (rate / asked - 1) for rate in measured], '{:.2f}')} "
            f"| {kept(cells)} | {90 * max(1 - share, 0):.0f} |"
        )
    print(
        f"| none | {spread(unlimited, '{:.0f}')} | | {kept([o['unlimited'] for o in rounds])} | |"
    )


def show_broadcasts(rounds: list[dict[str, Any]]) -> None:
    print("\n| all-gathers | their MB/s alone | broadcasts kept % | aim % |")
    print("|---|---|---|---|")
    for name, aim in (("unlimited", ""), ("half", "45")):
        cells = [one["broadcasts"][name] for one in rounds]
        rates = spread([cell["rate"] / 1e6 for cell in cells], "{:.0f}")
        print(f"| {name} | {rates} | {kept(cells)} | {aim} |")


def kept(cells: list[dict[str, float]]) -> str:
    return spread([100 * cell["kept"] for cell in cells], "{:.0f}")


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
