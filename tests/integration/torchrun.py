"""Runs a module of the tests under torchrun, as its documentation says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.processes import ROOT

LIMIT_S = 400


def torchrun(
    module: str,
    *arguments: object,
    ranks: int,
    options: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
) -> None:
    """AssertionError with everything that was printed unless it exits with status 0."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    command = (*launcher, "--nproc-per-node", ranks, *options, "-m", module, *arguments)
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
