"""Jobs of several ranks under torchrun, for tests that look at what each rank printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def expect_right(script: str, folder: Path, size: int) -> None:
    """Runs a job each rank of which says "right", and nothing else, if all it checks holds."""
    done = run_job(script, folder, size, {})
    assert done.returncode == 0, done.stdout + done.stderr
    # Ranks write words and line ends one by one, so those may stand in any order.
    assert "".join(done.stdout.split()) == "right" * size


def run_job(
    script: str, folder: Path, size: int, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on `size` ranks with `env` added to the environment, whatever becomes of it."""
    path = folder / "script.py"
    path.write_text(script)
    command = [*LAUNCHER, str(size), str(path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as launcher:
        try:
            output, errors = launcher.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            # Killed, it would leave its ranks behind, which may turn round and round for ever.
            launcher.terminate()
            output, errors = launcher.communicate()
            raise AssertionError(f"no end after 180 s:\n{output}{errors}") from None
    return subprocess.CompletedProcess(command, launcher.returncode, output, errors)
