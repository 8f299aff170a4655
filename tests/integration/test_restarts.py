"""torchrun --max-restarts: a rank ends, the others learn of it, all resume from a checkpoint.

At more ranks: the rows `restart_*` of the table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.cases import base_seed, run_all
from tests.integration.resumable import FATAL_STEP, assert_told, launch

RANKS = 2
DEATHS = ("step", "save")  # of which make test takes one


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(tmp_path_factory.mktemp("undisturbed") / "run", RANKS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("death", DEATHS if run_all() else DEATHS[base_seed() % 2 :][:1])
def test_a_dead_rank_costs_one_restart(
    death: str, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    result = launch(directory, RANKS, "--die", death)

    # What was saved before the death is the last that can be loaded, also if it struck in a save.
    assert undisturbed["first"] == 0
    assert result["first"] == FATAL_STEP
    wanted = undisturbed["parameters"]
    assert result["parameters"].keys() == wanted.keys()
    for name, value in result["parameters"].items():
        assert torch.equal(value, wanted[name]), name

    assert_told(directory, RANKS)
    lines = [json.loads(line) for line in (directory / "statistics").read_text().splitlines()]
    gathered = [
        sum(g["ops"]["all_gather"]["calls"] for g in one["groups"].values()) for one in lines
    ]
    assert len(gathered) == RANKS + 1, gathered  # the survivor of attempt 0 wrote, too
    assert min(gathered) > 0, gathered
