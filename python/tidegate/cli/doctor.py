"""`tidegate doctor`: is this machine and environment fit for tidegate, and if not, what to do?"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from tidegate._version import __version__
from tidegate.cli.errors import UsageError
from tidegate.cli.output import Output

SUMMARY = "check this environment; every finding says how to fix it"
DESCRIPTION = (
    "Examines torch, the shim, limits of memory and processors, names and libraries, and runs two"
    " processes. Status 0 unless a check fails; a warning is no failure. docs/doctor.md explains"
    " each check."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object; with all checks it includes torch.utils.collect_env",
    )
    parser.add_argument(
        "--only", metavar="CHECK[,CHECK]", help="run these checks alone, e.g. torch,shim"
    )
    parser.add_argument(
        "--self-test-seconds",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="deadline of the 2-process self-test (default: 60)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def run(options: argparse.Namespace, output: Output) -> int:
    from tidegate.cli.checks import CHECKS
    from tidegate.cli.checks.machine_view import MachineView

    names = list(CHECKS) if options.only is None else options.only.split(",")
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise UsageError(f"no check is called {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    view = MachineView(self_test_seconds=options.self_test_seconds)
    results = {name: _examine(name, view) for name in names}
    status = _worst([finding["status"] for finding in results.values()])
    if options.json:
        report: dict[str, Any] = {
            "version": 1,
            "tidegate": __version__,
            "status": status,
            "checks": results,
        }
        if options.only is None:
            report["collect_env"] = _collect_env()
        print(json.dumps(report, indent=2))
    else:
        _show(results, output)
    return 1 if status == "fail" else 0


def _examine(name: str, view: Any) -> dict[str, Any]:
    """Run one check. One that breaks is a finding of its own and hides no other."""
    from dataclasses import asdict

    from tidegate.cli.checks import CHECKS
    from tidegate.cli.checks.finding import fail

    try:
        finding = CHECKS[name](view)
    except Exception as error:
        finding = fail(f"the check broke: {error!r}", "report this as a bug of tidegate")
    return asdict(finding)


def _worst(statuses: list[str]) -> str:
    return next(status for status in ("fail", "warn", "ok") if status in [*statuses, "ok"])


def _show(results: dict[str, dict[str, Any]], output: Output) -> None:
    rows: list[tuple[str, str, str]] = []
    for name, finding in results.items():
        rows.append((finding["status"], name, finding["summary"]))
        if finding["remedy"]:
            rows.append(("", "", f"fix: {finding['remedy']}"))
    output.table(("", "check", "finding"), rows)
    counts = {s: sum(f["status"] == s for f in results.values()) for s in ("ok", "warn", "fail")}
    print(", ".join(f"{count} {status}" for status, count in counts.items()))


def _collect_env() -> str:
    try:
        from torch.utils.collect_env import get_pretty_env_info

        return str(get_pretty_env_info())
    except Exception as error:  # a broken torch is what some of these reports are about
        return f"not available: {error!r}"
