"""`tidegate env`: every setting with its value, its source, default, unit and meaning."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.cli.output import Output

SUMMARY = "show every setting: value, source, default, unit, meaning"
DESCRIPTION = (
    "Every TIDEGATE_ variable as the backend would read it now. The table is the backend's own"
    " (docs/configuration.md shows it, too)."
)
_UNITS = ("bytes", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def settings() -> list[dict[str, Any]]:
    """Rows {name, value, source, default, unit, range, meaning, error} of the backend's table.

    CommandError where the shim cannot be loaded: the table is inside it.
    """
    try:
        from tidegate import _backend

        described = _backend.load_shim().settings()
    except (ImportError, RuntimeError) as error:
        given = sorted(name for name in os.environ if name.startswith("TIDEGATE_"))
        shown = ", ".join(f"{name}={os.environ[name]}" for name in given) or "none"
        raise CommandError(
            f"the table of settings is part of the shim, which cannot be loaded: {error} TIDEGATE_"
            f" variables of this environment, unchecked: {shown}"
        ) from error
    return [
        {
            "name": row["name"],
            "value": row["default"] if row["value"] is None else row["value"],
            "source": "default" if row["value"] is None else "environment",
            "default": row["default"],
            "unit": row["type"] if row["type"] in _UNITS else None,
            "range": row["range"],
            "meaning": row["meaning"],
            "error": row["error"] or None,
        }
        for row in described
    ]


def unknown() -> dict[str, str]:
    """Names of this environment that start with TIDEGATE_ but are no setting, with the nearest."""
    from tidegate import _backend

    names: dict[str, str] = _backend.load_shim().unknown_settings()
    return names


def run(options: argparse.Namespace, output: Output) -> int:
    rows = settings()
    strangers = unknown()
    if options.json:
        print(json.dumps({"version": 1, "settings": rows, "unknown": strangers}, indent=2))
    else:
        columns = ("name", "value", "source", "default", "unit", "meaning")
        output.table(columns, [[row[column] or "-" for column in columns] for row in rows])
        for row in rows:
            if row["error"]:
                print(f"error: {row['error']}")
        for name, nearest in strangers.items():
            print(f"warning: {name} is no setting of tidegate; the nearest is {nearest}")
    return 1 if any(row["error"] for row in rows) else 0
