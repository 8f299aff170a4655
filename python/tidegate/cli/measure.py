"""`tidegate measure`: times every algorithm on this machine, for the planner to choose by."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from itertools import count, takewhile
from pathlib import Path

from tidegate.cli import cluster as clusters
from tidegate.cli.errors import CommandError, UsageError
from tidegate.cli.job import end, failure, torchrun
from tidegate.cli.output import Output
from tidegate.cli.progress import Progress
from tidegate.cli.quantities import seconds, size

SUMMARY = "time every algorithm on this machine, for the planner to choose by"
DESCRIPTION = (
    "Runs each algorithm of each collective on processes of this machine and keeps the times in"
    " TIDEGATE_CACHE_DIR: groups of as many ranks that are made here from now on choose by them"
    " instead of by predicted times. Results stay the same to the bit. About half a minute for two"
    " ranks; leave the machine alone meanwhile."
)

COLLECTIVES = (
    *("all_gather", "reduce_scatter", "all_reduce"),
    *("broadcast", "reduce", "gather", "scatter"),
)
RUN_LIMIT_SECONDS = 1800


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks (one a usable processor)")
    parser.add_argument("--least", default="1K", metavar="SIZE", help="least size (1K)")
    parser.add_argument("--most", default="64M", metavar="SIZE", help="greatest size (64M)")
    parser.add_argument("--json", action="store_true", help="the rows instead of a table")


def run(options: argparse.Namespace, output: Output) -> int:
    shim = clusters.load_shim()
    if os.environ.get("TIDEGATE_TOPO_FILE"):
        raise UsageError("TIDEGATE_TOPO_FILE is set: what is measured is this machine; unset it")
    usable: int = shim.machine()["usable_cpus"]
    ranks = min(64, usable) if options.ranks is None else options.ranks
    clusters.check_range("--ranks", ranks, 2, 64)
    with clusters.one_line():
        first, last = (
            shim.parse_bytes(text).bit_length() for text in (options.least, options.most)
        )
        cluster = shim.Cluster.machine(ranks)
        candidates = {name: cluster.algorithms(name) for name in COLLECTIVES}
    if not 2 <= first <= last:
        raise UsageError(f"sizes from {options.least} to {options.most}: none from 2 bytes on")
    rows: list[tuple[str, str, int, float]] = []
    choices = list(takewhile(bool, (_choice(candidates, index) for index in count())))
    with Progress(len(choices)) as progress:
        for choice in choices:
            progress.next(", ".join(dict.fromkeys(choice.values())))
            rows += _measure(ranks, choice, first, last)
            progress.done()
    with clusters.one_line():
        path = shim.keep_measured(ranks, rows)
    if options.json:
        print(json.dumps({"version": 1, "ranks": ranks, "file": path, "seconds": rows}))
        return 0
    output.table(("collective", "size", "fastest", "next"), _fastest(rows))
    print(f"kept in {path}")
    return 0


def _choice(candidates: dict[str, list[str]], index: int) -> dict[str, str]:
    """The algorithm number `index` of each collective that has so many."""
    return {name: names[index] for name, names in candidates.items() if index < len(names)}


def _measure(
    ranks: int, choice: dict[str, str], first: int, last: int
) -> list[tuple[str, str, int, float]]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        arguments = [str(result), str(first), str(last), ",".join(choice)]
        forced = ",".join(f"{name}:{one}" for name, one in choice.items())
        # A session of its own: Ctrl-C reaches only the command, which then ends it in order.
        process = subprocess.Popen(
            torchrun("tidegate.cli.measure_ranks", ranks, *arguments),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TIDEGATE_ALGO": forced},
        )
        try:
            _, errors = process.communicate(timeout=RUN_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise CommandError(f"{forced}: not measured after {RUN_LIMIT_SECONDS} s") from None
        finally:
            end(process)
        if process.returncode != 0:
            raise CommandError(f"{forced} could not be measured: " + failure(errors))
        measured = json.loads(result.read_text())
    return [(name, choice[name], size_class, time) for name, size_class, time in measured]


def _fastest(rows: list[tuple[str, str, int, float]]) -> list[tuple[str, ...]]:
    """A line for each collective and size: the two fastest algorithms."""
    cells: dict[tuple[str, int], list[tuple[float, str]]] = {}
    for name, algorithm, size_class, time in rows:
        cells.setdefault((name, size_class), []).append((time, algorithm))
    lines: list[tuple[str, ...]] = []
    for (name, size_class), times in sorted(cells.items()):
        best = [f"{algorithm} {seconds(time)}" for time, algorithm in sorted(times)[:2]]
        lines.append((name, size(3 * 2**size_class // 4), best[0], (best[1:] or ["-"])[0]))
    return lines
