"""Random programs under random limits end, with right results and within their budgets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conformance.cases import base_seed, run_all
from tests.python.tree import ROOT


def test_random_programs_end_within_their_budgets() -> None:
    pytest.importorskip("hypothesis", reason="no hypothesis: pip install hypothesis")
    examples = 1000 if run_all() else 60
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    ran = subprocess.run(
        [*launcher, "-m", "tests.integration.admission_programs", str(examples), str(base_seed())],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    runs, words = ran.stdout.split()
    assert words == "runs"
    assert int(runs) >= examples
