"""Text for people: tables and colours where `rich` and a terminal are there, columns otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from shutil import get_terminal_size

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_NARROW = 30  # a wider column is wrapped where it must be


class Output:
    """Prints tables to stdout. A cell that is a status word (ok, warn, fail) is coloured.

    `rich` (the extra `tidegate[cli]`) is used if it is installed and stdout is a terminal; NO_COLOR
    or `no_color` leave out the colours, not the table.
    """

    def __init__(self, no_color: bool = False) -> None:
        self._color = not (no_color or os.environ.get("NO_COLOR"))
        self._rich = sys.stdout.isatty() and find_spec("rich") is not None

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table; without rich its last column is not padded, and no line is wrapped.

        Rich would cut what does not fit into the terminal, so it gets no table with more columns.
        """
        lines = [list(header), *map(list, rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        least = sum(min(width, _NARROW) + 2 for width in widths) - 2
        if self._rich and least <= get_terminal_size().columns:
            self._rich_table(header, lines[1:])
            return
        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            print("  ".join(cells).rstrip())

    def _rich_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column, name in enumerate(header):
            # Names stay whole; the wide columns share what is left.
            widest = max((len(row[column]) for row in rows), default=0)
            table.add_column(name, no_wrap=widest <= _NARROW, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        Console(
            no_color=not self._color,
            color_system="auto" if self._color else None,
            highlight=False,
        ).print(table)
