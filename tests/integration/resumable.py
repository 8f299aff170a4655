"""A training that resumes from its last checkpoint under torchrun, and who starts it.

    torchrun ... -m tests.integration.resumable DIRECTORY [--die step|save]

Trains with FSDP2 and saves with DCP after every step. With --die, rank 1 ends in attempt 0: before
the forward of step 3, or killed in the midst of saving it, between plan and files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.tensor import DTensor

from tests.integration import models
from tests.integration.models import STEPS
from tests.integration.rows.fsdp2 import shard
from tests.integration.torchrun import torchrun
from tests.support.counters import traffic

GROUP_TIMEOUT_S = 120.0
FATAL_STEP = 3
# torchrun ends the other ranks as soon as it sees one gone; until then they say why themselves.
LOOK_EVERY_S = 5


def note(path: Path, **facts: object) -> None:
    path.write_text(json.dumps({"at": time.monotonic(), "pid": os.getpid(), **facts}))


class FatalPlanner(dcp.DefaultSavePlanner):
    """Kills its process when the plan is agreed upon and no file written."""

    def __init__(self, death: Path) -> None:
        super().__init__()
        self.death = death

    def finish_plan(self, new_plan: dcp.SavePlan) -> dcp.SavePlan:
        note(self.death)
        os.kill(os.getpid(), signal.SIGKILL)
        return new_plan


def last_checkpoint(directory: Path) -> int:
    """The last step whose checkpoint is complete: its metadata is written last."""
    return max(int(path.parent.name) for path in directory.glob("*/.metadata"))


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--die", choices=("step", "save"))
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    torch.set_num_threads(1)
    dist.init_process_group("tidegate", timeout=timedelta(seconds=GROUP_TIMEOUT_S))
    rank = dist.get_rank()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dying = arguments.die if attempt == 0 and rank == 1 else None
    death = directory / "death.json"

    model = models.build()
    shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = models.sgd(model)

    def save(done: int, planner: dcp.SavePlanner | None = None) -> None:
        state, momenta = get_state_dict(model, optimizer)
        path = directory / str(done)
        dcp.save({"model": state, "optimizer": momenta}, checkpoint_id=path, planner=planner)

    first = 0
    if attempt == 0:
        save(0)
    else:
        first = last_checkpoint(directory)
        state, momenta = get_state_dict(model, optimizer)
        dcp.load({"model": state, "optimizer": momenta}, checkpoint_id=directory / str(first))
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=momenta)
    try:
        for step in range(first, STEPS):
            if dying == "step" and step == FATAL_STEP:
                note(death)
                os._exit(1)
            x, y = models.batch(step, rank, torch.float32)
            models.loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            fatal = dying == "save" and step == FATAL_STEP
            save(step + 1, FatalPlanner(death) if fatal else None)
    except dist.DistBackendError as error:
        note(directory / f"survivor{rank}.json", text=str(error))
        raise

    found = {}
    for name, value in model.named_parameters():
        assert isinstance(value, DTensor)
        found[name] = value.detach().full_tensor()
    used = traffic()
    assert used is not None
    if rank == 0:
        result = {"first": first, "parameters": found}
        result |= {"calls": dict(used.calls), "shm_bytes": used.shm_bytes}
        torch.save(result, directory / "result.pt")
    dist.destroy_process_group()


# --- outside the ranks ----------------------------------------------------------------------------


def launch(directory: Path, ranks: int, *arguments: str) -> dict[str, Any]:
    """Runs in a new directory; what rank 0 of the last attempt ended with.

    Each rank that ends by itself leaves its statistics there, each attempt its logs.
    """
    directory.mkdir()
    torchrun(
        "tests.integration.resumable",
        directory,
        *arguments,
        ranks=ranks,
        options=(
            *("--max-restarts", 1, "--monitor-interval", LOOK_EVERY_S),
            *("--log-dir", directory / "logs"),
        ),
        env={"TIDEGATE_STATS_FILE": str(directory / "statistics")},
    )
    result: dict[str, Any] = torch.load(directory / "result.pt")
    return result


def assert_told(directory: Path, ranks: int) -> None:
    """Every survivor learned long before its deadline who is dead, and torchrun from them."""
    dead = json.loads((directory / "death.json").read_text())
    assert not (directory / "survivor1.json").exists()
    for rank in sorted({*range(ranks)} - {1}):
        survivor = json.loads((directory / f"survivor{rank}.json").read_text())
        assert f"rank 1 (pid {dead['pid']}" in survivor["text"]
        assert survivor["at"] - dead["at"] < GROUP_TIMEOUT_S / 4
        # @record put the same sentence where torchrun and its log collectors look for it.
        (report,) = directory.glob(f"logs/*/attempt_0/{rank}/error.json")
        assert survivor["text"] in json.loads(report.read_text())["message"]["message"]


if __name__ == "__main__":
    main()
