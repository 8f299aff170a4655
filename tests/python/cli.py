"""Runs the `tidegate` command, and makes the surroundings in which its checks fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.support.interpreter import run_script

# Not inherited by a command under test: what the tests themselves set, and launchers.
_DROPPED = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "NO_COLOR")


def environment(**extra: str) -> dict[str, str]:
    """This environment without tidegate's settings, with one OpenMP thread, and `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIDEGATE_") and name not in _DROPPED
    }
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


def tidegate(
    *arguments: str, python: tuple[str, ...] = (sys.executable,), cwd: Path, **extra: str
) -> subprocess.CompletedProcess[str]:
    """`python -m tidegate ARGUMENTS`, away from the source tree."""
    return subprocess.run(
        [*python, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=cwd,
        env=environment(**extra),
    )


def doctor(*checks: str, cwd: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The findings of `tidegate doctor --json --only CHECKS` by name; fails if one is missing."""
    done = tidegate("doctor", "--json", "--only", ",".join(checks), cwd=cwd, **options)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    findings: dict[str, dict[str, Any]] = report["checks"]
    assert list(findings) == list(checks)
    statuses = [finding["status"] for finding in findings.values()]
    assert done.returncode == (1 if "fail" in statuses else 0)
    return findings


def finding_after(preparation: str, check: str, root: Path, cwd: Path, **extra: str) -> Any:
    """One check's finding in a fresh process that first runs `preparation` (Python text)."""
    script = textwrap.dedent(preparation) + textwrap.dedent(
        f"""
        import json
        from dataclasses import asdict
        from pathlib import Path
        from tidegate.cli.checks import CHECKS
        from tidegate.cli.checks.machine_view import MachineView
        print(json.dumps(asdict(CHECKS[{check!r}](MachineView(root=Path({str(root)!r}))))))
        """
    )
    return json.loads(run_script(script, cwd, env=environment(**extra)).stdout)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Makes a tree that stands for /; returns it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
