"""`tidegate sim`: how long collectives take on machines that nobody here has."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli import cluster as clusters
from tidegate.cli import svg
from tidegate.cli.errors import UsageError
from tidegate.cli.output import Output
from tidegate.cli.progress import Progress
from tidegate.cli.quantities import seconds, size
from tidegate.cli.simulation import Chunking, Measurement, simulate

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

SUMMARY = "simulate collectives on a described or made-up cluster"
DESCRIPTION = (
    "Runs the plans themselves on a simulated machine: time, share of the bound that no plan beats,"
    " bytes by how far they go, and the stage memory that a rank needs."
)
EPILOG = (
    "--chunk executor: stage slots of TIDEGATE_STAGE_BYTES, as the backend would run it (default up"
    " to 64 ranks); long pipelines are simulated until they are steady. --chunk best: blocks cut"
    " into 1, 4, 16 or 64 chunks, whichever is fastest with at most --buffer of stage memory"
    " (default above). --chunk SIZE: chunks of that size. Beyond 64 ranks the ranks of one node"
    " stand for all where cluster and algorithm allow it, and only the algorithms"
    " that can win there are run unless --algo names others."
)
_NODE = 8  # ranks of a node where only --ranks is given
_FEW_RANKS = 64
_LEAST_CHUNK = 64
_SIZES = "64K,1M,16M,256M"
# Beyond a few ranks the others lose by far (docs/scale.md) and take minutes to simulate.
_LARGE = ("direct", "column_bruck", "column_far_first", "column_ring", "ring", "one_shot", "tree")


@dataclass
class Row:
    """A line of the table. `error` says why there are no figures."""

    collective: str
    bytes: int
    algorithm: str
    seconds: float = 0
    bound_seconds: float = 0
    tier_bytes: dict[str, float] | None = None
    chunks: int = 0
    peak_stage_bytes: int = 0
    extrapolated: bool = False
    error: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--coll", default="all_gather", metavar="C,..", help="collectives (default: all_gather)"
    )
    parser.add_argument(
        "--sizes", default=_SIZES, metavar="S,..", help=f"of the whole tensor (default: {_SIZES})"
    )
    parser.add_argument("--algo", metavar="A,..", help="algorithms (default: those that serve)")
    parser.add_argument("--root", type=int, default=0, metavar="RANK", help="of broadcast, ... (0)")
    parser.add_argument("--chunk", metavar="HOW", help="executor, best or a size, see below")
    parser.add_argument(
        "--buffer",
        default="4G",
        metavar="S",
        help="most stage memory of --chunk best (default: 4G)",
    )
    parser.add_argument("--plot", type=Path, metavar="F", help="also draw time over size (SVG)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    clusters.add_arguments(
        parser, ranks="so many ranks in nodes of 8", title="which machine (it must be said)"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    shim = clusters.load_shim()
    with clusters.one_line():
        sizes: list[int] = [shim.parse_bytes(text) for text in options.sizes.split(",")]
        buffer: int = shim.parse_bytes(options.buffer)
    cluster = clusters.load(options, nodes_of=_NODE)
    clusters.check_rank("--root", options.root, cluster)
    how = options.chunk or ("executor" if cluster.ranks <= _FEW_RANKS else "best")
    with clusters.one_line():
        chunk = 0 if how in ("executor", "best") else shim.parse_bytes(how)
        if how not in ("executor", "best") and chunk < _LEAST_CHUNK:
            raise UsageError(f"--chunk {how}: at least {_LEAST_CHUNK} bytes, executor or best")
        cells = _cells(cluster, options.coll.split(","), sizes, options.algo)
    chunking = Chunking(best=how == "best", bytes=chunk, buffer=buffer)
    rows = _run(cluster, cells, options.root, chunking)
    if options.json:
        _print_json(cluster, rows)
    else:
        print(f"{clusters.describe(cluster)}, {chunking}\n")
        _show(rows, output)
    if options.plot is not None:
        svg.write(options.plot, _plot(cluster, rows))
    return 1 if all(row.error for row in rows) else 0


def _cells(
    cluster: Cluster, collectives: Sequence[str], sizes: Sequence[int], algorithms: str | None
) -> list[Row]:
    """What is to be simulated; ValueError for unknown names."""
    cells = []
    for collective in collectives:
        serving: list[str] = cluster.algorithms(collective)
        if algorithms is not None:
            names = algorithms.split(",")
            for name in names:
                if name not in serving:
                    raise UsageError(
                        f"no {collective} called {name} serves on {clusters.describe(cluster)};"
                        f" there are {', '.join(serving) or 'none'}"
                    )
        else:
            few = cluster.ranks <= _FEW_RANKS
            names = [name for name in serving if few or name in _LARGE] or serving
        if not names:
            raise UsageError(f"no {collective} serves on {clusters.describe(cluster)}")
        cells += [Row(collective, size, name) for size in sizes for name in names]
    return cells


def _run(cluster: Cluster, cells: list[Row], root: int, chunking: Chunking) -> list[Row]:
    bounds: dict[tuple[str, int], float] = {}
    with Progress(len(cells)) as progress:
        for row in cells:
            progress.next(f"{row.collective} {row.algorithm} of {size(row.bytes)}")
            key = row.collective, row.bytes
            with clusters.one_line():
                if key not in bounds:
                    bounds[key], _ = cluster.bound(*key, root)
                found = simulate(cluster, row.collective, row.algorithm, row.bytes, root, chunking)
            if isinstance(found, Measurement):
                for name, value in asdict(found).items():
                    setattr(row, name, value)
                row.bound_seconds = bounds[key]
            else:
                row.error = found
            progress.done()
    # Sizes and collectives as they were asked for; of one, the fastest first.
    order = {key: number for number, key in enumerate(bounds)}
    return sorted(cells, key=lambda r: (order[r.collective, r.bytes], bool(r.error), r.seconds))


def _show(rows: list[Row], output: Output) -> None:
    table = [_cells_of(row) for row in rows]
    header = [
        *("collective", "size", "algorithm", "time", "of bound", "chunks"),
        *("in nodes", "by leaf", "by spine", "peak buffer"),
    ]
    # Terminals are narrow: a column in which nothing stands is left out.
    shown = [
        column
        for column, name in enumerate(header)
        if name != "by spine" or any(cells[column] != "-" for cells in table)
    ]
    output.table(
        [header[column] for column in shown], [[cells[c] for c in shown] for cells in table]
    )
    for row in rows:
        if row.error:
            print(f"{row.collective} {row.algorithm} of {size(row.bytes)}: {row.error}")
    if any(row.extrapolated for row in rows):
        print("\n~ simulated until the pipeline was steady, and continued in a straight line")


def _cells_of(row: Row) -> tuple[str, ...]:
    name = row.collective, size(row.bytes), row.algorithm
    if row.error:
        return (*name, *["-"] * 7)
    tiers = row.tier_bytes or {}
    share = f"{row.bound_seconds / row.seconds:.1%}" if row.bound_seconds * row.seconds else "-"
    return (
        *name,
        ("~ " if row.extrapolated else "") + seconds(row.seconds),
        share,
        f"{row.chunks:,}",
        *(size(tiers[tier]) if tiers[tier] else "-" for tier in ("node", "leaf", "spine")),
        size(row.peak_stage_bytes),
    )


def _print_json(cluster: Cluster, rows: list[Row]) -> None:
    report: dict[str, Any] = {
        "version": 1,
        "cluster": clusters.describe(cluster),
        "rows": [asdict(row) for row in rows],
    }
    print(json.dumps(report, indent=2))


def _plot(cluster: Cluster, rows: list[Row]) -> str:
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row.error or row.bytes == 0 or row.seconds <= 0:
            continue
        curves = charts.setdefault(f"{row.collective}, {clusters.describe(cluster)}", {})
        curves.setdefault(row.algorithm, []).append((row.bytes, row.seconds))
    for row in rows:
        if not row.error and row.bytes > 0 and row.bound_seconds > 0:
            bound = charts[f"{row.collective}, {clusters.describe(cluster)}"].setdefault(
                "bound", []
            )
            if (row.bytes, row.bound_seconds) not in bound:
                bound.append((row.bytes, row.bound_seconds))
    return svg.log_charts(charts, size, seconds)
