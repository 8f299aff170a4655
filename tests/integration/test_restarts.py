"""torchrun --max-restarts: a rank ends, the others learn of it, all resume from a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.cases import base_seed, run_all
from tests.integration.resumable import FATAL_STEP, GROUP_TIMEOUT_S
from tests.support.processes import ROOT

RANKS = 2
DEATHS = ("step", "save")  # of which make test takes one
# torchrun ends the other ranks as soon as it sees one gone; until then they say why themselves.
LOOK_EVERY_S = 5


def _torchrun(directory: Path, *arguments: str) -> dict[str, Any]:
    directory.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "--max-restarts", "1"),
            *("--monitor-interval", str(LOOK_EVERY_S), "--log-dir", str(directory / "logs")),
            *("-m", "tests.integration.resumable", str(directory), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TIDEGATE_STATS_FILE": str(directory / "statistics"),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(directory / "result.pt")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _torchrun(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("death", DEATHS if run_all() else DEATHS[base_seed() % 2 :][:1])
def test_a_dead_rank_costs_one_restart(
    death: str, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    result = _torchrun(directory, "--die", death)

    # What was saved before the death is the last that can be loaded, also if it struck in a save.
    assert undisturbed["first"] == 0
    assert result["first"] == FATAL_STEP
    wanted = undisturbed["parameters"]
    assert result["parameters"].keys() == wanted.keys()
    for name, value in result["parameters"].items():
        assert torch.equal(value, wanted[name]), name

    dead = json.loads((directory / "death.json").read_text())
    survivor = json.loads((directory / "survivor0.json").read_text())
    assert f"rank 1 (pid {dead['pid']}" in survivor["text"]
    assert survivor["at"] - dead["at"] < GROUP_TIMEOUT_S / 4
    assert not (directory / "survivor1.json").exists()

    # @record put the same sentence where torchrun and its log collectors look for it.
    (report,) = directory.glob("logs/*/attempt_0/0/error.json")
    message = json.loads(report.read_text())["message"]["message"]
    assert survivor["text"] in message

    lines = [json.loads(line) for line in (directory / "statistics").read_text().splitlines()]
    gathered = [
        sum(g["ops"]["all_gather"]["calls"] for g in one["groups"].values()) for one in lines
    ]
    assert len(gathered) == RANKS + 1, gathered  # the survivor of attempt 0 wrote, too
    assert min(gathered) > 0, gathered
