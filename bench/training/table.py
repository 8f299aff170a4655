"""The tables of a run: medians, and ratios within each round with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.peers.table import row

GLOO, TIDEGATE, NULL, GROUP_MEMORY = "gloo", "tidegate", "null", "group memory"
NAMES = (GLOO, TIDEGATE, NULL, GROUP_MEMORY)
# Relative. The backends add in orders of their own, and what is rounded otherwise in one step is
# the start of the next.
TOLERANCE = 1e-3

Cell = dict[str, Any]
Lines = list[list[str]]


def times(cells: Sequence[Cell]) -> Lines:
    """A step on each backend, and what of the null backend's gain is reached."""
    lines = [
        [
            *("model", "sharding", "ranks", *(f"{name} ms" for name in NAMES)),
            *("gloo / tidegate", "gloo / null", "of null's gain %"),
            *("tidegate / group memory", "losses differ by"),
        ]
    ]
    for cell in cells:
        variants = cell["variants"]
        found = [
            milliseconds(variants[name]["seconds"]) if name in variants else "-" for name in NAMES
        ]
        ratios = [
            spread(ratio(cell, GLOO, TIDEGATE), "{:.2f}"),
            spread(ratio(cell, GLOO, NULL), "{:.2f}"),
            spread([100 * share for share in gain(cell)], "{:.0f}"),
            spread(ratio(cell, TIDEGATE, GROUP_MEMORY), "{:.2f}"),
        ]
        lines.append([*_place(cell), *found, *ratios, f"{difference(cell):.0e}"])
    return lines


def parts(cells: Sequence[Cell]) -> Lines:
    """What a step is made of: collectives, the wait there for ranks that come later, the rest."""
    columns = ("backend", "step ms", "moving ms", "waiting ms", "rest ms", "new MiB")
    lines = [["model", "sharding", "ranks", *columns]]
    for cell in cells:
        for name, variant in cell["variants"].items():
            figures = zip(
                variant["seconds"], variant["in_collectives"], variant["moving"], strict=True
            )
            rounds = [
                (step, moving, inside - moving, step - inside) for step, inside, moving in figures
            ]
            medians = [milliseconds(column) for column in zip(*rounds, strict=True)]
            new = statistics.median(variant["faults"]) * cell["page_bytes"] / (1 << 20)
            lines.append([*_place(cell), name, *medians, f"{new:.1f}"])
    return lines


def ratio(cell: Cell, above: str, below: str) -> list[float]:
    """Of the step times, by round; nothing where there is none of the two."""
    return [a / b for a, b in _pairs(cell, above, below)]


def gain(cell: Cell, name: str = TIDEGATE) -> list[float]:
    """The time that `name` saves over gloo in the time that null does, by round."""
    own = [gloo - seconds for gloo, seconds in _pairs(cell, GLOO, name)]
    most = [gloo - seconds for gloo, seconds in _pairs(cell, GLOO, NULL)]
    return [a / b for a, b in zip(own, most, strict=False)]


def difference(cell: Cell) -> float:
    """The greatest relative difference of a loss from gloo's; infinite where one is not a number.

    Null's are not looked at: what it gathers and reduces is whatever lay in the memory.
    """
    expected = cell["variants"][GLOO]["losses"]
    worst = 0.0
    for name in (TIDEGATE, GROUP_MEMORY):
        for found, wanted in zip(_losses(cell, name), expected, strict=False):
            apart = abs(found - wanted) / abs(wanted)
            worst = max(worst, apart if apart < float("inf") else float("inf"))
    return worst


def wrong(cells: Sequence[Cell]) -> Iterator[str]:
    """What makes the figures worthless."""
    for cell in cells:
        where = " ".join(_place(cell)) + " ranks"
        if not difference(cell) <= TOLERANCE:
            yield f"{where}: losses differ from gloo's by {difference(cell):.1e}"
        losses = cell["variants"][GLOO]["losses"]
        if not losses[-1] < losses[0]:
            yield f"{where}: the loss goes from {losses[0]:.3g} to {losses[-1]:.3g}"
        if GROUP_MEMORY in cell["variants"] and cell["resident_bytes"] == 0:
            yield f"{where}: nothing lay in the group's memory"


def markdown(lines: Lines) -> str:
    head, *body = lines
    return "\n".join([row(head), "|---" * len(head) + "|", *map(row, body)])


def aligned(lines: Lines) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def milliseconds(found: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(found):.1f}"


def spread(found: Sequence[float], form: str) -> str:
    if not found:
        return "-"
    low, high = form.format(min(found)), form.format(max(found))
    return f"{form.format(statistics.median(found))} ({low}..{high})"


def _place(cell: Cell) -> list[str]:
    return [cell["model"], cell["sharding"], str(cell["ranks"])]


def _losses(cell: Cell, name: str) -> list[float]:
    found: list[float] = cell["variants"].get(name, {}).get("losses", [])
    return found


def _pairs(cell: Cell, above: str, below: str) -> Iterator[tuple[float, float]]:
    variants = cell["variants"]
    if above in variants and below in variants:
        yield from zip(variants[above]["seconds"], variants[below]["seconds"], strict=True)
