"""How far a long run is, on stderr: a bar with rich, dots without, nothing without a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Any


class Progress:
    """A context in which `total` pieces of work are done; what it shows is gone afterwards."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._dots = False

    def __enter__(self) -> Progress:
        if not sys.stderr.isatty() or self._total < 2:
            return self
        if find_spec("rich") is None:
            self._dots = True
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        text = TextColumn("{task.description}")
        self._bar = Bar(*columns, text, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task("", total=self._total)
        return self

    def next(self, what: str) -> None:
        """The piece called `what` begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)
        elif self._dots:
            print(".", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """A piece has ended."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._dots:
            print(file=sys.stderr)
