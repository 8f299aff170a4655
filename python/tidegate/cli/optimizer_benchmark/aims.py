"""What the offload engine aims at beside other optimizers, and what of it holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.cli.optimizer_benchmark.request import (
    DEEPSPEED,
    FP32,
    FUSED,
    TIDEGATE,
    TORCH,
    UNCLIPPED,
    Found,
)


@dataclass(frozen=True)
class Aim:
    """Of the times above / below, within each round, the median; at least or at most `limit`.

    Where `near` reaches NEAR of the ceiling there is hardly more to gain: then `relaxed` holds.
    """

    scenario: str
    above: str
    below: str
    limit: float
    at_least: bool = True
    near: str = ""
    relaxed: float = 0.0


#: Of the speed that memory allows.
NEAR = 0.97
#: Of AdamW with fp32 states, at SIZE.
AIMS = (
    Aim("one", TORCH, TIDEGATE, 1.03, near=TORCH, relaxed=0.99),
    Aim("many", TORCH, TIDEGATE, 1.6),
    Aim("gpt2", TORCH, TIDEGATE, 1.03, near=TIDEGATE),
    Aim("clip", TORCH, TIDEGATE, 1.5),
    Aim("clip-many", TORCH, TIDEGATE, 1.5),
    Aim("one", DEEPSPEED, TIDEGATE, 1.1),
    Aim("many", DEEPSPEED, TIDEGATE, 1.4),
    Aim("mixed", DEEPSPEED, TIDEGATE, 1.8),
    Aim("mixed", TIDEGATE, FP32, 1.05, at_least=False),
    Aim("clip", FUSED, UNCLIPPED, 1.03, at_least=False),
)
SIZE = 64 << 20


@dataclass(frozen=True)
class Verdict:
    """`share`: of the ceiling, of the contender that the aim names; None: not known."""

    aim: Aim
    threads: int
    ratios: Sequence[float]
    skipped: str
    share: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def limit(self) -> float:
        near = self.share is not None and self.share >= NEAR
        return self.aim.relaxed if near else self.aim.limit

    @property
    def holds(self) -> bool | None:
        """None where nothing was measured, which is no success."""
        if not self.ratios:
            return None
        return self.median >= self.limit if self.aim.at_least else self.median <= self.limit


def judge(answers: Sequence[Found]) -> Iterator[Verdict]:
    """A verdict for each aim and answer of its scenario, in the order of the aims."""
    for aim in AIMS:
        for found in answers:
            request = found.request
            if request.scenario != aim.scenario:
                continue
            if (request.optimizer, request.states) != ("adamw", "fp32"):
                continue
            if request.dtype != "fp32" and aim.scenario != "mixed":
                continue
            ratios = found.ratios(aim.above, aim.below)
            why = found.why_not(aim.below, aim.above)
            if aim.scenario != "gpt2" and request.size != SIZE:
                ratios, why = [], "the aim is of --size 64M"
            shares = found.shares_of_ceiling(aim.near)
            share = statistics.median(shares) if shares else None
            yield Verdict(aim, request.threads, ratios, why, share)


COLUMNS = ("scenario", "threads", "times", "aim", "measured", "", "remark")


def rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Under COLUMNS."""
    return [
        [
            *(one.aim.scenario, str(one.threads), f"{one.aim.above} / {one.aim.below}"),
            f"{'>=' if one.aim.at_least else '<='} {one.aim.limit:.2f}",
            *(f"{one.median:.3f}" if one.ratios else "-", _word(one), _remark(one)),
        ]
        for one in verdicts
    ]


def _remark(one: Verdict) -> str:
    if one.skipped or not one.aim.near:
        return one.skipped
    if one.share is None:
        return "ceiling not measured"
    enough = f", so {one.aim.relaxed:.2f} is enough" if one.aim.relaxed else ", which is enough"
    return f"{one.aim.near} at {one.share:.3f} of the ceiling{enough if one.share >= NEAR else ''}"


def _word(one: Verdict) -> str:
    return {True: "held", False: "missed", None: "SKIP"}[one.holds]
