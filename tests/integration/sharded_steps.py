"""What the ranks do in the tests of optimizers whose states are spread over a node."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tidegate import offload
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.support.workers import RankContext

SHAPES = [(3, 5), (0,), (1,), (4097,), (64, 257), (), (90, 1000)]
RULES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"amsgrad": True, "max_grad_norm": 0.5}),
    ("Adam", {"weight_decay": 0.1, "max_grad_norm": float("inf")}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "max_grad_norm": 2.0}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
    ("Lion", {"max_grad_norm": 1e6}),
]
LAYOUTS: list[tuple[torch.dtype, dict[str, str]]] = [
    (torch.float32, {}),
    (torch.bfloat16, {}),
    (torch.bfloat16, {"master": "none"}),
]
#: Of AdamW alone.
SMALL_LAYOUTS: list[tuple[torch.dtype, dict[str, str]]] = [
    (torch.bfloat16, {"master": "split"}),
    (torch.float32, {"states": "bf16"}),
    (torch.bfloat16, {"master": "split", "states": "8bit"}),
]

Parameters = list[torch.Tensor]


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    made.append(torch.randn(130, 70, generator=generator).to(dtype).t())
    return [parameter.requires_grad_() for parameter in made]


def give_gradients(all_of: list[Parameters], seed: int) -> None:
    generator = torch.Generator().manual_seed(1000 + seed)
    for same in zip(*all_of, strict=True):
        gradient = torch.randn(same[0].shape, generator=generator)
        for parameter in same:
            parameter.grad = gradient.to(parameter.dtype, copy=True)


def assert_equal(ours: Parameters, theirs: Parameters) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def assert_equal_states(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["state"].keys() == theirs["state"].keys()
    for key, state in theirs["state"].items():
        assert ours["state"][key].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(ours["state"][key][name], value), (key, name)


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def step_alike(name: str, dtype: torch.dtype, arguments: dict[str, Any]) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    mine = getattr(offload, name)(ours, **arguments, shard_over=world())
    alone = getattr(offload, name)(theirs, **arguments)
    for step in range(3):
        give_gradients([ours, theirs], step)
        mine.step()
        alone.step()
        assert_equal(ours, theirs)
        assert mine.grad_norm == alone.grad_norm
    saved = alone.state_dict()
    assert_equal_states(mine.state_dict(), saved)
    again = getattr(offload, name)(ours, **arguments, shard_over=world())
    again.load_state_dict(saved)
    assert_equal_states(again.state_dict(), saved)


def all_rules(_: RankContext) -> None:
    for name, arguments in RULES:
        for dtype, layout in LAYOUTS:
            step_alike(name, dtype, arguments | layout)


def small_layouts(_: RankContext) -> None:
    for dtype, layout in SMALL_LAYOUTS:
        step_alike("AdamW", dtype, {"lr": 0.01, "max_grad_norm": 0.5, **layout})


def memory(_: RankContext) -> tuple[int, int, int, bool]:
    """Bytes of this rank's part and of all, the segment's inode, and whether it is mapped."""

    def held() -> int:
        return sum(shared["arena"]["requested_bytes"] for shared in offload.stats()["shared"])

    parameter = torch.zeros(1_000_000, requires_grad=True)
    parameter.grad = torch.ones(1_000_000)
    optimizer = offload.AdamW([parameter], shard_over=world())
    before = held()
    optimizer.step()
    part = held() - before
    whole = 3 * parameter.nbytes  # Two states, and the parameter as the others find it.
    (shared,) = [each for each in offload.stats()["shared"] if each["arena"]["blocks"]]
    maps = Path("/proc/self/maps").read_text()
    mapped = re.findall(rf" {shared['inode']} +/memfd:tidegate-arena", maps)
    assert shared["ranks"] == dist.get_world_size()
    dist.barrier()
    return part, whole, shared["inode"], len(mapped) > 0


def make_and_drop(_: RankContext) -> None:
    """Two at once, and one after another: the memory of the first is used anew."""
    group = dist.new_group()
    assert group is not None
    committed = []
    for _ in range(4):
        first, second, third, fourth = (parameters() for _ in range(4))
        one = offload.AdamW(first, shard_over=group)
        other = offload.SGD(second, lr=0.1, momentum=0.9, shard_over=group)
        alone = offload.AdamW(third), offload.SGD(fourth, lr=0.1, momentum=0.9)
        for step in range(2):
            give_gradients([first, second, third, fourth], step)
            for optimizer in (one, other, *alone):
                optimizer.step()
        assert_equal(first, third)
        assert_equal(second, fourth)
        committed.append(offload.stats()["shared"][-1]["arena"]["committed_bytes"])
    # What is dropped stays until all have met again, so there are two sets at most.
    assert committed[-1] <= 2 * committed[0] + 100_000
    dist.destroy_process_group(group)
    give_gradients([first], 9)
    with pytest.raises((RuntimeError, ValueError)):
        one.step()


def save_and_load(context: RankContext) -> None:
    ours, theirs = parameters(), parameters()
    mine = offload.AdamW(ours, shard_over=world())
    torchs = torch.optim.AdamW(theirs)
    for step in range(2):
        give_gradients([ours, theirs], step)
        mine.step()
    # One rank alone, while the others have gone on to load.
    file = io.BytesIO()
    if context.rank == 0:
        torch.save(mine.state_dict(), file)
    texts = [file.getvalue()]
    dist.broadcast_object_list(texts, src=0)
    saved = torch.load(io.BytesIO(texts[0]), weights_only=True)

    torchs.load_state_dict(saved)
    again_of = [p.detach().clone().requires_grad_() for p in ours]
    alone_of = [p.detach().clone().requires_grad_() for p in ours]
    with torch.no_grad():
        for p, q in zip(theirs, ours, strict=True):
            p.copy_(q)
    again = offload.AdamW(again_of, shard_over=world())
    again.load_state_dict(saved)
    alone = offload.AdamW(alone_of)
    alone.load_state_dict(saved)
    assert_equal_states(again.state_dict(), saved)
    for step in range(2, 4):
        give_gradients([ours, theirs, again_of, alone_of], step)
        for optimizer in (mine, torchs, again, alone):
            optimizer.step()
    assert_equal(again_of, ours)
    assert_equal(alone_of, ours)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    # And back, into one that has states already.
    again.load_state_dict(torchs.state_dict())
    assert_equal_states(again.state_dict(), torchs.state_dict())
    for wrong in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save its state_dict"):
            wrong(again)


def refused_state(context: RankContext) -> None:
    """What one rank cannot load, none does."""
    ours = parameters()
    optimizer = offload.AdamW(ours, shard_over=world())
    give_gradients([ours], 0)
    optimizer.step()
    before = optimizer.state_dict()
    loaded = copy.deepcopy(before)
    bad = context.rank == context.world_size - 1
    if bad:
        loaded["state"][0]["exp_avg"] = torch.zeros(3)
    error, text = (
        (ValueError, r"exp_avg has shape \(3,\)")
        if bad
        else (RuntimeError, "cannot load a state_dict, so no rank does: ValueError: .*exp_avg")
    )
    with pytest.raises(error, match=text):
        optimizer.load_state_dict(loaded)
    assert_equal_states(optimizer.state_dict(), before)
    give_gradients([ours], 1)
    optimizer.step()


def refused_steps(context: RankContext) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = offload.AdamW(ours, shard_over=world())
    alone = offload.AdamW(theirs)
    last = context.rank == context.world_size - 1

    def refused(error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            optimizer.step()
        assert_equal(ours, theirs)

    give_gradients([ours], 0)
    if last:
        ours[0].grad_dtype = None
        ours[0].grad = torch.ones(3, 5, dtype=torch.float64)
        refused(TypeError, "float64|[Dd]ouble")
    else:
        refused(RuntimeError, rf"rank {context.world_size - 1} cannot step, so no rank does: Type")
    give_gradients([ours], 0)
    optimizer.param_groups[0]["lr"] = 0.1 if last else 0.2
    refused(RuntimeError, "cannot step: they differ in their settings of a parameter group")
    optimizer.param_groups[0]["lr"] = 1e-3
    if last:
        ours[3].grad = None
    refused(RuntimeError, r"they differ in their gradients \(some have one that others lack\)")
    for step in range(2):
        give_gradients([ours, theirs], step)
        optimizer.step()
        alone.step()
        assert_equal(ours, theirs)


def refused_arguments(_: RankContext) -> None:
    with pytest.raises(ValueError, match="leave norm_group out"):
        offload.AdamW(parameters(), norm_group=world(), shard_over=world())
    whole = nn.Linear(4, 4)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(whole, mesh=mesh)
    with pytest.raises(ValueError, match="sharded already"):
        offload.AdamW(whole.parameters(), shard_over=world())
    gaps = torch.ones(6, 6)[::2, ::2].requires_grad_()
    gaps.grad = torch.ones(3, 3)
    optimizer = offload.AdamW([gaps], shard_over=world())
    with pytest.raises(ValueError, match="has gaps in memory"):
        optimizer.step()


def refused_group(context: RankContext) -> None:
    """Of which a rank is no member; those that are do not wait for it."""
    first = dist.new_group([0])
    if context.rank == 0:
        offload.AdamW(parameters(), shard_over=first)
    else:
        with pytest.raises(ValueError, match="that this rank is a member of"):
            offload.AdamW(parameters(), shard_over=first)


def refused_construction(context: RankContext) -> None:
    """What is wrong on one rank: the others, which come to meet it, learn what."""
    bad = context.world_size - 1
    wrong: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("AdamW", {"lr": -1.0}, ValueError),
        ("AdamW", {"states": "4bit"}, ValueError),
        ("SGD", {"beta": 1}, TypeError),
        ("Lion", {"betas": (2.0, 0.9)}, ValueError),
        ("Adagrad", {"norm_group": world()}, ValueError),
        ("Adam", {"max_grad_norm": -1.0}, ValueError),
    ]
    for group in (world(), dist.new_group()):  # Which has a segment, and which has none.
        for name, arguments, error in wrong:
            mine = arguments if context.rank == bad else {}
            kind, text = (
                (error, "")
                if context.rank == bad
                else (
                    RuntimeError,
                    f"rank {bad} cannot .* no rank does: {error.__name__}",
                )
            )
            with pytest.raises(kind, match=text):
                getattr(offload, name)(parameters(), **mine, shard_over=group)
    offload.AdamW(parameters(), shard_over=world())


def scaler_and_scheduler(context: RankContext) -> None:
    ours, theirs = parameters(), parameters()
    mine = offload.AdamW(ours, lr=0.1, max_grad_norm=1.0, shard_over=world())
    alone = offload.AdamW(theirs, lr=0.1, max_grad_norm=1.0)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (mine, alone)]
    for step in range(4):
        give_gradients([ours, theirs], step)
        for group, optimizer, scaler in ((ours, mine, scalers[0]), (theirs, alone, scalers[1])):
            scaler.scale(torch.tensor(1.0))
            for p in group:
                assert p.grad is not None
                p.grad.mul_(scaler.get_scale())
                if step == 2:
                    p.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
        for scheduler in schedulers:
            scheduler.step()
        assert_equal(ours, theirs)
    assert scalers[0].get_scale() == scalers[1].get_scale() == 512.0
    # Gradients are alike on all ranks, but if one alone finds an infinity, no rank steps.
    mine.found_inf = torch.tensor(float(context.rank == 0))
    give_gradients([ours], 9)
    mine.step()
    del mine.found_inf
    assert_equal(ours, theirs)


def groups_added(_: RankContext) -> None:
    ours, theirs = parameters(), parameters()
    frozen = [torch.ones(5000), torch.ones(5000)]
    mine = offload.AdamW([*ours[:3], frozen[0]], shard_over=world())
    alone = offload.AdamW([*theirs[:3], frozen[1]])
    for step in range(4):
        if step == 2:
            mine.add_param_group({"params": ours[3:], "lr": 0.1})
            alone.add_param_group({"params": theirs[3:], "lr": 0.1})
            mine.param_groups[0]["amsgrad"] = alone.param_groups[0]["amsgrad"] = True
        give_gradients([ours, theirs], step)
        if step == 3:
            ours[4].grad = theirs[4].grad = None
        mine.step()
        alone.step()
        assert_equal(ours[:3], theirs[:3])
    assert_equal(ours, theirs)
    assert_equal_states(mine.state_dict(), alone.state_dict())


def ddp_training(context: RankContext, recipe: models.Recipe) -> dict[str, torch.Tensor]:
    """Each rank on its samples; the parameters afterwards."""
    model = recipe.build()
    optimizer = offload.SGD(
        model.parameters(),
        lr=models.RATE,
        momentum=0.9,
        max_grad_norm=recipe.max_norm,
        shard_over=world(),
    )
    models.train(DistributedDataParallel(model), context.rank, recipe, optimizer=optimizer)
    return {name: value.detach() for name, value in model.named_parameters()}


def fails_half_way(context: RankContext) -> None:
    """A worker thread that is lost on one rank: no rank goes on with parameters that differ."""
    ours = parameters()
    optimizer = offload.AdamW(ours, shard_over=world())
    give_gradients([ours], 0)
    optimizer.step()

    def lost() -> None:
        raise RuntimeError("a worker was lost")

    shards = optimizer._shards
    assert shards is not None
    run_step = shards.run_step

    def failing(step: Any, _: Any, wants_sums: bool) -> None:
        run_step(step, lost, wants_sums)

    if context.rank == 0:
        shards.run_step = failing  # type: ignore[method-assign]
    text = "a worker was lost" if context.rank == 0 else "rank 0 cannot finish a step"
    with pytest.raises(RuntimeError, match=text):
        optimizer.step()
    for refused in (optimizer.step, optimizer.state_dict):
        with pytest.raises(RuntimeError, match=r"no more use: a step ended half-way .*worker"):
            refused()


def lost_before_step(context: RankContext) -> None:
    """The last rank ends; the others must have an error, and an optimizer that is as it was."""
    ours, theirs = parameters(), parameters()
    optimizer = offload.AdamW(ours, shard_over=world())
    alone = offload.AdamW(theirs)
    give_gradients([ours, theirs], 0)
    optimizer.step()
    alone.step()
    if context.rank == context.world_size - 1:
        os._exit(9)
    give_gradients([ours], 1)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert_equal(ours, theirs)
    # Its states lie where they lay: what there was at the last step can still be saved.
    assert_equal_states(optimizer.state_dict(), alone.state_dict())


def orders_that_change(_: RankContext) -> None:
    """Of a parameter's elements in memory, between steps, as ``to(memory_format=)`` does it."""
    for dtype, layout in [*LAYOUTS, *SMALL_LAYOUTS]:
        torch.manual_seed(0)
        start = torch.randn(64, 32, 3, 3).to(dtype)
        ours, theirs = ([start.clone().requires_grad_()] for _ in range(2))
        mine = offload.AdamW(ours, lr=0.01, **layout, shard_over=world())
        alone = offload.AdamW(theirs, lr=0.01, **layout)
        last = torch.contiguous_format
        for step, order in enumerate([last, torch.channels_last, torch.channels_last, last]):
            for parameter in (*ours, *theirs):
                parameter.data = parameter.data.contiguous(memory_format=order)
            # 8-bit states are quantised anew: at once, or at the next step.
            if step > 0 and layout.get("states") != "8bit":
                assert_equal_states(mine.state_dict(), alone.state_dict())
            give_gradients([ours, theirs], step)
            mine.step()
            alone.step()
            assert_equal(ours, theirs)
        # What the last order shared out.
        assert_equal_states(mine.state_dict(), alone.state_dict())

    ours[0].data = ours[0].data.contiguous(memory_format=torch.channels_last)
    mine.state[ours[0]]["exp_avg"] = mine.state[ours[0]]["exp_avg"].clone()
    with pytest.raises(ValueError, match=r"strides .* have changed .* a step in between"):
        mine.step()


def raw_states_of_another_order(_: RankContext) -> None:
    """8-bit states as they lie in memory, whose blocks are other ones in another order."""
    torch.manual_seed(0)
    start = torch.randn(64, 32, 3, 3)
    first = [start.clone().requires_grad_()]
    saving = offload.AdamW(first, states="8bit")
    first[0].grad = torch.randn(start.shape) * torch.logspace(-3, 3, start.numel()).view(
        start.shape
    )
    saving.step()
    raw = {**saving.state_dict(), "state": {0: dict(saving.state[first[0]])}}
    for order in (torch.contiguous_format, torch.channels_last):
        ours, theirs = ([start.clone(memory_format=order).requires_grad_()] for _ in range(2))
        mine = offload.AdamW(ours, states="8bit", shard_over=world())
        alone = offload.AdamW(theirs, states="8bit")
        for optimizer in (mine, alone):
            optimizer.load_state_dict(raw)
        assert_equal_states(mine.state_dict(), alone.state_dict())


def orders_that_differ(context: RankContext) -> None:
    ours = [torch.ones(64, 32, 3, 3, requires_grad=True)]
    optimizer = offload.AdamW(ours, shard_over=world())
    give_gradients([ours], 0)
    optimizer.step()
    before, states = ours[0].detach().clone(), optimizer.state_dict()
    ours[0].grad = None
    if context.rank == 0:
        ours[0].data = ours[0].data.contiguous(memory_format=torch.channels_last)
    give_gradients([ours], 1)
    with pytest.raises(RuntimeError, match="differ in their order of a parameter's elements"):
        optimizer.step()
    assert torch.equal(ours[0], before)
    assert_equal_states(optimizer.state_dict(), states)
    # What the refused step has made anew on one rank is in nobody's way.
    ours[0].data = ours[0].data.contiguous()
    optimizer.load_state_dict(states)
    assert_equal_states(optimizer.state_dict(), states)
    ours[0].data = ours[0].data.contiguous(memory_format=torch.channels_last)
    optimizer.step()
