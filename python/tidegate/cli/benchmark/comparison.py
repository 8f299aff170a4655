"""Backends beside each other: ratios within rounds, shares of a memcpy, a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tidegate.cli import svg
from tidegate.cli.benchmark.request import COLLECTIVES, MEMCPY, NULL, Cell, Row, Timing
from tidegate.cli.quantities import seconds, size


def reference(backends: Sequence[str]) -> str:
    """The backend that the others are compared with."""
    return "tidegate" if "tidegate" in backends else backends[0]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """What is compared of one collective and number of ranks; nothing where there is one row."""
    body = [line for group in by_cell(rows) for line in _lines_of(group)]
    if body:
        cell = rows[0].cell
        first = reference([row.backend for row in rows])
        yield (
            f"# {cell.collective}, {cell.ranks} ranks, beside {first} of the same round: median of"
            " the rounds (least..greatest)"
        )
        yield from body
        yield "#"


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """A table for documents: a line for each cell and place."""
    backends = list(dict.fromkeys(row.backend for row in rows if row.backend != MEMCPY))
    first = reference(backends)
    others = [name for name in backends if name not in (first, NULL)]
    ratios = [f"{name} / {first}" for name in others]
    header = ["op", "ranks", "size", *backends, MEMCPY, f"{first} GB/s", *ratios]
    yield "| " + " | ".join(header) + " |"
    yield "| --- |" + " ---: |" * (len(header) - 1)
    for group in by_cell(rows):
        found = {row.backend: row for row in group}
        for place in ("out_of_place", "in_place"):
            own = getattr(found[first], place)
            if own is None:
                continue
            timings = {name: getattr(row, place) for name, row in found.items()}
            cell = found[first].cell
            name = " ".join([cell.collective, *_unusual(cell)])
            name += " in place" if place == "in_place" and found[first].out_of_place else ""
            columns = [name, str(cell.ranks), size(cell.bytes)]
            columns += [_median(timings.get(one)) for one in (*backends, MEMCPY)]
            columns.append(f"{cell.bytes / own.median / 1e9:.2f}")
            columns += [_times(own, timings[one]) for one in others]
            yield "| " + " | ".join(columns) + " |"


def plot(rows: Sequence[Row]) -> str:
    """Time over size: a chart for each collective, ranks, type and operation."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        cell = row.cell
        if cell.bytes == 0:
            continue
        what = cell.type if cell.redop == "none" else f"{cell.type} {cell.redop}"
        what += f" root {cell.root}" if cell.root >= 0 else ""
        curves = charts.setdefault(f"{cell.collective}, {cell.ranks} ranks, {what}", {})
        both = row.out_of_place is not None
        for timing, suffix in ((row.out_of_place, ""), (row.in_place, " in place" if both else "")):
            if timing is not None:
                curve = curves.setdefault(row.backend + suffix, [])
                curve.append((cell.bytes, timing.median))
    return svg.log_charts(charts, size, seconds)


def by_cell(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[Cell, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.cell, []).append(row)
    return list(groups.values())


def _unusual(cell: Cell) -> list[str]:
    """What differs from the sum of fp32, which goes without saying, and from the root 0."""
    usual = ("float", "sum", "none", "uint8" if COLLECTIVES[cell.collective].objects else "float")
    words = [word for word in (cell.type, cell.redop) if word not in usual]
    return words + ([f"root {cell.root}"] if cell.root > 0 else [])


def _lines_of(group: list[Row]) -> Iterator[str]:
    cell = group[0].cell
    first = reference([row.backend for row in group])
    own = next(row for row in group if row.backend == first)
    for row in group:
        if row is own:
            continue
        parts = []
        if own.out_of_place and row.out_of_place:
            parts.append(f"out-of-place {_beside(own.out_of_place, row, row.out_of_place)}")
        if own.in_place and row.in_place:
            parts.append(f"in-place {_beside(own.in_place, row, row.in_place)}")
        if parts:
            named = {
                MEMCPY: f"{first} beside a memcpy of {cell.copied_bytes} B",
                NULL: f"{first} above null",
            }.get(row.backend, f"{row.backend} / {first}")
            start = f"# {cell.bytes:>12}  {cell.type:>8}  {cell.redop:>6}  {named}: "
            yield start + ", ".join(parts)


def _beside(own: Timing, row: Row, other: Timing) -> str:
    if row.backend == MEMCPY:
        shares = [b / a for a, b in zip(own.seconds, other.seconds, strict=True)]
        return (
            f"{statistics.median(shares):.0%} of its speed"
            f" ({min(shares):.0%}..{max(shares):.0%}; it takes {seconds(other.median)})"
        )
    if row.backend == NULL:
        more = [1e6 * (a - b) for a, b in zip(own.seconds, other.seconds, strict=True)]
        return f"{statistics.median(more):+.1f} us ({min(more):+.1f}..{max(more):+.1f})"
    return _times(own, other)


def _median(timing: Timing | None) -> str:
    return "-" if timing is None else seconds(timing.median)


def _times(own: Timing, other: Timing | None) -> str:
    if other is None:
        return "-"
    ratios = [b / a for a, b in zip(own.seconds, other.seconds, strict=True)]
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}..{max(ratios):.2f})"
