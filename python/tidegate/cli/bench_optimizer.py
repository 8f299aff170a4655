"""`tidegate bench optimizer`: steps of the offload engine beside torch's and DeepSpeed's."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidegate.cli.errors import CommandError, UsageError
from tidegate.cli.footprint import ELEMENT_BYTES, MASTERS, STATES, layout_of
from tidegate.cli.optimizer_benchmark import aims, table
from tidegate.cli.optimizer_benchmark.launch import answer, last_level_cache, processors
from tidegate.cli.optimizer_benchmark.request import (
    OPTIMIZERS,
    RIVALS,
    SCENARIOS,
    Found,
    Request,
    elements,
    shapes,
)
from tidegate.cli.output import Output
from tidegate.cli.progress import Progress
from tidegate.cli.quantities import size

NAME = "bench optimizer"
SUMMARY = "time optimizer steps beside torch's and DeepSpeed's"
DESCRIPTION = (
    "Whole steps of tidegate.offload's optimizers and of others, on parameters of their own in one"
    " process a scenario and number of threads: in every round each has its turn, in a new order,"
    " and only ratios within rounds are judged. Results are compared before a time counts. Leave"
    " the machine alone meanwhile."
)
EPILOG = "scenarios: " + "; ".join(f"{name}: {one.meaning}" for name, one in SCENARIOS.items())
_LEAST_SIZE, _MOST_SIZE = 1 << 16, 1 << 36
_LEAST_ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--scenario", default="one", metavar="S,..", help=f"{','.join(SCENARIOS)} or all (one)"
    )
    parser.add_argument(
        "--size", default="64M", metavar="N", help="parameters: 64M, in powers of 1024 (64M)"
    )
    parser.add_argument(
        "--dtype",
        metavar="T",
        help="of parameters and gradients: fp32, bf16, fp16 (fp32; mixed bf16)",
    )
    parser.add_argument(
        "--vs", default="torch", metavar="R,..", help=f"rivals: {','.join(RIVALS)} (torch)"
    )
    parser.add_argument(
        "--optimizer", default="adamw", metavar="NAME", help=", ".join(OPTIMIZERS) + " (adamw)"
    )
    parser.add_argument("--master", default="auto", metavar="M", help="tidegate's: auto, none, ..")
    parser.add_argument(
        "--states", default="fp32", metavar="S", help="tidegate's: fp32, bf16, 8bit"
    )
    parser.add_argument(
        "--threads", metavar="N,..", help="1, and as many as there are usable processors"
    )
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="rounds (11)")
    parser.add_argument(
        "--ceiling", type=Path, metavar="F", help="library of bench/offload/ceiling.cc, in turn too"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, with every round")


def run(options: argparse.Namespace, output: Output) -> int:
    requests = list(_requests(options))
    cache = last_level_cache()
    if not options.json:
        from tidegate.cli.benchmark import host  # torch is imported no earlier

        fingerprint = host.fingerprint()
        print(NAME + ", ".join(f" {name} {what}" for name, what in fingerprint.items()))
    answers = []
    with Progress(len(requests)) as progress:
        for request in requests:
            progress.next(f"{request.scenario}, {request.threads} threads")
            answers.append(answer(request))
            if not options.json:
                _show(answers[-1], cache, output)
    verdicts = list(aims.judge(answers))
    if options.json:
        print(json.dumps(_as_json(answers, verdicts, cache), indent=1))
    elif verdicts:
        print("\nAims (medians of ratios of times):")
        output.table(aims.COLUMNS, aims.rows(verdicts))
    contenders = [one for found in answers for one in found.contenders.values()]
    return 1 if any(one.wrong for one in contenders) else 0


def _requests(options: argparse.Namespace) -> Iterator[Request]:
    every = tuple(SCENARIOS)
    scenarios = every if options.scenario == "all" else _names("scenario", options, every)
    rivals = _names("vs", options, RIVALS)
    for name, legal in (
        *(("dtype", tuple(ELEMENT_BYTES)), ("optimizer", OPTIMIZERS)),
        *(("master", MASTERS), ("states", STATES)),
    ):
        if getattr(options, name) not in (None, *legal):
            raise UsageError(f"--{name} {getattr(options, name)}: none of {', '.join(legal)}")
    if options.ceiling is not None and not options.ceiling.is_file():
        raise UsageError(f"--ceiling {options.ceiling}: no such file; make bench-offload builds it")
    if options.rounds < _LEAST_ROUNDS:
        raise UsageError(f"--rounds {options.rounds}: at least {_LEAST_ROUNDS}, 11 to quote them")
    count = _count(options.size)
    usable = processors(os.sched_getaffinity(0))
    for scenario in scenarios:
        dtype = _dtype(scenario, options.dtype)
        layout_of(options.optimizer, dtype, options.master, options.states)
        _check_room(scenario, count, len(rivals))
        for threads in _threads(options.threads, len(usable)):
            yield Request(
                *(scenario, threads, count, dtype, options.optimizer),
                *(options.master, options.states, list(rivals), options.rounds),
                usable[:threads],
                str(options.ceiling.resolve()) if options.ceiling else "",
            )


def _dtype(scenario: str, asked: str | None) -> str:
    if not SCENARIOS[scenario].mixed:
        return asked or "fp32"
    if asked == "fp32":
        raise UsageError(f"--dtype fp32 with --scenario {scenario}: that has 16 bits; bf16, fp16")
    return asked or "bf16"


def _names(option: str, options: argparse.Namespace, legal: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(getattr(options, option).split(",")))
    for name in names:
        if name not in legal:
            raise UsageError(f"--{option} {name}: none of {', '.join(legal)}")
    return names


def _count(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"--size {text}: parameters such as 64M, 512K or 1000000")
    count = int(number) * units.get(unit, 1)
    if not _LEAST_SIZE <= count <= _MOST_SIZE:
        raise UsageError(f"--size {text}: 64K to 64G parameters")
    return count


def _threads(text: str | None, usable: int) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")] if text else sorted({1, usable})
    except ValueError:
        raise UsageError(f"--threads {text}: numbers such as 1,2") from None
    for count in counts:
        if not 1 <= count <= usable:
            raise UsageError(f"--threads {count}: 1 to {usable}, the usable processors")
    return list(dict.fromkeys(counts))


def _check_room(scenario: str, count: int, rivals: int) -> None:
    """A contender has 16 bytes a parameter and the rival with conversions 20; some have twins."""
    from tidegate.cli.estimate import available_memory

    available = available_memory()
    needed = elements(shapes(scenario, count)) * 20 * (rivals + 5)
    if available is not None and needed > available:
        hint = "it has no size" if scenario == "gpt2" else "take a smaller --size"
        raise CommandError(
            f"{scenario} needs {size(needed)} of memory, {size(available)} is available: {hint}"
        )


def _show(found: Found, cache: int, output: Output) -> None:
    print(f"\n{table.title(found)}")
    print(f"{table.working_set(found, cache)}; {found.calls} steps a turn")
    print("; ".join(f"{name} {text}" for name, text in found.environment.items()))
    output.table(table.columns(found), table.rows(found))


def _as_json(answers: list[Found], verdicts: list[aims.Verdict], cache: int) -> dict[str, Any]:
    from tidegate.cli.benchmark import host

    return {
        "version": 1,
        "host": host.fingerprint(),
        "cache_bytes": cache,
        "answers": [asdict(found) for found in answers],
        "aims": [
            {
                **asdict(one.aim),
                "threads": one.threads,
                "median": one.median if one.ratios else None,
                "holds": one.holds,
                "share_of_ceiling": one.share,
                "skipped": one.skipped or None,
            }
            for one in verdicts
        ],
    }
