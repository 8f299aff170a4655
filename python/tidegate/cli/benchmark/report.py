"""The file of -J: nccl-tests' layout, with backend, ranks and rounds added to its results."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from tidegate.cli.benchmark.request import MEMCPY, Request, Row, Timing
from tidegate.cli.benchmark.table import average_bus_bandwidth, bandwidths, spread

_VERSION = 2  # of nccl-tests' layout
# Whoever reads the file needs no more of the environment, and secrets stay out of it.
_VARIABLES = ("TIDEGATE_", "GLOO_", "TORCH_", "OMP_", "KMP_", "MKL_", "NUMA")
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def report(
    request: Request,
    host: dict[str, str],
    devices: Sequence[dict[str, Any]],
    rows: Sequence[Row],
    times: tuple[str, str],
    arguments: Sequence[str],
) -> dict[str, Any]:
    """`times` are start and end in TIME_FORMAT."""
    failed = sum(row.failed_checks for row in rows)
    env = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES)]
    return {
        "version": _VERSION,
        "start_time": times[0],
        "args": list(arguments),
        "env": sorted(env),
        "host": host,
        "config": _config(request) | {"devices": [_device(one, host) for one in devices]},
        "results": [_result(row) for row in rows if row.timings],
        "out_of_bounds": {"count": failed, "okay": _text(failed == 0)},
        "average_bus_bandwidth": {"bandwidth": average_bus_bandwidth(rows), "okay": "unchecked"},
        "errors": [
            f"{row.cell.collective}, {row.backend}: {row.error}" for row in rows if row.error
        ],
        "end_time": times[1],
    }


def _text(value: bool) -> str:
    """nccl-tests writes booleans as strings."""
    return "true" if value else "false"


def _config(request: Request) -> dict[str, Any]:
    return {
        **{"nthreads": 1, "ngpus": 0},
        **{"minimum_bytes": min(request.sizes), "maximum_bytes": max(request.sizes)},
        "sizes": request.sizes,
        "warmup_iters": request.warmups,
        **{"iterations": request.calls, "aggregated_iterations": 1},
        "validation": request.checks,
        **{"graph": 0, "blocking_collectives": _text(True)},
        "per_iter_timing": _text(request.each_call),
        **{"per_iter_skip": 0, "parallel_init": _text(False)},
        **{"rounds": request.rounds, "backends": request.backends},
    }


def _device(known: dict[str, Any], host: dict[str, str]) -> dict[str, Any]:
    cpu = {"device": -1, "device_hex": "", "device_info": host["cpu"] or platform.machine()}
    return {"rank": known["rank"], "group": 0, **known, **cpu}


def _result(row: Row) -> dict[str, Any]:
    cell = row.cell
    found: dict[str, Any] = {
        **{"size": cell.bytes, "count": cell.count, "type": cell.type, "redop": cell.redop},
        "root": str(cell.root),
    }
    for place, timing in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        found[place] = None if timing is None else _figures(row, timing)
        if timing is not None and timing.each:
            found[f"{place}_per_iter"] = _per_call(timing)
    return found | {
        "actual_iterations": max(timing.calls for timing in row.timings),
        "experiment_name": f"{cell.collective} {row.backend} {cell.ranks}",
        **{"collective": cell.collective, "backend": row.backend, "ranks": cell.ranks},
        "roofline": _text(row.backend == MEMCPY),
    }


def _figures(row: Row, timing: Timing) -> dict[str, Any]:
    algorithm, bus = bandwidths(row, timing)
    return {
        **{"time": timing.median * 1e6, "alg_bw": algorithm, "bus_bw": bus},
        "nwrong": timing.wrong,
        "rounds_us": [1e6 * one for one in timing.seconds],
    }


def _per_call(timing: Timing) -> dict[str, Any]:
    found = spread(timing.each)
    deviation = found.pop("cv_pct")
    return {
        "skipped_iterations": 0,
        **{f"{name}_us": 1e6 * value for name, value in found.items()},
        "cv_pct": deviation,
        "times_us": [1e6 * one for one in timing.each],
    }
