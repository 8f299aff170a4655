"""Prints the table of docs/versions.md from what scripts/versions.sh left behind.

    python -m tests.support.versions FOLDER ...

A folder is named after its torch and holds the JUnit file of each suite of SUITES; a torch without
any did not build. Needs no package but Python's own. Exits non-zero unless everything passed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.suites import Result, read

SUITES = ("registration", "conformance", "rows")
HEADER = (
    "| torch | build | conformance cases run / failed | rows passed / failed "
    "| registration passed / failed | skipped |"
)


def line_of(folder: Path) -> tuple[str, bool]:
    """The line of one torch, and whether everything in it passed."""
    files = {suite: folder / f"{suite}.xml" for suite in SUITES}
    if not any(path.exists() for path in files.values()):
        return f"| {folder.name} | failed | - | - | - | - |", False
    results = {s: read(s, path) for s, path in files.items() if path.exists()}
    skipped: Counter[str] = Counter()
    for result in results.values():
        skipped.update(result.skipped)
    cells = [
        folder.name,
        "ok",
        _numbers(results.get("conformance"), cases=True),
        _numbers(results.get("rows")),
        _numbers(results.get("registration")),
        "; ".join(f"{count}: {reason}" for reason, count in skipped.items()) or "none",
    ]
    good = len(results) == len(SUITES) and all(
        result.verdict == "ok" for result in results.values()
    )
    return "| " + " | ".join(cells) + " |", good


def _numbers(result: Result | None, cases: bool = False) -> str:
    if result is None:
        return "not run to its end"
    if cases:
        return f"{result.cases} / {result.failed_cases}"
    return f"{result.passed} / {result.failed}"


def main(folders: Sequence[str]) -> int:
    lines = [line_of(Path(folder)) for folder in folders]
    print(HEADER)
    print("|---" * (HEADER.count("|") - 1) + "|")
    for text, _ in lines:
        print(text)
    return 0 if lines and all(good for _, good in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
