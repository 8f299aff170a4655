"""Which machine `topo`, `plan` and `sim` speak of: options, and the shim's Cluster they make."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster, Shim

MOST_RANKS = 131072  # what a topology may have (collectives/topology/topology.h)
_MOST_RAILS = 1024
FABRICS = ("single_switch", "fat_tree", "rail_optimised", "rail_only")


def add_arguments(
    parser: argparse.ArgumentParser, ranks: str, title: str = "which machine (default: this one)"
) -> None:
    """`ranks` says what --ranks means where neither a file nor --fake is given."""
    machine = parser.add_argument_group(title)
    which = machine.add_mutually_exclusive_group()
    which.add_argument(
        "--topo", "--file", dest="topo", metavar="F", help="a description, see docs/topology.md"
    )
    which.add_argument(
        "--fake", metavar="NxG", help="a made-up cluster: nodes x ranks of each, or 3+1"
    )
    machine.add_argument("--ranks", type=int, metavar="N", help=ranks)
    machine.add_argument(
        "--fabric", choices=FABRICS, help="made up: how the nodes are joined (single_switch)"
    )
    machine.add_argument("--rails", type=int, metavar="K", help="made up: NICs of a node (1)")
    machine.add_argument(
        "--oversubscription", type=float, metavar="X", help="made up: 4 for 4:1 (1)"
    )
    machine.add_argument(
        "--round-robin", action="store_true", help="made up: ranks are dealt to nodes in turn"
    )


def load(options: argparse.Namespace, nodes_of: int | None = None) -> Cluster:
    """The cluster that the options ask for.

    Where they name none: `nodes_of` given, --ranks ranks in nodes of so many, else this machine
    with --ranks ranks (one a usable processor). Errors: see :func:`one_line`.
    """
    shim = load_shim()
    check_range("--ranks", options.ranks, 1, MOST_RANKS)
    check_range("--rails", options.rails, 1, _MOST_RAILS)
    if options.oversubscription is not None and not 1 <= options.oversubscription < math.inf:
        raise UsageError(
            f"--oversubscription {options.oversubscription:g}: at least 1, as 4 for 4:1"
        )
    made_up = {
        name: value
        for name in ("fabric", "rails", "oversubscription", "round_robin")
        if (value := getattr(options, name)) not in (None, False)
    }
    fake = options.fake
    if fake is None and options.topo is None and nodes_of is not None:
        fake = in_nodes_of(nodes_of, options.ranks)
    if fake is None and made_up:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in made_up)
        raise UsageError(f"{names}: of a made-up cluster alone; add --fake 2x4")
    with one_line():
        if fake is not None:
            cluster = shim.Cluster.fake(fake, **made_up)
        elif options.topo is not None:
            cluster = shim.Cluster.file(options.topo)
        else:
            usable: int = shim.machine()["usable_cpus"]
            return shim.Cluster.machine(usable if options.ranks is None else options.ranks)
    if options.ranks is not None and options.ranks != cluster.ranks:
        raise UsageError(
            f"--ranks {options.ranks}, but {options.topo or fake} has {cluster.ranks}; leave it out"
        )
    return cluster


def in_nodes_of(size: int, ranks: int | None) -> str:
    """The words of --fake for `ranks` ranks, node after node full: "2x8", "8+8+3"."""
    if ranks is None:
        raise UsageError("say how many ranks: --ranks 64, --fake 8x8 or --topo FILE")
    full, rest = divmod(ranks, size)
    if rest == 0:
        return f"{full}x{size}"
    return "+".join([str(size)] * full + [str(rest)])


def check_range(option: str, value: int | None, least: int, most: int) -> None:
    """UsageError for a value outside, before it meets a C++ int that does not hold it."""
    if value is not None and not least <= value <= most:
        raise UsageError(f"{option} {value}: there must be {least} to {most}")


def check_rank(option: str, value: int | None, cluster: Cluster) -> None:
    if value is not None and not 0 <= value < cluster.ranks:
        raise UsageError(f"{option} {value}: the ranks are 0 to {cluster.ranks - 1}")


def describe(cluster: Cluster) -> str:
    """ "2 nodes of 4 ranks", "3 ranks on nodes of 2+1"."""
    counts = cluster.ranks_of_nodes()
    few = len(counts) == 1, len(counts) > 1 and len(set(counts)) == 1
    ranks = f"{cluster.ranks:,} rank{'s' if cluster.ranks > 1 else ''}"
    if few[0]:
        return f"{ranks} on one node"
    if few[1]:
        return f"{ranks} on {len(counts):,} nodes of {counts[0]}"
    shown = "+".join(map(str, counts[:6])) + ("+..." if len(counts) > 6 else "")
    return f"{ranks} on nodes of {shown}"


def load_shim() -> Shim:
    try:
        from tidegate import _backend

        return _backend.load_shim()
    except (ImportError, RuntimeError) as error:
        raise CommandError(str(error)) from error


def check_settings(shim: Shim) -> None:
    """UsageError for settings that no group accepts, which every rank would say at length."""
    errors = [row["error"] for row in shim.settings() if row["error"]]
    if errors:
        raise UsageError("; ".join(errors))


@contextmanager
def one_line() -> Iterator[None]:
    """Turns what the shim raises into the errors of a command: what was wrong with its input into
    a UsageError, the rest into a CommandError."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from error
    except RuntimeError as error:  # NotImplementedError, too
        raise CommandError(str(error)) from error
