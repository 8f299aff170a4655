"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps the backend and compares the calls of all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.detailed import MISTAKES
from tests.integration.models import STEPS, UNITS
from tests.integration.rows.base import FP32_TOLERANCE
from tests.support.processes import ROOT

RANKS = 2
# torch's own words for what each side called.
SIDES = {
    "operation": ("ALLREDUCE", "BROADCAST"),
    "shape": ("[4, 2]", "[4, 3]"),
    "dtype": ("Float", "Double"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("detail")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "-m", "tests.integration.detailed", str(directory)),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((directory / f"rank{r}.json").read_text()) for r in range(RANKS)]


@pytest.mark.timeout(300)
def test_training_is_right_under_the_wrapper(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert (one["level"], one["backend"]) == ("DETAIL", "tidegate")
        assert one["wrapper"] == "_ProcessGroupWrapper", one["wrapper"]
        assert one["fsdp2"] <= FP32_TOLERANCE
        assert one["ddp"] <= FP32_TOLERANCE
        # FSDP2's and those of the plain operations, which the wrapper hands on.
        assert one["calls"]["reduce_scatter"] == STEPS * UNITS + 2
        assert one["calls"]["all_reduce"] == STEPS + 2


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_on_both_sides_at_once(name: str, found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        mistake = one["mistakes"][name]
        assert mistake["seconds"] < 5, mistake
        for word in (*SIDES[name], "Rank 0", "Rank 1"):
            assert word in mistake["text"], (rank, word, mistake["text"])
