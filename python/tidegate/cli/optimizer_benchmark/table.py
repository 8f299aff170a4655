"""The answers as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tidegate.cli.optimizer_benchmark.request import (
    SCENARIOS,
    TIDEGATE,
    TORCH,
    Found,
    Measured,
    elements,
)
from tidegate.cli.quantities import digits, size

#: Below that, what is timed are caches.
CACHES = 8


def title(found: Found) -> str:
    request = found.request
    tensors, count = request.shapes, elements(request.shapes)
    threads = "1 thread" if request.threads == 1 else f"{request.threads} threads"
    shown = SCENARIOS[request.scenario].meaning
    return (
        f"{request.scenario}: {shown}; {len(tensors):,} x {count // len(tensors):,}"
        f" = {count:,} parameters, {request.optimizer}, {threads}"
        if request.scenario != "gpt2"
        else f"gpt2: {shown}; {count:,} parameters, {request.optimizer}, {threads}"
    )


def working_set(found: Found, cache: int) -> str:
    text = f"working set {size(found.working_set)}"
    if not cache:
        return text + ", cache not known"
    times = found.working_set / cache
    text += f", {digits(times)} x the last-level cache of {size(cache)}"
    return text if times >= CACHES else text + f": TOO SMALL, at least {CACHES} x is meant"


def columns(found: Found) -> tuple[str, ...]:
    """The head of rows(): ratios of times within rounds, over those of `beside`."""
    return ("contender", "step", "ns/param", f"/ {_beside(found)}", "least", "quartiles", "results")


def rows(found: Found) -> Iterator[list[str]]:
    beside = _beside(found)
    count = elements(found.request.shapes)
    for name, one in found.contenders.items():
        if not one.seconds:
            yield [name, "SKIP", "", "", "", "", one.skipped]
            continue
        ratios = [] if name == beside else found.ratios(name, beside)
        yield [
            *(name, f"{digits(one.median * 1e3)} ms", f"{one.median * 1e9 / count:.3f}"),
            *(spread(ratios) if ratios else ("", "", "")),
            _results(one),
        ]


def _beside(found: Found) -> str:
    return TIDEGATE if found.contenders[TIDEGATE].counts else TORCH


def spread(ratios: Sequence[float]) -> tuple[str, str, str]:
    """Median, least, quartiles; of two and more."""
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f}", f"{low:.3f}..{high:.3f}"


def _results(one: Measured) -> str:
    if one.wrong:
        return f"WRONG: {one.wrong}"
    if not one.compared_with or not one.unit:
        return "-"
    return f"{one.difference:.2g} {one.unit} from {one.compared_with}"
