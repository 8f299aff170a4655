"""tidegate beside Open MPI and MPICH, at the level of C++, on one machine.

Every round launches tidegate_bench_node and each library at each of its settings, in an order that
turns with the rounds. A library's figure is that of the setting which is best in the cell. MPICH is
left out where ranks outnumber cores, for it spins there for milliseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from bench.peers import launch
from bench.peers.launch import LaunchError, Place, Plan
from bench.peers.settings import LIBRARIES, Library, Setting
from bench.peers.table import TIDEGATE, Samples, markdown

COLLECTIVES = (
    *("all_gather", "reduce_scatter", "all_reduce", "broadcast"),
    *("all_to_all", "gather", "scatter", "barrier"),
)
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main() -> int:
    arguments = parse()
    if arguments.samples:
        print(markdown(*read(arguments.samples)))
        return 0
    if not launch.NODE.exists():
        print(f"{launch.NODE} is not built: make bench-peers builds it", file=sys.stderr)
        return 2
    programs: list[tuple[Library, Path]] = []
    for library in LIBRARIES:
        program = launch.build(library)
        if isinstance(program, Path):
            programs.append((library, program))
        else:
            print(f"without {library.name}: {program}", file=sys.stderr)
    results = []
    for ranks in arguments.ranks:
        plan = Plan(arguments.collectives or COLLECTIVES, arguments.sizes, ranks)
        results.append((ranks, measure(plan, programs, arguments)))
    print(markdown(results, [library.name for library, _ in programs]))
    if arguments.json:
        arguments.json.write_text(json.dumps(report(results), indent=1) + "\n")
    return 0


def measure(
    plan: Plan, programs: list[tuple[Library, Path]], arguments: argparse.Namespace
) -> Samples:
    """Microseconds by cell and by library and setting, one a round."""
    turns: list[tuple[Library, Path, Setting] | None] = [None]
    for library, program in programs:
        chosen = library.settings
        if arguments.every_setting:
            chosen += library.others
        elif not library.suits(plan.ranks, launch.CORES):
            chosen = ()
        turns += [(library, program, setting) for setting in chosen]
    found: Samples = defaultdict(lambda: defaultdict(list))
    for number in range(arguments.rounds):
        for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
            try:
                if turn is None:
                    name, times = (TIDEGATE, ""), launch.launch_tidegate(plan)
                else:
                    library, program, setting = turn
                    name = (library.name, setting.name)
                    times = launch.launch_mpi(program, library, setting, plan)
            except LaunchError as failure:
                if turn is None:
                    raise
                # It must not be compared by the rounds that it did finish.
                turns.remove(turn)
                for timings in found.values():
                    timings.pop(name, None)
                print(f"without {' '.join(name)}, {plan.ranks} ranks: {failure}", file=sys.stderr)
                continue
            for place, time in times.items():
                found[place][name].append(time)
    return found


def report(results: list[tuple[int, Samples]]) -> list[dict[str, object]]:
    return [
        {
            **{"collective": place.collective, "ranks": ranks, "bytes": place.bytes},
            **{"in_place": place.in_place, "library": library, "setting": setting},
            "us": times,
        }
        for ranks, found in results
        for place, timings in found.items()
        for (library, setting), times in timings.items()
    ]


def read(paths: list[Path]) -> tuple[list[tuple[int, Samples]], list[str]]:
    """What `report` wrote, and the libraries in it."""
    results: dict[int, Samples] = defaultdict(lambda: defaultdict(dict))
    found = [sample for path in paths for sample in json.loads(path.read_text())]
    for one in sorted(found, key=lambda one: COLLECTIVES.index(one["collective"])):
        place = Place(one["collective"], one["bytes"], one["in_place"])
        results[one["ranks"]][place][(one["library"], one["setting"])] = one["us"]
    libraries = {one["library"] for one in found}
    return sorted(results.items()), [one.name for one in LIBRARIES if one.name in libraries]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("collectives", nargs="*", choices=[[], *COLLECTIVES], metavar="COLLECTIVE")
    parser.add_argument("--sizes", type=sizes, default=sizes("8K,64K,1M,16M,128M"))
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--every-setting", action="store_true", help="those that were never best, too"
    )
    parser.add_argument("-J", dest="json", type=Path, help="file for the samples as JSON")
    parser.add_argument(
        "--from",
        dest="samples",
        type=Path,
        nargs="+",
        help="print the table of these files, and measure nothing",
    )
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def sizes(text: str) -> list[int]:
    return [
        int(one[:-1]) * UNITS[one[-1]] if one[-1] in UNITS else int(one) for one in text.split(",")
    ]


if __name__ == "__main__":
    sys.exit(main())
