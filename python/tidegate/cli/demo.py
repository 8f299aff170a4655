"""`tidegate demo`: FSDP2 on tidegate, checked against one process, beside gloo.

The training script, examples/train_fsdp2.py in the source tree, is plain PyTorch and knows nothing
of tidegate. This wrapper starts it three times and judges it from outside:

1. two ranks on tidegate, with TIDEGATE_STATS_FILE pointing at a fresh file;
2. one process without any process group on the union of the ranks' batches;
3. two ranks on gloo for a few steps, for the step time.

Exit status 0 means that the parameters of runs 1 and 2 agree to 1e-5 and that tidegate's own
counters show that it carried every all-gather and reduce-scatter of run 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.cli.errors import CommandError, UsageError
from tidegate.cli.job import end
from tidegate.cli.output import Output

SUMMARY = "train a small GPT with FSDP2 on 2 processes and compare it with one process"
DESCRIPTION = (
    "Trains a small GPT with FSDP2 on 2 processes over tidegate, the same in one process, and a few"
    " steps over gloo. Fails if the parameters differ by more than 1e-5 or if tidegate's counters"
    " show that it did not carry the traffic. About a minute on 2 cores."
)

TRAIN = Path(__file__).with_name("train_fsdp2.py")  # python/bindings/CMakeLists.txt installs it
RANKS = 2
STEPS = 120  # the loss is well below 3 and two slow cores need less than two minutes
GLOO_STEPS = 20
BATCH = 8  # windows per rank
TOLERANCE = 1e-5
RUN_LIMIT_SECONDS = 300
STATS_VERSION = 1
OPERATIONS = ("all_gather", "reduce_scatter")


class DemoError(CommandError):
    """Something the demo promises did not hold; the text says what and what to do."""


def shown(path: Path) -> str:
    """The path as the user can paste it, short when it lies below the current directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def start(title: str, command: list[str], environment: dict[str, str]) -> None:
    """Runs one training; its output goes straight to the terminal."""
    print(f"\n== {title}", flush=True)
    # A session of its own, so that Ctrl-C reaches only the demo, which then ends it in order.
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait(timeout=RUN_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise DemoError(f"{title}: not finished after {RUN_LIMIT_SECONDS} s") from None
    finally:
        end(process)
    if status != 0:
        raise DemoError(f"{title}: exit status {status}, see the output above")


def command(output: Path, name: str, ranks: int, **options: object) -> list[str]:
    """The command line of one training; the run leaves <name>.json in `output`."""
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    options |= {"optimizer": "sgd", "report": output / f"{name}.json"}
    return [
        *launcher,
        str(TRAIN),
        *(f"--{option.replace('_', '-')}={value}" for option, value in options.items()),
    ]


def environment(**extra: str) -> dict[str, str]:
    """This environment, with OpenMP threads that sleep instead of spinning.

    A spinning OpenMP thread on a core that somebody else needs makes each matmul ten times
    slower, and a demo runs on laptops that do other things. OMP_NUM_THREADS only silences
    torchrun's warning: the script sets its thread count itself.
    """
    defaults = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    return {**defaults, **os.environ, **extra}


def load_report(output: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((output / f"{name}.json").read_text())
    return report


def greatest_difference(left: Path, right: Path) -> tuple[float, str]:
    """Greatest absolute difference of two parameter dumps and the parameter that has it."""
    import torch  # here, so that --help needs no torch

    a = torch.load(left, weights_only=True)
    b = torch.load(right, weights_only=True)
    if a.keys() != b.keys():
        raise DemoError(f"the runs have different parameters: {sorted(a.keys() ^ b.keys())}")
    worst, where = 0.0, "none"
    for name in a:
        difference = (a[name].double() - b[name].double()).abs().max().item()
        if math.isnan(difference):
            return difference, name
        if difference > worst:
            worst, where = difference, name
    return worst, where


def read_traffic(path: Path) -> dict[int, Counter[str]]:
    """Per rank: calls and bytes of each operation over all groups, and bytes per kind of link."""
    if not path.exists():
        raise DemoError(
            "no statistics file was written: tidegate carried nothing in this run "
            f"(expected {path}, from TIDEGATE_STATS_FILE)"
        )
    traffic: dict[int, Counter[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            record = json.loads(line)
            if record["version"] != STATS_VERSION:
                raise ValueError(f"version {record['version']}, expected {STATS_VERSION}")
            counts = traffic.setdefault(record["rank"], Counter())
            for group in record["groups"].values():
                for op, numbers in group["ops"].items():
                    for family in OPERATIONS:
                        if family in op:
                            counts[f"{family} calls"] += numbers["calls"]
                            counts[f"{family} bytes"] += numbers["bytes"]
                    counts["errors"] += numbers["errors"]
            for link, numbers in record["links"].items():
                counts[f"{link} bytes"] += numbers["bytes"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DemoError(f"{path}, line {number}: cannot be read: {error!r}") from error
    return traffic


def check_traffic(traffic: dict[int, Counter[str]], issued: dict[str, int]) -> Counter[str]:
    """Compares tidegate's counters with the calls the script issued; returns rank 0's counters."""
    problems = []
    for rank in range(RANKS):
        counts = traffic.get(rank)
        if counts is None:
            problems.append(f"rank {rank} wrote no statistics")
            continue
        for family in OPERATIONS:
            wanted = sum(calls for name, calls in issued.items() if name.startswith(family))
            if counts[f"{family} calls"] < max(1, wanted):
                problems.append(
                    f"rank {rank}: {counts[f'{family} calls']} {family} calls counted, "
                    f"{wanted} issued by the script"
                )
        if counts["shm bytes"] <= 0:
            problems.append(f"rank {rank}: no bytes went through shared memory")
        if counts["errors"] > 0:
            problems.append(f"rank {rank}: {counts['errors']} operations failed")
    if problems:
        raise DemoError(
            "the counters show no or not enough tidegate traffic: " + "; ".join(problems)
        )
    return traffic[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", default="tidegate", help="backend of the checked run (default: tidegate)"
    )
    parser.add_argument("--skip-gloo", action="store_true", help="leave out the run on gloo")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"steps of each checked run (default: {STEPS})"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("tidegate-demo"),
        help="folder for the loss curve, checkpoint and reports; emptied first"
        " (default: tidegate-demo)",
    )


def prepare(output: Path) -> None:
    """Empties the output directory, but only one that an earlier demo made."""
    marker = output / ".demo"
    try:
        if output.exists() and any(output.iterdir()) and not marker.exists():
            raise DemoError(
                f"{output} holds files that are not the demo's; choose another --output"
            )
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise UsageError(
            f"--output {output}: {error.strerror}; name a folder that can be made"
        ) from error


def check_backend(text: str) -> None:
    """UsageError for what torch has no backend for: "gloo", or "cpu:gloo,cuda:nccl"."""
    import torch.distributed as dist  # here, so that --help needs no torch

    known = ["tidegate", *(set(dist.Backend.backend_list) - {"tidegate", "undefined"})]
    for part in text.lower().split(","):
        if part.rpartition(":")[2] not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"--backend {text}: torch knows none called so; there are {names}")


def train_checked(args: argparse.Namespace, output: Path, stats: Path) -> None:
    start(
        f"{RANKS} ranks, FSDP2 on {args.backend}, {args.steps} steps",
        command(
            output,
            "checked",
            RANKS,
            backend=args.backend,
            steps=args.steps,
            batch=BATCH,
            checkpoint=output / "checkpoint",
            svg=output / "loss.svg",
            dump=output / "checked.pt",
        ),
        environment(TIDEGATE_STATS_FILE=str(stats)),
    )


def train_single(args: argparse.Namespace, output: Path) -> None:
    start(
        f"one process, no process group, the union of the {RANKS} ranks' batches",
        command(
            output,
            "single",
            1,
            steps=args.steps,
            batch=BATCH * RANKS,
            log_every=-(-args.steps // 3),
            dump=output / "single.pt",
        ),
        environment(),
    )


def train_gloo(output: Path) -> dict[str, Any] | None:
    """The report of a short run on gloo. A failure of gloo is shown, but is not the demo's."""
    try:
        start(
            f"{RANKS} ranks, FSDP2 on gloo, {GLOO_STEPS} steps (for the step time)",
            command(output, "gloo", RANKS, backend="gloo", steps=GLOO_STEPS, batch=BATCH),
            environment(),
        )
    except DemoError as error:
        print(f"note: {error}", flush=True)
    # Looked for even after a failure: gloo can have measured everything and crashed at exit.
    return load_report(output, "gloo") if (output / "gloo.json").exists() else None


def show_training(backend: str, checked: dict[str, Any], gloo: dict[str, Any] | None) -> None:
    losses = checked["losses"]
    last = losses[-10:]
    print(f"loss         {losses[0]:.2f} -> {sum(last) / len(last):.2f} (mean of last {len(last)})")
    print(f"speed        {checked['tokens_per_second']:,.0f} tokens/s")
    for name, report in ((backend, checked), ("gloo", gloo)):
        if report is not None:
            print(
                f"step time    {report['step_seconds'] * 1e3:.1f} ms on {name}, "
                f"{report['communication_share']:.1%} of the time in communication"
            )


def judge_parameters(output: Path) -> None:
    worst, where = greatest_difference(output / "checked.pt", output / "single.pt")
    print(f"one process  greatest parameter difference {worst:.1e} ({where}, limit {TOLERANCE})")
    if not worst <= TOLERANCE:
        raise DemoError(
            f"the parameters differ from those of one process by {worst:.3e} in {where}, "
            f"more than {TOLERANCE}"
        )


def judge_traffic(stats: Path, issued: dict[str, int]) -> None:
    counts = check_traffic(read_traffic(stats), issued)
    families = [
        f"{counts[f'{family} calls']} {family} ({counts[f'{family} bytes'] / 1e6:.0f} MB)"
        for family in OPERATIONS
    ]
    print(
        f"tidegate     rank 0 counted {', '.join(families)}; "
        f"{counts['shm bytes'] / 1e6:.0f} MB through shared memory"
    )


def failure_of(judge: Callable[..., None], *arguments: Any) -> list[str]:
    """What `judge` objects to, if anything: one failed check must not hide the next."""
    try:
        judge(*arguments)
    except DemoError as error:
        return [str(error)]
    return []


def run(options: argparse.Namespace, _: Output) -> int:
    if options.steps < 1:
        raise UsageError("--steps must be at least 1")
    begin = time.monotonic()
    check_backend(options.backend)
    output = options.output.resolve()
    stats = output / "stats.jsonl"
    prepare(output)
    train_checked(options, output, stats)
    train_single(options, output)
    gloo = None if options.skip_gloo else train_gloo(output)
    checked = load_report(output, "checked")

    print("\n== summary")
    show_training(options.backend, checked, gloo)
    failures = [
        *failure_of(judge_parameters, output),
        *failure_of(judge_traffic, stats, checked["collective_calls"]),
    ]
    print(f"files        {shown(output / 'loss.svg')}, {shown(output / 'checkpoint')}")
    print(f"total        {time.monotonic() - begin:.0f} s", flush=True)
    for failure in failures:
        print(f"tidegate demo: {failure}", file=sys.stderr)
    return 1 if failures else 0
