"""How far a long run is, on stderr: a bar with rich, dots without, nothing without a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Any


class Progress:
    """A context in which `total` pieces of work are done; what it shows is gone afterwards.

    Of a single piece nobody knows how far it is: that is a bar that moves, and the time.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._dots = False
        self._begun = False

    def __enter__(self) -> Progress:
        if not sys.stderr.isatty() or self._total < 1:
            return self
        if find_spec("rich") is None:
            self._dots = True
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        many = self._total > 1
        columns = (BarColumn(), *([MofNCompleteColumn()] if many else []), TimeElapsedColumn())
        text = TextColumn("{task.description}")
        self._bar = Bar(*columns, text, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task("", total=self._total if many else None)
        return self

    def next(self, what: str) -> None:
        """The piece called `what` begins; one that has not ended yet has now."""
        self.done()
        self._begun = True
        if self._bar is not None:
            self._bar.update(self._task, description=what)
        elif self._dots:
            print(".", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """The piece that has begun has ended."""
        if self._begun and self._bar is not None:
            self._bar.advance(self._task)
        self._begun = False

    def skip_to(self, pieces: int) -> None:
        """So many have ended, or need not be done."""
        self._begun = False
        if self._bar is not None:
            self._bar.update(self._task, completed=pieces)

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
