"""`tidegate topo`: this machine, a described one or a made-up cluster, as the planner sees it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli import cluster as clusters
from tidegate.cli import svg, topology_picture, topology_tree
from tidegate.cli.output import Output
from tidegate.cli.quantities import rate, seconds

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

SUMMARY = "show this machine, a described one or a made-up cluster, as the planner sees it"
DESCRIPTION = (
    "Prints what there is and what it is joined by, the ways between ranks, and what is odd about"
    " it. What --json prints is a file for --file and TIDEGATE_TOPO_FILE (docs/topology.md)."
)
_MATRIX_RANKS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the description as a file")
    form.add_argument("--svg", metavar="F", type=Path, help="draw the graph to a file")
    clusters.add_arguments(parser, ranks="ranks on this machine (default: one a processor)")


def run(options: argparse.Namespace, output: Output) -> int:
    cluster = clusters.load(options)
    if options.json:
        print(cluster.json(), end="")
    elif options.svg is not None:
        svg.write(options.svg, topology_picture.draw(cluster))
    else:
        _show(cluster, output)
    return 0


def _show(cluster: Cluster, output: Output) -> None:
    title = f"{cluster.name}: " if cluster.name else ""
    print(title + clusters.describe(cluster))
    for group in topology_tree.groups(cluster):
        print()
        output.table((group.title, "kind", "joined to"), group.rows)
    print()
    if 1 < cluster.ranks <= _MATRIX_RANKS:
        _show_matrix(cluster, output)
    elif cluster.ranks > 1:
        _show_ways(cluster, output)
    for finding in cluster.findings():
        print(f"warning: {finding}")


def _show_matrix(cluster: Cluster, output: Output) -> None:
    ranks = range(cluster.ranks)
    header = ("way, GB/s", *(f"to {rank}" for rank in ranks))
    rows = []
    for source in ranks:
        cells = [f"from {source}"]
        for target in ranks:
            way = cluster.route(source, target)
            figure = "" if source == target else f" {way['bandwidth_Bps'] / 1e9:.3g}"
            cells.append("-" if source == target else way["path"] + figure)
        rows.append(cells)
    output.table(header, rows)


def _show_ways(cluster: Cluster, output: Output) -> None:
    """From rank 0 to the last rank of its node, and to the last of all."""
    neighbour = cluster.ranks_of_nodes()[0] - 1
    targets = sorted({rank for rank in (neighbour, cluster.ranks - 1) if rank > 0})
    rows = []
    for target in targets:
        way = cluster.route(0, target)
        figures = way["path"], rate(way["bandwidth_Bps"]), seconds(way["latency_s"])
        rows.append((f"rank 0 to {target}", *figures))
    output.table(("way", "class", "bandwidth", "latency"), rows)
