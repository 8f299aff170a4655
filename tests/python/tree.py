"""The source tree as the tests of its rules see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Not a walk of everything: environments and build folders live in the root too.
FOLDERS = (
    *("common", "collectives", "offload", "backend", "python"),
    *("tests", "bench", "examples", "docs", "cmake", "scripts"),
)
TEXT = {".cc", ".h", ".py", ".md", ".sh", ".cmake", ".txt", ".toml", ".json"}


def files(*suffixes: str) -> Iterator[Path]:
    """The files of the project, relative to its root, whose suffix is one of `suffixes`."""
    tops = (path for path in ROOT.iterdir() if path.is_file())
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in (*tops, *below):
        if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT)
