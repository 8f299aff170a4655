"""Lines as nccl-tests prints them: one section for a collective, a number of ranks and a backend.

Existing parsers read a section like a run of nccl-tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tidegate.cli.benchmark.request import MEMCPY, Request, Row, Timing, bus_factor

_COLUMNS = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_LINE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_PLACE = "  {:>7}  {:>6}  {:>6}  {:>6}"
_SPREAD = "  {:>7}  {:>7}  {:>7}  {:>7}"


def section(rows: Sequence[Row], request: Request) -> Iterator[str]:
    """The lines of one backend; rows of one collective and number of ranks, at least one."""
    cell = rows[0].cell
    title = f"{cell.collective}, {cell.ranks} ranks, {rows[0].backend}"
    yield f"# Collective test starting: {title}"
    yield "#"
    yield from _header(request.each_call)
    for row in rows:
        if row.error and not row.timings:
            yield f"# {row.cell.bytes} B, {row.cell.type}, {row.cell.redop}: {row.error}"
        else:
            yield _line(row, request.each_call)
    failed = sum(row.failed_checks for row in rows)
    average = average_bus_bandwidth(rows)
    yield f"# {'Out of bounds values':<20} : {failed} {'FAILED' if failed else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {average:g} "
    yield "#"
    yield f"# Collective test concluded: {title}"
    yield "#"


def bandwidths(row: Row, timing: Timing) -> tuple[float, float]:
    """algbw and busbw in 1e9 B/s."""
    algorithm = row.cell.bytes / timing.median / 1e9
    return algorithm, algorithm * bus_factor(row.cell.collective, row.cell.ranks)


def average_bus_bandwidth(rows: Sequence[Row]) -> float:
    """Over lines and places, as nccl-tests has it."""
    rates = [bandwidths(row, t)[1] for row in rows if row.backend != MEMCPY for t in row.timings]
    return sum(rates) / len(rates) if rates else 0.0


def spread(each: Sequence[float]) -> dict[str, float]:
    """Least, greatest, mean, percentiles by nearest rank, and deviation in percent of the mean."""
    ordered = sorted(each)
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in ordered) / len(ordered))

    def percentile(share: int) -> float:
        return ordered[min(len(ordered), -(-len(ordered) * share // 100)) - 1]

    return {
        **{"min": ordered[0], "max": ordered[-1], "avg": mean, "p50": ordered[len(ordered) // 2]},
        **{"p95": percentile(95), "p99": percentile(99), "stdev": deviation},
        "cv_pct": 100 * deviation / mean if mean > 0 else 0.0,
    }


def fit(value: float, width: int) -> str:
    """As many digits, at most two, as fit into the column."""
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}" if width >= 7 else f"{value:.0e}"


def _header(each_call: bool) -> Iterator[str]:
    blank = _COLUMNS.format("", "", "", "", "")
    names: tuple[str, ...] = ("time", "algbw", "busbw", "#wrong")
    units: tuple[str, ...] = ("(us)", "(GB/s)", "(GB/s)", "")
    place = _PLACE
    if each_call:
        names += ("i_min", "i_max", "i_p99", "i_cv%")
        units += ("(us)", "(us)", "(us)", "(%)")
        place += _SPREAD
        yield blank + f"{'out-of-place (+ per-iteration)':>44}{'in-place (+ per-iteration)':>58}"
    else:
        yield blank + f"{'out-of-place':>23}{'in-place':>31}"
    columns = _COLUMNS.format("size", "count", "type", "redop", "root")
    yield columns + (place * 2).format(*names, *names)
    yield _COLUMNS.format("(B)", "(elements)", "", "", "") + (place * 2).format(*units, *units)


def _line(row: Row, each_call: bool) -> str:
    cell = row.cell
    line = _LINE.format(cell.bytes, cell.count, cell.type, cell.redop, cell.root)
    for timing in (row.out_of_place, row.in_place):
        if timing is None:
            line += _PLACE.format(*["N/A"] * 4)
            line += _SPREAD.format(*["N/A"] * 4) if each_call else ""
            continue
        algorithm, bus = bandwidths(row, timing)
        wrong = "N/A" if timing.wrong is None else f"{timing.wrong:g}"
        line += _PLACE.format(fit(timing.median * 1e6, 7), fit(algorithm, 6), fit(bus, 6), wrong)
        if each_call:
            found = spread(timing.each)
            times = [fit(found[name] * 1e6, 7) for name in ("min", "max", "p99")]
            line += _SPREAD.format(*times, fit(found["cv_pct"], 7))
    return line
