"""Jobs of several ranks under torchrun, for tests that look at what each rank printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def expect_right(script: str, folder: Path, size: int) -> None:
    """Runs a job each rank of which says "right", and nothing else, if all it checks holds."""
    done = run_job(script, folder, size, {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["right"] * size


def run_job(
    script: str, folder: Path, size: int, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on `size` ranks with `env` added to the environment, whatever becomes of it."""
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), str(path)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **env},
    )
