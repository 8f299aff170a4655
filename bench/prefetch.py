"""What limits of all-gathers in flight cost a training loop that prefetches parameters.

    python -m bench.prefetch

FSDP2 on a CPU gathers parameters synchronously of its own accord; with its public
``unshard(async_op=True)`` a loop gathers those of blocks ahead of their use. The same loop under
several limits, in turn within each round; the first is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tidegate.cli.benchmark.host import fingerprint
from tidegate.cli.benchmark.launch import lines_of_rank_0
from tidegate.cli.errors import CommandError
from tidegate.cli.quantities import size

from bench.training.table import spread

ROOT = Path(__file__).resolve().parents[1]
LIMITS: list[dict[str, Any]] = [
    {},
    {"max_bytes": "auto", "wait": "block"},
    {"max_bytes": "auto", "wait": "queue"},
    {"max_ops": 1, "wait": "block"},
    {"max_bytes": "4M", "wait": "block"},
]


def main() -> int:
    options = vars(parse())
    try:
        everybody = measure({**options, "limits": LIMITS})
    except CommandError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(", ".join(f"{name} {what}" for name, what in fingerprint().items()))
    show(everybody)
    return 0


def measure(options: dict[str, Any]) -> list[list[list[dict[str, Any]]]]:
    """By rank, round and limits: what bench.admission.prefetch_ranks.run returns."""
    module = "bench.admission.prefetch_ranks"
    lines = list(lines_of_rank_0(module, json.dumps(options), options["ranks"], ROOT))
    everybody: list[list[list[dict[str, Any]]]] = json.loads(lines[-1])
    return everybody


def show(everybody: list[list[list[dict[str, Any]]]]) -> None:
    rounds = everybody[0]
    print("\n| limits | step ms | unlimited / this | most in flight | promoted | losses |")
    print("|---|---|---|---|---|---|")
    for number, limits in enumerate(LIMITS):
        cells = [one[number] for one in rounds]
        all_cells = [one[number] for rank in everybody for one in rank]
        ops = max(cell["high_water_ops"] for cell in all_cells)
        most = max(cell["high_water_bytes"] for cell in all_cells)
        same = all(one[number]["losses"] == one[0]["losses"] for rank in everybody for one in rank)
        ratios = [one[0]["seconds"] / one[number]["seconds"] for one in rounds]
        print(
            f"| {' '.join(f'{name}={value}' for name, value in limits.items()) or 'none'} "
            f"| {spread([1e3 * cell['seconds'] for cell in cells], '{:.1f}')} "
            f"| {spread(ratios, '{:.3f}')} "
            f"| {f'{ops} ops, {size(most)}' if ops else '-'} "
            f"| {sum(cell['promotions'] for cell in all_cells)} "
            f"| {'equal' if same else 'DIFFERENT'} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.prefetch", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="in a round, under each limits")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="of the two layers of a block")
    parser.add_argument("--ahead", type=int, default=4, help="blocks gathered ahead of their use")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
