"""Whole programs under torchrun: with torch's own checks of every call, and through a restart."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from tests.integration import detailed, models, resumable
from tests.integration.models import STEPS, UNITS
from tests.integration.rows.base import FP32_TOLERANCE, Outcome, Row, digest_of, greatest_difference
from tests.support.counters import Traffic
from tests.support.pools import PoolKeeper


def _detail(ranks: int):
    def drive(pools: PoolKeeper) -> list[Outcome]:
        with tempfile.TemporaryDirectory(prefix="detail-") as directory:
            found = detailed.launch(Path(directory), ranks)
        detailed.assert_wrapped(found)
        for name in detailed.MISTAKES:
            detailed.assert_named(name, found)
        return [
            Outcome(
                max(one["fsdp2"], one["ddp"]),
                one["digest"],
                Traffic(Counter(one["calls"]), one["shm_bytes"]),
            )
            for one in found
        ]

    return drive


def _restart(ranks: int, death: str):
    """The parameters of a training that went on from a checkpoint, against an undisturbed one."""

    def drive(pools: PoolKeeper) -> list[Outcome]:
        with tempfile.TemporaryDirectory(prefix="restart-") as directory:
            undisturbed = resumable.launch(Path(directory) / "undisturbed", ranks)
            resumed = resumable.launch(Path(directory) / "resumed", ranks, "--die", death)
            resumable.assert_told(Path(directory) / "resumed", ranks)
        assert (undisturbed["first"], resumed["first"]) == (0, resumable.FATAL_STEP)
        wanted = undisturbed["parameters"]
        assert greatest_difference(wanted, models.union_oracle(ranks)) <= FP32_TOLERANCE
        outcome = Outcome(
            greatest_difference(resumed["parameters"], wanted),
            digest_of(resumed["parameters"]),
            Traffic(Counter(resumed["calls"]), resumed["shm_bytes"]),
        )
        return [outcome]

    return drive


# One training with FSDP2, one with DDP, whose construction compares shapes and hands out parameters
# and whose buckets are laid out anew, and each operation once synchronously and once not.
_DETAIL = {
    "all_gather": STEPS * (2 * UNITS - 1) + 1 + 4,
    "all_reduce": STEPS + 2,
    "all_to_all": 2,
    "barrier": 2,
    "broadcast": 2 + 2 + 2,
    "gather": 2,
    "recv": 1,
    "reduce": 2,
    "reduce_scatter": STEPS * UNITS + 2,
    "scatter": 2,
    "send": 1,
}
_DEATHS = {"step": "os._exit in a step", "save": "SIGKILL in the midst of a save"}

ROWS = (
    *(
        Row(
            f"debug_detail_w{ranks}",
            ranks,
            None,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: every operation, FSDP2 and DDP behind torch's wrapper,"
            " which names three kinds of mistakes",
            _DETAIL,
            drive=_detail(ranks),
        )
        for ranks in (2, 4)
    ),
    *(
        Row(
            f"restart_{death}_w{ranks}",
            ranks,
            None,
            f"torchrun --max-restarts: {_DEATHS[death]}, resumed from DCP, bit for bit",
            calls={},
            # Those of the last attempt.
            some=frozenset({"all_gather", "reduce_scatter"}),
            may=frozenset({"broadcast", "gather", "scatter"}),
            tolerance=0.0,
            drive=_restart(ranks, death),
            slow=True,
        )
        for death in _DEATHS
        for ranks in (2, 4)
    ),
)
