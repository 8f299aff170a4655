"""`tidegate bench`: times collectives as nccl-tests does, several backends in turn in one run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli import cluster as clusters
from tidegate.cli import svg
from tidegate.cli.benchmark import comparison, inflight, table
from tidegate.cli.benchmark.launch import devices_and_rows, under_torchrun
from tidegate.cli.benchmark.report import TIME_FORMAT, report
from tidegate.cli.benchmark.request import (
    COLLECTIVES,
    MEMCPY,
    NULL,
    OPS,
    TYPE_ALIASES,
    TYPE_BYTES,
    Request,
    Row,
)
from tidegate.cli.errors import UsageError
from tidegate.cli.output import Output
from tidegate.cli.progress import Progress

if TYPE_CHECKING:
    from tidegate._shim_types import Shim

SUMMARY = "time collectives beside other backends, as nccl-tests does"
DESCRIPTION = (
    "Runs collectives of CPU tensors through torch.distributed and prints what nccl-tests prints,"
    " a section for each collective, number of ranks and backend. Backends take turns within every"
    " round on the same tensors, and results are checked. Starts its ranks itself; under torchrun"
    " it uses that job. Leave the machine alone meanwhile."
)
EPILOG = (
    "Short options are those of nccl-tests, but -n: where it is not given, a round has as many"
    " calls as fill 50 ms. A time is the mean of a call, over the ranks, median over the rounds."
    f" collectives: {' '.join(COLLECTIVES)}. types: {' '.join(TYPE_BYTES)}"
    f" {' '.join(TYPE_ALIASES)} all."
)
_MOST_RANKS = 64
_LEAST_LIMIT = 4 << 10
_NOT_OF_INFLIGHT = (
    *("iters", "warmup_iters", "check", "datatype", "op", "root", "per_iter_timing", "markdown"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("collectives", nargs="+", choices=COLLECTIVES, metavar="COLLECTIVE")
    parser.add_argument("-b", "--minbytes", default="32M", metavar="SIZE", help="least (32M)")
    parser.add_argument("-e", "--maxbytes", default="32M", metavar="SIZE", help="greatest (32M)")
    parser.add_argument("-i", "--stepbytes", default="1M", metavar="SIZE", help="step (1M)")
    parser.add_argument(
        "-f", "--stepfactor", type=int, default=1, metavar="N", help="instead of -i"
    )
    parser.add_argument("--sizes", metavar="S,..", help="these sizes instead of -b to -f")
    parser.add_argument("-n", "--iters", type=int, metavar="N", help="calls in a round")
    parser.add_argument("-w", "--warmup_iters", type=int, default=1, metavar="N", help="first (1)")
    parser.add_argument(
        "-c", "--check", type=int, default=1, metavar="N", help="checks in a round; 0: none (1)"
    )
    parser.add_argument("-d", "--datatype", default="float", metavar="TYPE", help="type (float)")
    parser.add_argument("-o", "--op", default="sum", choices=(*OPS, "all"), help="reduction (sum)")
    parser.add_argument("-r", "--root", type=int, default=0, metavar="RANK", help="-1: every (0)")
    parser.add_argument("-J", "--output_file", type=Path, metavar="F", help="also a JSON file")
    parser.add_argument(
        "-I",
        "--per_iter_timing",
        type=int,
        choices=(0, 1),
        nargs="?",
        const=1,
        default=0,
        help="1: also least, greatest, p99 and deviation of single calls",
    )
    parser.add_argument("--ranks", metavar="N,..", help="ranks (one a usable processor)")
    parser.add_argument(
        "--backends", default="tidegate", metavar="B,..", help="tidegate,gloo,null (tidegate)"
    )
    parser.add_argument(
        *("--inflight",),
        type=int,
        metavar="N",
        help="instead: N async all_gathers at once under budgets of operations in flight",
    )
    parser.add_argument("--limit", metavar="S,..", help="with --inflight: and of these bytes")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds (7)")
    parser.add_argument("--plot", type=Path, metavar="F", help="also draw time over size (SVG)")
    parser.add_argument("--markdown", action="store_true", help="one table for a document instead")


def run(options: argparse.Namespace, output: Output) -> int:
    from tidegate.cli.benchmark import host  # torch is imported no earlier

    shim = clusters.load_shim()
    rank_counts = _rank_counts(options.ranks, shim.machine()["usable_cpus"])
    if options.inflight is not None or options.limit is not None:
        return _run_inflight(options, rank_counts, shim)
    with clusters.one_line():
        request = _request(options, min(rank_counts), shim.parse_bytes)
    if "tidegate" in request.backends:
        clusters.check_settings(shim)
    start, fingerprint = time.strftime(TIME_FORMAT), host.fingerprint()
    speaks = os.environ.get("RANK", "0") == "0"
    if speaks:
        for line in _opening(request, fingerprint):
            # A heading to a reader of Markdown, where it is a comment to one of nccl-tests.
            print(line.removeprefix("#").strip() if options.markdown else line)
    devices: list[dict[str, Any]] = []
    rows: list[Row] = []
    for _, section in groupby(
        _measured(request, rank_counts, devices),
        lambda cell: (cell[0].cell.collective, cell[0].cell.ranks),
    ):
        new = [row for cell in section for row in cell]
        rows += new
        if speaks and not options.markdown:
            _show(new, request)
    if not speaks:
        return 0
    if options.markdown:
        _show_markdown(rows)
    if options.output_file is not None:
        times = start, time.strftime(TIME_FORMAT)
        found = report(request, fingerprint, devices, rows, times, sys.argv)
        svg.write(options.output_file, json.dumps(found, indent=1) + "\n")
        if not options.markdown:
            print(f"# Writing JSON output to {options.output_file}")
    if options.plot is not None:
        svg.write(options.plot, comparison.plot(rows))
    wrong = any(row.failed_checks for row in rows)
    return 1 if wrong or not any(row.timings for row in rows if row.backend != MEMCPY) else 0


def _run_inflight(options: argparse.Namespace, rank_counts: Sequence[int], shim: Shim) -> int:
    from tidegate.cli.benchmark import host

    question = _question(options, rank_counts, shim)
    clusters.check_settings(shim)
    found = list(inflight.answers(question, rank_counts[0]))
    if not found:
        return 0  # Under torchrun, another rank than 0.
    fingerprint = host.fingerprint()
    print("# tidegate bench " + ", ".join(f"{name} {what}" for name, what in fingerprint.items()))
    for line in inflight.lines(found, question, rank_counts[0]):
        print(line)
    if options.output_file is not None:
        text = json.dumps({"host": fingerprint, "answers": [vars(one) for one in found]}, indent=1)
        svg.write(options.output_file, text + "\n")
    if options.plot is not None:
        svg.write(options.plot, inflight.plot(found, question, rank_counts[0]))
    return 0


def _question(
    options: argparse.Namespace, rank_counts: Sequence[int], shim: Shim
) -> inflight.Question:
    if options.inflight is None:
        raise UsageError(f"--limit {options.limit}: goes with --inflight N, all_gathers at once")
    if options.inflight < 2:
        raise UsageError(f"--inflight {options.inflight}: at least 2 all_gathers at once")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: at least 1")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name in _NOT_OF_INFLIGHT:
        if getattr(options, name) != parser.get_default(name):
            raise UsageError(f"--{name} with --inflight: it has no such choice; leave it out")
    if options.collectives != ["all_gather"] or options.backends != "tidegate":
        raise UsageError("--inflight is about the all_gather of tidegate: name no other")
    if len(rank_counts) != 1:
        raise UsageError(f"--inflight with --ranks {options.ranks}: one number of ranks")
    with clusters.one_line():
        limits = [] if options.limit is None else options.limit.split(",")
        question = inflight.Question(
            options.inflight,
            _sizes(options, shim.parse_bytes),
            [shim.parse_bytes(text) for text in limits],
            options.rounds,
        )
    for text, limit in zip(limits, question.limits, strict=True):
        if limit < _LEAST_LIMIT:
            raise UsageError(f"--limit {text}: at least 4K, as TIDEGATE_AG_MAX_BYTES")
    return question


def _measured(
    request: Request, rank_counts: Sequence[int], devices: list[dict[str, Any]]
) -> Iterator[list[Row]]:
    """The rows of each cell; `devices` gets those of the greatest number of ranks."""
    total = sum(len(list(request.cells(ranks))) for ranks in rank_counts)
    with Progress(total) as progress:
        for ranks in rank_counts:
            for found in devices_and_rows(request, ranks):
                if isinstance(found, list):
                    progress.next(f"{found[0].cell.collective} of {found[0].cell.bytes} B")
                    progress.done()
                    yield found
                elif len(found.devices) >= len(devices):
                    devices[:] = found.devices


def _show(rows: list[Row], request: Request) -> None:
    for name in request.backends:
        for line in table.section([row for row in rows if row.backend == name], request):
            print(line)
    for line in comparison.lines(rows):
        print(line)
    sys.stdout.flush()


def _show_markdown(rows: list[Row]) -> None:
    print()
    for line in comparison.markdown(rows):
        print(line)
    bad = [row for row in rows if row.failed_checks or row.error]
    for text in dict.fromkeys(
        f"{row.cell.collective}, {row.backend}: {row.error or 'WRONG RESULTS'}" for row in bad
    ):
        print(text)


def _opening(request: Request, fingerprint: dict[str, str]) -> Iterator[str]:
    yield "# tidegate bench " + ", ".join(f"{name} {what}" for name, what in fingerprint.items())
    yield (
        f"# nThread 1 nGpus 0 minBytes {min(request.sizes)} maxBytes {max(request.sizes)}"
        f" warmup iters: {request.warmups} iters: {request.calls} agg iters: 1"
        f" validation: {request.checks} graph: 0 rounds: {request.rounds}"
    )
    yield (
        "# Synchronous calls through torch.distributed, one thread a rank."
        + (" iters 0: as many as fill 50 ms." if request.calls == 0 else "")
        + (" Copies: torch's copy_, on all ranks at once." if _has_roofline(request) else "")
    )
    yield "#"


def _has_roofline(request: Request) -> bool:
    return any(COLLECTIVES[name].roofline for name in request.collectives)


def _rank_counts(text: str | None, usable: int) -> list[int]:
    job = int(os.environ["WORLD_SIZE"]) if under_torchrun() else None
    try:
        counts = [int(part) for part in text.split(",")] if text else [job or max(2, usable)]
    except ValueError:
        raise UsageError(f"--ranks {text}: numbers such as 2,4") from None
    if job is not None and counts != [job]:
        raise UsageError(f"--ranks {text}, but this job has {job} ranks; leave it out")
    if not all(2 <= count <= _MOST_RANKS for count in counts):
        raise UsageError(f"--ranks {','.join(map(str, counts))}: there must be 2 to {_MOST_RANKS}")
    return counts


def _request(options: argparse.Namespace, least_ranks: int, parse: Any) -> Request:
    for name, least in (("rounds", 1), ("warmup_iters", 0), ("check", 0), ("stepfactor", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} {getattr(options, name)}: at least {least}")
    if options.iters is not None and options.iters < 1:
        raise UsageError(f"--iters {options.iters}: at least 1")
    if not -1 <= options.root < least_ranks:
        raise UsageError(f"--root {options.root}: 0 to {least_ranks - 1}, or -1 for every rank")
    type_name = TYPE_ALIASES.get(options.datatype, options.datatype)
    if type_name not in (*TYPE_BYTES, "all"):
        raise UsageError(f"--datatype {options.datatype}: none of {', '.join(TYPE_BYTES)}, all")
    return Request(
        collectives=list(dict.fromkeys(options.collectives)),
        sizes=_sizes(options, parse),
        types=list(TYPE_BYTES) if type_name == "all" else [type_name],
        ops=list(OPS) if options.op == "all" else [options.op],
        root=options.root,
        backends=_backends(options.backends),
        calls=options.iters or 0,
        warmups=options.warmup_iters,
        checks=options.check,
        rounds=options.rounds,
        each_call=bool(options.per_iter_timing),
    )


def _sizes(options: argparse.Namespace, parse: Any) -> list[int]:
    if options.sizes is not None:
        return [parse(text) for text in options.sizes.split(",")]
    least, most, step = (
        parse(text) for text in (options.minbytes, options.maxbytes, options.stepbytes)
    )
    if not 0 < least <= most:
        raise UsageError(
            f"sizes from {options.minbytes} to {options.maxbytes}: none; -b least, -e greatest"
        )
    if step < 1:
        raise UsageError(f"--stepbytes {options.stepbytes}: at least 1")
    sizes = [least]
    while (
        new := sizes[-1] * options.stepfactor if options.stepfactor > 1 else sizes[-1] + step
    ) <= most:
        sizes.append(new)
    return sizes


def _backends(text: str) -> list[str]:
    import torch.distributed as dist

    names = list(dict.fromkeys(text.split(",")))
    missing = {
        "nccl": "it serves CUDA tensors, and what is measured are CPU tensors",
        **({} if dist.is_mpi_available() else {"mpi": "this torch was built without MPI"}),
        **({} if dist.is_ucc_available() else {"ucc": "this torch was built without UCC"}),
    }
    for name in names:
        if name in missing:
            raise UsageError(f"--backends {name}: {missing[name]}; choose from tidegate,gloo,null")
        if name != NULL and name not in dist.Backend.backend_list:
            raise UsageError(
                f"--backends {name!r}: torch knows none; choose from tidegate,gloo,null"
            )
    return names
