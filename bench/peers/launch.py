"""Builds the two programs and launches one of them: the times of every cell."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.settings import Library, Setting

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers"
NODE = ROOT / "build" / "release" / "bench" / "collectives" / "tidegate_bench_node"

CORES = len(os.sched_getaffinity(0))
LOOPS = 3  # of a launch, whose time is their median
WARMUPS = 5
LONGEST_LAUNCH = 120.0  # seconds


class LaunchError(Exception):
    """A launch that gave no times, and why."""


@dataclass(frozen=True, order=True)
class Place:
    """What is timed: `bytes` are those asked for."""

    collective: str
    bytes: int
    in_place: bool


Times = dict[Place, float]  # microseconds of a call


@dataclass(frozen=True)
class Plan:
    """What every launch of a run does."""

    collectives: Sequence[str]
    sizes: Sequence[int]
    ranks: int


def build(library: Library) -> Path | str:
    """The program of a library, or why there is none."""
    for tool in (library.compiler, library.launcher):
        if shutil.which(tool) is None:
            return f"no {tool}: apt-get install {library.packages}"
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / f"mpi_bench.{library.compiler.rpartition('.')[2]}"
    source = Path(__file__).with_name("mpi_bench.c")
    command = [library.compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    return program if made.returncode == 0 else f"{library.compiler} fails: {made.stderr[-500:]}"


def launch_mpi(program: Path, library: Library, setting: Setting, plan: Plan) -> Times:
    lists = [",".join(map(str, plan.sizes)), ",".join(plan.collectives)]
    command = [library.launcher, *library.placement(plan.ranks, CORES), *setting.arguments]
    command += ["-n", str(plan.ranks), str(program), str(LOOPS), str(WARMUPS), *lists]
    output = _run(command, {**os.environ, **setting.environment})
    times: Times = {}
    for line in output.splitlines():
        if not line.startswith("cell "):
            continue
        _, collective, size, in_place, _, wrong, *loops = line.split()
        if int(wrong) != 0:
            raise LaunchError(f"{collective} of {size} bytes: {wrong} elements are wrong")
        place = Place(collective, int(size), in_place == "1")
        times[place] = statistics.median(map(float, loops))
    return times


def launch_tidegate(plan: Plan) -> Times:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(NODE), *plan.collectives, "--ranks", str(plan.ranks), "--alone"]
        command += ["--sizes", ",".join(map(str, plan.sizes)), "-J", file.name]
        command += ["--rounds", str(LOOPS), "--warmups", str(WARMUPS)]
        _run(command, dict(os.environ))
        cells = json.loads(Path(file.name).read_text())["cells"]
    return {
        Place(cell["collective"], cell["asked_bytes"], name == "tidegate_in_place"): (
            statistics.median(loops)
        )
        for cell in cells
        for name, loops in cell["loops_us"].items()
    }


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=LONGEST_LAUNCH,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} takes more than {LONGEST_LAUNCH:.0f} s") from None
    if ran.returncode != 0:
        raise LaunchError(f"{command[0]} exits with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return ran.stdout
