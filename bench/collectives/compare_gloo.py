"""All-gather and reduce-scatter through torch.distributed: tidegate next to gloo, one run.

Both backends serve two groups of the same processes and take turns within every round on the
same tensors, so that whatever else the machine does hits both. See bench/README.md for how to read
the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

OPS = ("all_gather", "reduce_scatter")
SIZES = "64K,1M,16M,128M"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# A block is the calls of one backend in one round. Long enough for the clock and the scheduler,
# short enough that 9 rounds of everything take well under four minutes with gloo at 128 MB.
BLOCK_SECONDS = 0.06
MAX_CALLS = 2000
GROUP_TIMEOUT = timedelta(seconds=120)


class BenchError(Exception):
    """The benchmark cannot give a number that means something; the text says why."""


def parse_size(text: str) -> int:
    number, unit = text.strip().upper().removesuffix("B"), ""
    if number and number[-1] in "KMG":
        number, unit = number[:-1], number[-1]
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64K, 16M or 1048576")
    return int(number) * UNITS[unit]


def show_size(size: int) -> str:
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}B"
    return f"{size} B"


def pattern(numel: int, seed: int) -> torch.Tensor:
    """Small integers as fp32 that differ between seeds; their sums are exact in any order."""
    return (torch.arange(numel, dtype=torch.int32) * 7 + seed * 131).remainder_(1021).float()


class Case:
    """One (op, size) on this rank: the tensors, the call, and the answer it must give.

    The size is that of the larger side: the output of all-gather, the input of reduce-scatter,
    both fp32 and contiguous, neither known to the backends before the call.
    """

    def __init__(self, op: str, size: int, rank: int, world: int) -> None:
        if size % (4 * world):
            raise BenchError(f"{size} bytes are no equal fp32 shares for {world} ranks")
        numel = size // 4
        share = numel // world
        if op == "all_gather":
            # The old names are all that torch before 2.13 has.
            self.function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            self.input = pattern(share, rank)
            self.output = torch.zeros(numel)
            self.expected = torch.cat([pattern(share, peer) for peer in range(world)])
        else:
            self.function = (
                getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            )
            self.input = pattern(numel, rank)
            self.output = torch.zeros(share)
            mine = slice(rank * share, (rank + 1) * share)
            self.expected = sum(
                (pattern(numel, peer)[mine] for peer in range(world)), start=torch.zeros(share)
            )

    def run(self, group: Any, calls: int) -> float:
        """Mean seconds of one call, `calls` calls in a row."""
        start = time.perf_counter()
        for _ in range(calls):
            self.function(self.output, self.input, group=group)
        return (time.perf_counter() - start) / calls

    def wrong(self) -> int:
        """Elements of the last result that are not exactly right; clears it for the next."""
        same = torch.equal(self.output, self.expected)
        count = 0 if same else int((self.output != self.expected).sum())
        self.output.fill_(float("nan"))
        return count


def slowest(seconds: float, group: Any) -> float:
    """The greatest value over the ranks."""
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value.item())


def measure(
    case: Case, groups: list[Any], rounds: int
) -> tuple[list[int], list[list[float]], list[int]]:
    """Per group: calls in a block, seconds a call in each round, wrong elements seen."""
    calls, wrong = [], [0] * len(groups)
    for index, group in enumerate(groups):
        case.run(group, 1)  # connections, first touch of buffers
        wrong[index] += case.wrong()
        dist.barrier(group=group)
        estimate = slowest(case.run(group, 1), group)
        if estimate < BLOCK_SECONDS / 10:  # one short call says little
            estimate = slowest(case.run(group, 10), group)
        calls.append(max(1, min(MAX_CALLS, round(BLOCK_SECONDS / estimate))))
    seconds: list[list[float]] = [[] for _ in groups]
    for number in range(rounds):
        order = list(range(len(groups)))
        if number % 2:
            order.reverse()  # neither always runs on the caches that the other left
        for index in order:
            dist.barrier(group=groups[index])
            mean = case.run(groups[index], calls[index])
            seconds[index].append(slowest(mean, groups[index]))
            wrong[index] += case.wrong()
    return calls, seconds, wrong


def worker(rank: int, world: int, options: argparse.Namespace, directory: str) -> None:
    """One rank: measures every case; rank 0 leaves the results in the directory."""
    torch.set_num_threads(1)
    dist.init_process_group(
        options.backends[0],
        init_method=f"file://{directory}/store-{world}",
        rank=rank,
        world_size=world,
        timeout=GROUP_TIMEOUT,
    )
    groups = [dist.group.WORLD]
    groups += [dist.new_group(backend=name, timeout=GROUP_TIMEOUT) for name in options.backends[1:]]
    served = [str(dist.get_backend(group)) for group in groups]
    if served != options.backends:
        raise BenchError(f"asked for {options.backends}, the groups run on {served}")
    results = []
    for op in options.ops:
        for size in options.sizes:
            case = Case(op, size, rank, world)
            calls, seconds, wrong = measure(case, groups, options.rounds)
            total_wrong = torch.tensor(wrong)
            dist.all_reduce(total_wrong)
            results.append(
                {
                    "op": op,
                    "ranks": world,
                    "bytes": size,
                    "calls": calls,
                    "seconds": seconds,
                    "wrong": total_wrong.tolist(),
                }
            )
            if rank == 0:
                print(f"  {op} {show_size(size)}, {world} ranks: done", file=sys.stderr, flush=True)
    if rank == 0:
        Path(directory, f"results-{world}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def hardware() -> str:
    """The machine, its load, and the versions, in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"load average {os.getloadavg()[0]:.1f} at the start, commit {revision()}"
    )


def revision() -> str:
    """The commit that is checked out, with a + when the tree differs from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True)
        changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # an unpacked archive
    return commit.strip() + ("+" if changed.strip() else "")


def show_time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(results: list[dict[str, Any]], backends: list[str], head: str, rounds: int) -> str:
    first, second = backends
    lines = [
        head,
        "",
        f"fp32, sync calls, ordinary tensors, {rounds} interleaved rounds; median, in brackets the "
        "least and the greatest round.",
        "",
        f"| op | ranks | size | {first} | {second} | {first} GB/s | {second} / {first} |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        left, right = result["seconds"]
        ratios = [b / a for a, b in zip(left, right, strict=True)]
        middle = statistics.median(left)
        lines.append(
            f"| {result['op']} | {result['ranks']} | {show_size(result['bytes'])} "
            f"| {show_time(middle)} | {show_time(statistics.median(right))} "
            f"| {result['bytes'] / middle / 1e9:.2f} "
            f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f}..{max(ratios):.2f}) |"
        )
    return "\n".join(lines) + "\n"


def list_of(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [parse(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--sizes", type=list_of(parse_size), default=SIZES, help="K, M, G: 1024s")
    parser.add_argument("--ranks", type=list_of(int), default="2,4")
    parser.add_argument("--ops", type=list_of(str), default=",".join(OPS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backends", type=list_of(str), default="tidegate,gloo", help="two names")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    options = parser.parse_args()
    if len(options.backends) != 2:
        parser.error("--backends takes two names; the ratio is second / first")
    if unknown := set(options.ops) - set(OPS):
        parser.error(f"unknown --ops {sorted(unknown)}; known are {', '.join(OPS)}")
    if options.rounds < 1 or min(options.ranks) < 1:
        parser.error("--rounds and --ranks must be at least 1")
    return options


def main() -> int:
    options = parse_arguments()
    head = hardware()
    begin = time.monotonic()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for world in options.ranks:
            mp.spawn(worker, args=(world, options, directory), nprocs=world)
            results += json.loads(Path(directory, f"results-{world}.json").read_text())
    text = table(results, options.backends, head, options.rounds)
    print(text)
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    if options.output is not None:
        options.output.write_text(text)
    if options.json is not None:
        record = {
            "version": 1,
            "hardware": head,
            "backends": options.backends,
            "rounds": options.rounds,
            "results": results,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [result for result in results if any(result["wrong"])]
    for result in wrong:
        print(
            f"WRONG RESULTS: {result['op']} of {show_size(result['bytes'])} on {result['ranks']} "
            f"ranks, wrong elements: {list(zip(options.backends, result['wrong'], strict=True))}",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
