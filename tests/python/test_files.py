"""Files are ASCII and small enough to have one job."""

from __future__ import annotations

from pathlib import Path

from tests.python.tree import ROOT, TEXT, files

MAX_HEADER = 250
MAX_SOURCE = 450
MAX_TEST = 600


def limit(path: Path) -> int | None:
    if path.suffix not in {".h", ".cc", ".py", ".sh"}:
        return None
    if path.parts[0] == "tests":
        return MAX_TEST
    # A *_inl.h is the body of several translation units, one an instruction set.
    is_header = path.suffix == ".h" and not path.stem.endswith("_inl")
    return MAX_HEADER if is_header else MAX_SOURCE


def test_text_is_ascii() -> None:
    wrong = []
    for path in files(*TEXT):
        for number, line in enumerate((ROOT / path).read_bytes().splitlines(), start=1):
            if not line.isascii():
                wrong.append(f"{path}:{number}: {line.decode(errors='replace').strip()}")
    assert wrong == []


def test_files_are_within_the_limits() -> None:
    wrong = []
    for path in files(".h", ".cc", ".py", ".sh"):
        lines = len((ROOT / path).read_bytes().splitlines())
        most = limit(path)
        if most is not None and lines > most:
            wrong.append(f"{path}: {lines} lines, {most} allowed")
    assert wrong == []


def test_no_tabs_and_no_trailing_blanks() -> None:
    wrong = []
    for path in files(".h", ".cc", ".py", ".cmake"):
        for number, line in enumerate((ROOT / path).read_text().split("\n"), start=1):
            if "\t" in line or line != line.rstrip():
                wrong.append(f"{path}:{number}")
    assert wrong == []
