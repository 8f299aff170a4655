"""`dcp.async_save` while the training goes on, on a group of its own and on the training's.

The save is held between its plan and its files until the parameters have changed, so that what
arrives on disk can only be the copy that was taken at the call. torch gives the collectives of two
threads no order: on one group the training may use it only while the save does not, which is
from the plan to the end of the writing. On a second group nothing has to be waited for.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from functools import cache

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from tests.integration import models
from tests.integration.models import STEPS
from tests.integration.rows.base import Meter, Outcome, Row, Tensors, compare, local_shards
from tests.integration.rows.checkpoint import load, local_state, wrapped
from tests.support.workers import RankContext

PATIENCE_S = 60.0


class HeldPlanner(dcp.DefaultSavePlanner):
    """Holds the save when every rank has its plan: no collective is left until the files are."""

    def __init__(self) -> None:
        super().__init__()
        self.planned = threading.Event()
        self.go_on = threading.Event()

    def finish_plan(self, new_plan: dcp.SavePlan) -> dcp.SavePlan:
        plan = super().finish_plan(new_plan)
        self.planned.set()
        assert self.go_on.wait(PATIENCE_S), "nobody let the save go on"
        return plan


@cache
def _oracle(world_size: int) -> Tensors:
    """One process, twice the usual training on the union of the samples."""
    model = models.build()
    optimizer = models.sgd(model)
    for step in (*range(STEPS), *range(STEPS)):
        parts = [models.batch(step, rank, torch.float32) for rank in range(world_size)]
        x, y = (torch.cat(side) for side in zip(*parts, strict=True))
        models.loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in model.named_parameters()}


def _calls_of(group: dist.ProcessGroup) -> int:
    import tidegate

    numbers = tidegate.stats()["groups"].get(group.group_name, {"ops": {}})
    return sum(op["calls"] for op in numbers["ops"].values())


def _async_save(second_group: bool):
    def run(context: RankContext) -> Outcome:
        group = dist.new_group() if second_group else None
        box = [tempfile.mkdtemp(prefix="checkpoint-")] if context.rank == 0 else [""]
        dist.broadcast_object_list(box, src=0)
        with Meter() as meter:
            model = wrapped(context, None)
            optimizer = models.train(model, context.rank)
            saved = local_state(model, optimizer)
            state, optimizer_state = get_state_dict(model, optimizer)
            planner = HeldPlanner()
            future = dcp.async_save(
                {"model": state, "optimizer": optimizer_state},
                checkpoint_id=box[0],
                planner=planner,
                process_group=group,
            )
            if not second_group:
                assert planner.planned.wait(PATIENCE_S)
            models.train(model, context.rank, optimizer=optimizer)
            assert not future.done()
            planner.go_on.set()
            future.result()
        found = {name: value.to_local().detach() for name, value in model.named_parameters()}
        wanted = local_shards(_oracle(context.world_size), context.world_size, context.rank)
        outcome = compare(found, wanted, meter.used)
        loaded = load(context, box[0])
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], value) for name, value in saved.items())
        changed = [n for n, v in found.items() if v.numel() and not torch.equal(v, saved[n])]
        assert changed, "the training did nothing while the save was held"
        if meter.used is not None and group is not None:
            assert _calls_of(group) > 0
        dist.barrier()
        if context.rank == 0:
            shutil.rmtree(box[0])
        return outcome

    return run


ROWS = tuple(
    Row(
        f"dcp_async_{name}_w{n}",
        n,
        _async_save(second_group),
        f"async_save during five steps on {where}: the state at the call, bit for bit",
        calls={},
        some=frozenset({"all_gather", "broadcast", "gather", "reduce_scatter", "scatter"}),
    )
    for n in (2, 4)
    for name, where, second_group in (
        ("same_group", "the same group", False),
        ("own_group", "a second group", True),
    )
)
