"""Fresh processes, away from the source tree; AssertionError with their output if they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 180.0,
) -> subprocess.CompletedProcess[str]:
    """`env` is the whole environment, this process's if it is None."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_script(
    script: str,
    cwd: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """A text of Python, which may be indented; `variables` are added to the environment."""
    whole = {**(os.environ if env is None else env), **variables}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return run_command(command, cwd, whole, timeout_s)
