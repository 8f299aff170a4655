"""Compares what two backends made of the suite.

A test counts as *refused by torch* if it fails for the backend's name alone, in one of two ways:

- Tidegate's ranks failed at a statement of torch that raises because a backend is not called gloo.
- Torch reported another name for the group than the one it was made with: in C++ it calls every
  backend that is not its own "custom".

The statements are found in the installed source and header, not listed here, and each refusal is
reported with its file and line.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import re
from collections.abc import Iterable
from pathlib import Path

from tests.upstream.loader import source_of
from tests.upstream.rewrite import NAME

REFUSING_MODULE = "torch.distributed.distributed_c10d"
NAMING_HEADER = "include/torch/csrc/distributed/c10d/ProcessGroup.hpp"
MAX_REFUSALS = 15
# In the detail of a failure, what follows this line is what the ranks printed.
LOG_MARK = "--- log of the ranks ---"


class Class(enum.Enum):
    """What the results of gloo and tidegate amount to. The value is how a table says it."""

    BOTH = "passed by both"
    TIDEGATE_ONLY = "passed by tidegate only"
    REFUSED = "refused by torch for its name"
    WORSE = "passed by gloo, failed by tidegate"
    SKIPPED = "run by gloo, skipped for tidegate"
    NEITHER_PASSES = "failed by tidegate, not passed by gloo"
    NEITHER_RUNS = "skipped for both"


# A run with a test in one of these falls short.
SHORTFALL = (Class.WORSE, Class.SKIPPED)


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one test. `detail` is the reason of a skip or the text of a failure."""

    test: str
    backend: str
    ranks: int
    outcome: str  # "passed", "failed" or "skipped"
    seconds: float
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A statement of torch that tells backends apart by name."""

    path: Path
    line: int
    what: str
    # A failure whose text has this met the refusal; None: one whose last frame is path:line.
    text: str | None = None

    def __str__(self) -> str:
        path = self.path.relative_to(source_of("torch.version").parents[1])
        return f"{path}:{self.line}: {self.what}"


def refusals() -> list[Refusal]:
    """Every refusal of the installed torch."""
    path = source_of(REFUSING_MODULE)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Raise):
            continue
        condition = ast.unparse(node.test)
        if re.search(r"!= (Backend\.GLOO|'gloo')$", condition):
            found.append(Refusal(path, node.body[-1].lineno, f"raises if {condition}"))
    header = path.parents[1] / NAMING_HEADER
    for number, line in enumerate(header.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() == 'return "custom";':
            what = "is the name of every backend but torch's own"
            found.append(Refusal(header, number, what, f"'custom' != '{NAME}'"))
    return found


def refused_at(detail: str, known: Iterable[Refusal]) -> Refusal | None:
    """The refusal that ended every rank that failed, judging by their reports in `detail`."""
    ranks = detail.partition(LOG_MARK)[0].split("Process ")[1:]
    met = [refusal for text in ranks if (refusal := _met(text, known)) is not None]
    return met[0] if met and len(met) == len(ranks) else None


def _met(text: str, known: Iterable[Refusal]) -> Refusal | None:
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    last = (Path(frames[-1][0]), int(frames[-1][1])) if frames else None
    for each in known:
        if (each.path, each.line) == last if each.text is None else each.text in text:
            return each
    return None


def classify(gloo: Result, tidegate: Result, known: Iterable[Refusal]) -> Class:
    if tidegate.outcome == "passed":
        return Class.BOTH if gloo.outcome == "passed" else Class.TIDEGATE_ONLY
    if tidegate.outcome == "skipped":
        return Class.NEITHER_RUNS if gloo.outcome == "skipped" else Class.SKIPPED
    if refused_at(tidegate.detail, known) is not None:
        return Class.REFUSED
    return Class.WORSE if gloo.outcome == "passed" else Class.NEITHER_PASSES
