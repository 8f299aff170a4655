"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """`fail`: groups cannot be made or will break; `warn`: they work, but slowly or not everywhere.

    `remedy` says what to do and is empty exactly for `ok`; `details` holds numbers for --json.
    """

    status: Status
    summary: str
    remedy: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.remedy == ""):
            raise ValueError(f"a finding has a remedy exactly if it is not ok: {self}")


def ok(summary: str, **details: Any) -> Finding:
    return Finding("ok", summary, "", details)


def warn(summary: str, remedy: str, **details: Any) -> Finding:
    return Finding("warn", summary, remedy, details)


def fail(summary: str, remedy: str, **details: Any) -> Finding:
    return Finding("fail", summary, remedy, details)
