"""`tidegate bench --inflight`: what budgets of all-gathers in flight cost, and what they hold."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tidegate.cli import svg
from tidegate.cli.benchmark.launch import lines_of_rank_0, under_torchrun
from tidegate.cli.quantities import size

WAITS = ("queue", "block")


@dataclass(frozen=True)
class Question:
    """`calls` async all-gathers at once of each of `sizes` (bytes of output), under each budget."""

    calls: int
    sizes: list[int]
    limits: list[int]  # budgets in bytes, beside those of 1, 2, 3, .. operations
    rounds: int

    def budgets(self) -> list[dict[str, int]]:
        """Arguments of tidegate.set_limits; the last one has no limit."""
        ops = [count for count in (1, 2, 3, 4, 8) if count < self.calls]
        return [
            *({"max_ops": count} for count in ops),
            *({"max_bytes": limit} for limit in self.limits),
            {},
        ]


@dataclass(frozen=True)
class Answer:
    """Of one size and budget: seconds of a batch of all calls, and for issuing it, by round."""

    bytes: int
    budget: dict[str, int]
    wait: str
    seconds: list[float]
    issuing: list[float]
    high_water_ops: int
    high_water_bytes: int
    promotions: int


def answers(question: Question, ranks: int) -> Iterator[Answer]:
    """On rank 0, and wherever no torchrun has started this; elsewhere none."""
    if under_torchrun():
        from tidegate.cli.benchmark.inflight_ranks import measure

        yield from (found for found in measure(question) if os.environ["RANK"] == "0")
        return
    request = json.dumps(asdict(question))
    for line in lines_of_rank_0("tidegate.cli.benchmark.inflight_ranks", request, ranks):
        if line.startswith("{"):
            yield Answer(**json.loads(line))


def lines(found: Sequence[Answer], question: Question, ranks: int) -> Iterator[str]:
    """A table for each size."""
    for total in question.sizes:
        cells = [answer for answer in found if answer.bytes == total]
        free = _unlimited(cells)
        yield (
            f"# {question.calls} all-gathers of {size(total)} in flight, {ranks} ranks: output of"
            " all over the time until the last is done"
        )
        yield (
            f"# {'budget':>12} {'who waits':>10} {'GB/s':>7} {'of unlimited':>20}"
            f" {'issuing':>8} {'most in flight':>20} {'promoted':>9}"
        )
        for cell in cells:
            ratios = [free[i] / cell.seconds[i] for i in range(len(free))]
            share = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            issuing = statistics.median(
                part / whole for part, whole in zip(cell.issuing, cell.seconds, strict=True)
            )
            most = f"{cell.high_water_ops} ops {size(cell.high_water_bytes)}"
            yield (
                f"  {_budget_text(cell.budget):>12} {cell.wait if cell.budget else '-':>10}"
                f" {_throughput(cell, question):7.2f} {share:>20} {100 * issuing:7.0f}%"
                f" {most if cell.budget else '-':>20} {cell.promotions:9}"
            )
        yield "#"


def plot(found: Sequence[Answer], question: Question, ranks: int) -> str:
    """Throughput over the budget in bytes: a chart for each size, a curve for each way to wait."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in found:
        budget = cell.budget.get("max_bytes", cell.bytes * cell.budget.get("max_ops", 0))
        title = f"{question.calls} all-gathers of {size(cell.bytes)} in flight, {ranks} ranks"
        curves = charts.setdefault(title, {})
        # Without a limit all are in flight, and it makes no difference who would wait.
        for wait in [cell.wait] if cell.budget else WAITS:
            point = (budget or cell.bytes * question.calls, _throughput(cell, question))
            curves.setdefault(wait, []).append(point)
    return svg.log_charts(charts, size, lambda rate: f"{rate:.3g} GB/s")


def _unlimited(cells: Sequence[Answer]) -> list[float]:
    return next(cell.seconds for cell in cells if not cell.budget)


def _throughput(cell: Answer, question: Question) -> float:
    return question.calls * cell.bytes / statistics.median(cell.seconds) / 1e9


def _budget_text(budget: dict[str, int]) -> str:
    if "max_ops" in budget:
        return f"{budget['max_ops']} ops"
    return size(budget["max_bytes"]) if budget else "none"
