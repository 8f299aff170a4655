"""Which aims hold in measured samples: a table for a document.

python -m bench.targets FILE ..., files being what `tidegate_bench_node -J` (also with --load or
--idle), `python -m bench.peers -J`, `python -m bench.fsdp_step --json` and `tidegate bench -J`
wrote.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.table import row, size
from bench.targets import goals
from bench.training import table as training

TIDEGATE = "tidegate"
IN_PLACE = "tidegate_in_place"


@dataclass(frozen=True)
class Verdict:
    """One aim: `measured` and `aim` are texts."""

    collective: str
    ranks: int
    bytes: int
    what: str
    aim: str
    measured: str
    holds: bool


def main(paths: Sequence[str]) -> int:
    verdicts = [verdict for path in paths for verdict in judge(json.loads(Path(path).read_text()))]
    print(table(verdicts))
    return 0


def table(verdicts: Sequence[Verdict]) -> str:
    columns = ["collective", "ranks", "size", "what", "aim", "measured", "holds"]
    lines = [row(columns), "|---" * len(columns) + "|"]
    for one in verdicts:
        where = [one.collective, str(one.ranks), size(one.bytes) if one.bytes else "-", one.what]
        lines.append(row([*where, one.aim, one.measured, "yes" if one.holds else "**no**"]))
    held = sum(one.holds for one in verdicts)
    return "\n".join(["", f"{held} of {len(verdicts)} aims hold.", "", *lines])


def judge(samples: Any) -> Iterator[Verdict]:
    """Of one file, whichever of the benches wrote it."""
    if isinstance(samples, list):
        yield from judge_peers(samples)
    elif "training" in samples:
        for cell in samples["training"]:
            yield from judge_training(cell)
    elif "results" in samples:
        yield from judge_gloo(samples["results"])
    else:
        for cell in samples["cells"]:
            if "core_percent" in cell:
                yield from judge_idle(cell)
            elif samples["options"]["load"]:
                yield from judge_load(cell)
            else:
                yield from judge_memory(cell)


def judge_memory(cell: dict[str, Any]) -> Iterator[Verdict]:
    where = (cell["collective"], cell["ranks"], cell["asked_bytes"])
    loops = cell["loops_us"]
    for share in goals.shares_of(*where):
        variant = TIDEGATE if share.tensors == "ordinary" else share.tensors
        if variant not in loops:
            continue
        found = ratios(loops[share.bound], loops[variant])
        what = f"share of {share.bound}, {share.tensors} tensors"
        yield at_least(where, what, share.least, found)
    if IN_PLACE in loops and cell["asked_bytes"] in goals.IN_PLACE_BYTES:
        found = ratios(loops[TIDEGATE], loops[IN_PLACE])
        yield at_least(where, "out of place / in place", 1.0, found)
    if where[0] == "all_gather" and where[2] == goals.LATENCY_BYTES:
        each = cell["each_us"]
        found = ratios(each[TIDEGATE]["p50"], each["flags"]["p50"])
        yield at_most(where, "p50 / bare barrier", goals.MOST_BARRIERS, found, "{:.2f}")


def judge_load(cell: dict[str, Any]) -> Iterator[Verdict]:
    where = (cell["collective"], cell["ranks"], cell["asked_bytes"])
    most = goals.MOST_UNDER_LOAD_US.get(cell["ranks"])
    if most is None or where[0] != "all_gather" or where[2] != goals.LATENCY_BYTES:
        return
    what = "us, a busy loop on every core"
    yield at_most(where, what, most, cell["loops_us"][TIDEGATE], "{:.1f}")


def judge_idle(cell: dict[str, Any]) -> Iterator[Verdict]:
    most = goals.MOST_IDLE_PERCENT.get(cell["ranks"])
    if most is not None:
        what = "% of a core while idle"
        yield at_most(("-", cell["ranks"], 0), what, most, cell["core_percent"], "{:.3f}")


def judge_peers(samples: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    cells: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(dict)
    for one in samples:
        place = (one["collective"], one["ranks"], one["bytes"], one["in_place"])
        library, times = one["library"], one["us"]
        known = cells[place].get(library)
        if known is None or statistics.median(times) < statistics.median(known):
            cells[place][library] = times
    for (collective, ranks, count, in_place), timings in cells.items():
        others = [timings[library] for library in timings if library != TIDEGATE]
        if not others:
            continue
        better = min(others, key=statistics.median)
        name = next(library for library in timings if timings[library] is better)
        what = f"{name} / tidegate{', in place' if in_place else ''}"
        where = (collective, ranks, count)
        least = goals.over_peers(collective, count)
        yield at_least(where, what, least, ratios(better, timings[TIDEGATE]))


def judge_gloo(results: Sequence[dict[str, Any]]) -> Iterator[Verdict]:
    cells: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(dict)
    for result in results:
        place = (result["collective"], result["ranks"], result["size"], result["type"])
        timing = result["out_of_place"] or result["in_place"]
        cells[place][result["backend"]] = timing["rounds_us"]
    for (collective, ranks, count, kind), timings in cells.items():
        if "gloo" not in timings or TIDEGATE not in timings:
            continue
        least = goals.over_gloo(collective, ranks, count)
        found = ratios(timings["gloo"], timings[TIDEGATE])
        where = (collective, ranks, count)
        yield at_least(where, f"gloo / tidegate, {kind}", least, found)
        most = goals.above_null(*where)
        if most is not None and "null" in timings:
            more = [a - b for a, b in zip(timings[TIDEGATE], timings["null"], strict=True)]
            yield at_most(where, f"us above null, {kind}", most, more, "{:.1f}")


def judge_training(cell: dict[str, Any]) -> Iterator[Verdict]:
    where = (f"{cell['sharding']} of {cell['model']}", cell["ranks"], 0)
    what = "share of what null saves over gloo"
    yield at_least(where, what, goals.LEAST_OF_NULL_GAIN, training.gain(cell))
    if found := training.ratio(cell, TIDEGATE, training.GROUP_MEMORY):
        yield at_least(where, "tidegate / with buffers in the group's memory", 1.0, found)


Where = tuple[str, int, int]


def at_least(where: Where, what: str, least: float, found: Sequence[float]) -> Verdict:
    median = statistics.median(found)
    return Verdict(
        *where, what, f">= {least:.2f}", training.spread(found, "{:.2f}"), median >= least
    )


def at_most(where: Where, what: str, most: float, found: Sequence[float], form: str) -> Verdict:
    median = statistics.median(found)
    return Verdict(
        *where, what, f"<= {form.format(most)}", training.spread(found, form), median <= most
    )


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
