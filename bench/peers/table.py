"""The table of a run: medians, and ratios within each round with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.peers.launch import Place

TIDEGATE = "tidegate"
# By cell, then by library and setting: microseconds of a call, one a round.
Samples = dict[Place, dict[tuple[str, str], list[float]]]


def markdown(results: Sequence[tuple[int, Samples]], libraries: Sequence[str]) -> str:
    columns = ["collective", "ranks", "size", "in place", "tidegate us"]
    columns += [f"{library} us" for library in libraries]
    columns += [f"{library} / tidegate" for library in libraries]
    lines = [row(columns), "|---" * len(columns) + "|"]
    for ranks, found in results:
        for place, timings in found.items():
            own = timings[(TIDEGATE, "")]
            cells = [place.collective, str(ranks), size(place.bytes)]
            cells += ["yes" if place.in_place else "", time(statistics.median(own))]
            best = [best_of(timings, library) for library in libraries]
            cells += [
                "-" if one is None else f"{time(statistics.median(one[1]))} {one[0]}"
                for one in best
            ]
            cells += ["-" if one is None else ratio(own, one[1]) for one in best]
            lines.append(row(cells))
    return "\n".join(lines)


def best_of(
    timings: dict[tuple[str, str], list[float]], library: str
) -> tuple[str, list[float]] | None:
    """The setting with the least median, and its times."""
    of_library = [(name[1], times) for name, times in timings.items() if name[0] == library]
    return min(of_library, key=lambda one: statistics.median(one[1]), default=None)


def ratio(own: Sequence[float], other: Sequence[float]) -> str:
    ratios = [b / a for a, b in zip(own, other, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def time(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 100 else f"{microseconds:.0f}"


def size(count: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"
