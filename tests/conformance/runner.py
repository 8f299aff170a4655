"""Runs a list of cases inside a rank process and compares the outputs.

A rank whose call raised stops: what its peers see from then on says nothing about the later cases.
The parent goes on with the next case, in fresh ranks unless all of them refused the call alike.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.conformance import data, reference
from tests.conformance.buffers import Buffers
from tests.conformance.cases import Case
from tests.conformance.operations import ROWS, Call, Expected
from tests.support.workers import RankContext


@dataclass
class Report:
    """What one rank found: complaints by case index, and how many cases it finished."""

    finished: int = 0
    complaints: dict[int, list[str]] = field(default_factory=dict)
    observations: dict[int, Any] = field(default_factory=dict)


def run_cases(context: RankContext, cases: list[Case]) -> Report:
    report = Report()
    for index, case in enumerate(cases):
        call = Call(case, context.rank, Buffers(case.dtype, case.offset))
        try:
            for expected in ROWS[case.op](call):
                complaint = compare(expected, case.dtype)
                if complaint:
                    call.complaints.append(complaint)
            call.complaints += call.buffers.violations()
        except Exception:
            report.complaints[index] = [f"raised {_last_error()}"]
            break
        if call.complaints:
            report.complaints[index] = call.complaints
        if call.observation is not None:
            report.observations[index] = call.observation
        report.finished = index + 1
    return report


def _last_error() -> str:
    """The exception being handled and the line of the row that led to it."""
    kind, error, trace = sys.exc_info()
    lines = [frame.line for frame in traceback.extract_tb(trace) if "operations" in frame.filename]
    text = "".join(traceback.format_exception_only(kind, error)).strip()
    return f"{text}\n        at: {lines[-1] if lines else '?'}"


def compare(expected: Expected, dtype: str) -> str | None:
    """The first wrong element of an output, or None."""
    got = data.to_carrier(expected.tensor, dtype)
    value = expected.value
    wanted = value.bits if isinstance(value, reference.Reduced) else value
    if got.shape != wanted.shape:
        return f"{expected.what}: {got.size} elements instead of {wanted.size}"
    got, dtype = data.parts(got, dtype)
    wanted = wanted.view(got.dtype)
    size = data.itemsize(dtype)
    unequal = got.view(np.uint8).reshape(-1, size) != wanted.view(np.uint8).reshape(-1, size)
    wrong = unequal.any(axis=1)
    if isinstance(value, reference.Reduced) and reference.is_float(dtype):
        with np.errstate(invalid="ignore"):
            values = data.widen(got, dtype, np.float64)
            # Which NaN comes out is not defined.
            wrong &= ~(np.isnan(values) & np.isnan(data.widen(wanted, dtype, np.float64)))
            if value.bound is not None and value.near is not None:
                wrong |= np.abs(values - value.near) > value.bound
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    return (
        f"{expected.what}: {int(wrong.sum())} of {wrong.size} elements wrong, first at {first}: "
        f"got {_show(got[first], dtype)}, expected {_show(wanted[first], dtype)}"
    )


def _show(element: Any, dtype: str) -> str:
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return repr(float(data.widen(np.array([element]), dtype, np.float32)[0]))
    if dtype == "bool":  # a true that is not stored as 1 is wrong too
        return f"byte {int(element.view(np.uint8))}"
    return repr(element.item())


def barrier_complaint(per_rank: list[Any]) -> str | None:
    """Nobody may leave a barrier before everybody has arrived (CLOCK_MONOTONIC is shared)."""
    for turn, rows in enumerate(zip(*per_rank, strict=True)):
        last_arrival = max(arrived for arrived, _ in rows)
        for rank, (_, left) in enumerate(rows):
            if left < last_arrival:
                return f"barrier {turn}: rank {rank} left {last_arrival - left} ns too early"
    return None
