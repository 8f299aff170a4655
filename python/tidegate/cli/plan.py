"""`tidegate plan`: which algorithm serves a collective best, why, and what each rank then does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli import cluster as clusters
from tidegate.cli import hops_picture, svg
from tidegate.cli.errors import CommandError
from tidegate.cli.output import Output
from tidegate.cli.progress import Progress
from tidegate.cli.quantities import seconds, size

if TYPE_CHECKING:
    from tidegate._shim_types import Cluster

SUMMARY = "choose the algorithm of a collective, and say why"
DESCRIPTION = (
    "Prices every algorithm that can serve on the machine by simulating it, and prints the choice."
    " The size is that of the whole tensor: the output of an all_gather, the input of a"
    " reduce_scatter, what a rank sends in an all_to_all; of gather and scatter, a rank's part."
    " TIDEGATE_ALGO and TIDEGATE_STAGE_BYTES count."
)


# The proof of a plan with many messages a rank takes minutes and gigabytes beyond.
_QUICKLY_VERIFIED_RANKS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collective", help="all_gather, reduce_scatter, all_reduce, broadcast, ...")
    parser.add_argument("size", help="of the whole tensor: 64M, 1.5GiB, 4096")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--why", action="store_true", help="all candidates, predicted times, bound")
    form.add_argument("--steps", type=int, metavar="RANK", help="prove it, print a rank's program")
    form.add_argument("--svg", type=Path, metavar="F", help="draw who sends to whom and when")
    parser.add_argument("--json", action="store_true", help="JSON; with --steps, of the program")
    parser.add_argument(
        "--verify", action="store_true", help="prove it, however long that takes (many ranks)"
    )
    parser.add_argument("--algo", metavar="NAME", help="this algorithm instead of the best one")
    parser.add_argument("--root", type=int, default=0, metavar="RANK", help="of broadcast, ... (0)")
    clusters.add_arguments(parser, ranks="ranks on this machine (default: one a processor)")


def run(options: argparse.Namespace, output: Output) -> int:
    shim = clusters.load_shim()
    with clusters.one_line():
        size_bytes: int = shim.parse_bytes(options.size)
    cluster = clusters.load(options)
    clusters.check_rank("--steps", options.steps, cluster)
    clusters.check_rank("--root", options.root, cluster)
    with clusters.one_line():
        plan, verified, program = _made(cluster, size_bytes, options)
        if options.steps is not None:
            print(program.rstrip("\n"))
            if not options.json:
                print(f"verified: {verified}")
        elif options.svg is not None:
            svg.write(options.svg, hops_picture.draw(cluster, plan, options.root))
        elif options.json:
            print(json.dumps({"version": 1, **plan}, indent=2))
        else:
            _show(cluster, plan, verified, output, options)
    return 0


def _made(
    cluster: Cluster, size_bytes: int, options: argparse.Namespace
) -> tuple[dict[str, Any], str, str]:
    """The plan, what its proof says and the program of --steps, where they are asked for."""
    verified = program = ""
    proves = options.steps is not None or not (options.svg or options.json)
    # The candidates, the price of the very size, and the proof.
    candidates = [] if options.algo is not None else cluster.algorithms(options.collective)
    with Progress(len(candidates) + 1 + proves) as progress:
        plan = make_plan(
            cluster, options.collective, size_bytes, options.root, options.algo, progress
        )
        if options.steps is not None:
            form = "json" if options.json else "text"
            program = cluster.schedule(
                plan["collective"], plan["algorithm"], options.steps, options.root, form
            )
        if proves:
            progress.next(f"proof of {plan['algorithm']}")
            verified = verification(cluster, plan, options.verify)
        progress.done()
    return plan, verified, program


def make_plan(
    cluster: Cluster,
    collective: str,
    size_bytes: int,
    root: int,
    algorithm: str | None,
    progress: Progress,
) -> dict[str, Any]:
    """The decision as --json prints it; an `algorithm` is not compared with others. Its pieces of
    `progress`: each candidate, and the price."""
    plan: dict[str, Any] = {
        "cluster": clusters.describe(cluster),
        "collective": collective,
        "bytes": size_bytes,
        "root": root,
    }
    if algorithm is None:
        plan |= cluster.decide(collective, size_bytes, root, progress.next)
        # TIDEGATE_ALGO leaves one candidate.
        progress.skip_to(len(cluster.algorithms(collective)))
    else:
        plan |= {"algorithm": algorithm, "reason": "asked for by --algo", "candidates": []}
    progress.next(f"{plan['algorithm']} of {size(size_bytes)}")
    plan["predicted_seconds"] = cluster.price(collective, plan["algorithm"], size_bytes, root)
    plan["bound_seconds"], plan["bound_cut"] = cluster.bound(collective, size_bytes, root)
    return plan


def _show(
    cluster: Cluster,
    plan: dict[str, Any],
    verified: str,
    output: Output,
    options: argparse.Namespace,
) -> None:
    print(f"{plan['collective']} of {size(plan['bytes'])}, {plan['cluster']}")
    print(f"algorithm  {plan['algorithm']}: {plan['reason']}")
    print(f"predicted  {seconds(plan['predicted_seconds'])}{_share(plan)}")
    if plan["bound_seconds"] > 0:
        print(f"bound      {seconds(plan['bound_seconds'])}, {plan['bound_cut']}")
    print(f"verified   {verified}")
    if options.why and "data_paths" in plan:
        paths = plan["data_paths"]
        print(
            f"chunks     of at most {size(paths['chunk_bytes'])}; results are written past the "
            f"caches where tensors take {size(paths['stream_bytes'])} on all ranks together"
        )
        print(
            "copies     one, between processes, where the kernel allows that"
            if paths["single_copy"]
            else "copies     two, through the stage"
        )
    if options.why and plan["candidates"]:
        print(f"\nCandidates at {size(plan['priced_bytes'])}, the middle of the size class:")
        _show_candidates(cluster, plan, output)


def _share(plan: dict[str, Any]) -> str:
    part = _part(plan["bound_seconds"], plan["predicted_seconds"])
    return f", {part} of the bound" if part != "-" else ""


def _show_candidates(cluster: Cluster, plan: dict[str, Any], output: Output) -> None:
    bound, _ = cluster.bound(plan["collective"], plan["priced_bytes"], plan["root"])
    rows = []
    measured = any(candidate["measured_seconds"] for candidate in plan["candidates"])
    for candidate in plan["candidates"]:
        spent, taken = candidate["seconds"], candidate["measured_seconds"]
        if candidate["excluded"]:
            cells = ["", "", "", f"excluded: {candidate['excluded']}"]
        else:
            chosen = "chosen" if candidate["algorithm"] == plan["algorithm"] else ""
            cells = [seconds(spent), _part(bound, spent), seconds(taken) if taken else "", chosen]
        if not measured:
            del cells[2]
        rows.append((candidate["algorithm"], *cells))
    columns = ("predicted", "of bound", *(("measured",) if measured else ()))
    output.table(("algorithm", *columns, ""), rows)


def _part(bound: float, spent: float) -> str:
    return f"{bound / spent:.1%}" if bound > 0 and spent > 0 else "-"


def verification(cluster: Cluster, plan: dict[str, Any], at_any_cost: bool) -> str:
    """ "yes, ..." or "no: <why not>". CommandError for a plan that is wrong."""
    if cluster.ranks > _QUICKLY_VERIFIED_RANKS and not at_any_cost:
        return f"no: above {_QUICKLY_VERIFIED_RANKS:,} ranks it may take minutes; add --verify"
    try:
        cluster.verify(plan["collective"], plan["algorithm"], plan["root"])
    except NotImplementedError as error:
        return f"no: {error}"
    except ValueError as error:
        raise CommandError(f"{plan['algorithm']} is wrong, which is a bug: {error}") from error
    return "yes, every step of every rank" if cluster.ranks <= 64 else "yes, by symmetry"
