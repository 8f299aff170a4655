"""The time of a training step under FSDP, on gloo, on tidegate, and without communication.

    python -m bench.fsdp_step

Every backend has a model of its own in the same processes, and trains it for some steps in each
round, in turn. The null backend communicates nothing and computes nonsense: the time it saves over
gloo is all that a backend could save, and "of null's gain" is what share of it tidegate does. Under
FSDP2 there is a further model, on tidegate, whose communication buffers lie in the group's memory
(set_allocate_memory_from_process_group_for_comm). Losses are compared with those on gloo.
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

from bench.training import table
from bench.training.models import SHARDINGS, WORKLOADS

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    arguments = parse()
    host = fingerprint()
    if arguments.samples:
        found = json.loads(arguments.samples.read_text())
        host, cells = found["host"], found["training"]
    else:
        options = {
            **{"models": arguments.models, "shardings": arguments.shardings},
            **{"rounds": arguments.rounds, "steps": arguments.steps, "tiny": arguments.tiny},
        }
        try:
            cells = [cell for ranks in arguments.ranks for cell in measure(options, ranks)]
        except CommandError as failure:
            print(failure, file=sys.stderr)
            return 1
        if arguments.json:
            text = json.dumps({"host": host, "options": options, "training": cells}, indent=1)
            arguments.json.write_text(text + "\n")
    show(host, cells, table.markdown if arguments.markdown else table.aligned)
    complaints = list(table.wrong(cells))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def measure(options: dict[str, Any], ranks: int) -> list[Any]:
    """The cells of one number of ranks."""
    cells = []
    for line in lines_of_rank_0("bench.training.ranks", json.dumps(options), ranks, ROOT):
        cells.append(json.loads(line))
        place = (cells[-1][name] for name in ("model", "sharding", "ranks"))
        print("measured", *place, file=sys.stderr)
    return cells


def show(host: dict[str, str], cells: list[Any], form: Any) -> None:
    print(", ".join(f"{name} {what}" for name, what in host.items()))
    threads = sorted({(cell["ranks"], cell["threads"]) for cell in cells})
    print("\nTorch threads: " + ", ".join(f"{n} a rank at {ranks} ranks" for ranks, n in threads))
    sizes = {cell["model"]: cell["parameters"] for cell in cells}
    print(
        "Parameters (fp32): "
        + ", ".join(f"{name} {count / 1e6:.1f} million" for name, count in sizes.items())
    )
    print("\nTime of a step:\n")
    print(form(table.times(cells)))
    print("\nWhat it is made of, mean over the ranks:\n")
    print(form(table.parts(cells)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fsdp_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", type=names_of(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--shardings", type=names_of(SHARDINGS), default=list(SHARDINGS))
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="2,4")
    parser.add_argument("--rounds", type=positive, default=11, help="11")
    parser.add_argument("--steps", type=positive, default=3, help="of each model in a round (3)")
    parser.add_argument("--tiny", action="store_true", help="models that are there to be tested")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the samples, too")
    parser.add_argument(
        "--from",
        dest="samples",
        type=Path,
        metavar="FILE",
        help="print the tables of these samples, and measure nothing",
    )
    return parser.parse_args()


def names_of(known: Any) -> Any:
    def names(text: str) -> list[str]:
        found = text.split(",")
        for one in found:
            if one not in known:
                raise argparse.ArgumentTypeError(f"{one!r}: none of {', '.join(known)}")
        return found

    return names


def numbers(text: str) -> list[int]:
    return [positive(one) for one in text.split(",")]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
