"""`tidegate.offload` in place of `torch.optim`, the script otherwise unmodified.

The ranks train with the offloaded optimizer, the oracle with torch's in one process on the union of
the ranks' samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from tidegate import offload
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import RATE, UNITS, Net, Recipe
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    compare,
    each_step,
    local_parameters,
    local_shards,
)
from tests.integration.rows.ddp import ddp
from tests.integration.rows.fsdp1 import fsdp1
from tests.integration.rows.fsdp2 import FULL, fsdp2, shard
from tests.integration.rows.fsdp2_features import OFFLOAD
from tests.integration.rows.tensor_parallel import tensor_parallel
from tests.support.workers import RankContext


@dataclass(frozen=True)
class Setting(Recipe):
    """`rates`: whether a scheduler changes rate and momentum at each step. `here`: whether this is
    for a rank, which offloads, and not for the oracle. `fused_norm`: the rank clips in its step,
    over a group where parameters are sharded otherwise than as DTensors.
    """

    rates: bool = False
    here: bool = False
    fused_norm: bool = False
    norm_group: dist.ProcessGroup | None = None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        family, options = torch.optim, {}
        if self.here:
            family = offload
            if self.fused_norm:
                options = {"max_grad_norm": self.max_norm, "norm_group": self.norm_group}
        optimizer: torch.optim.Optimizer
        if self.adamw:
            optimizer = family.AdamW(model.parameters(), lr=RATE / 10, **options)
        else:
            optimizer = family.SGD(model.parameters(), lr=RATE, momentum=0.9, **options)
        if self.rates:
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=RATE, total_steps=self.steps + 1
            )
            optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer


Training = Callable[[nn.Module, int, Recipe], object]


def offloaded(train: Training = models.train, norm_group=lambda: None) -> Training:
    """`train`, for which `norm_group` is called if the rank clips in its step."""

    def run(model: nn.Module, rank: int, recipe: Recipe) -> None:
        train(model, rank, dataclasses.replace(recipe, here=True, norm_group=norm_group()))  # type: ignore[call-arg]

    return run


def _until_last(model: nn.Module) -> Callable[[bool], AbstractContextManager[object]]:
    """What keeps gradients on the rank until the last micro-batch of a step."""

    def micro_batch(last: bool) -> AbstractContextManager[object]:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        elif isinstance(model, FullyShardedDataParallel | DistributedDataParallel) and not last:
            return model.no_sync()
        return contextlib.nullcontext()

    return micro_batch


def _clips(model: nn.Module, norm: float) -> object:
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(norm)
    return nn.utils.clip_grad_norm_(model.parameters(), norm)


def _accumulate_and_clip(model: nn.Module, rank: int, recipe: Recipe) -> None:
    models.train(
        model,
        rank,
        recipe,
        micro_batch=_until_last(model),
        clip=lambda norm: _clips(model, norm),
    )


def _spoil(model: nn.Module) -> None:
    """One element of the gradients of one rank; of all ranks where they are the same."""
    sharded = not isinstance(model, DistributedDataParallel)
    if not sharded or dist.get_rank() == dist.get_world_size() - 1:
        values = (value for value in model.parameters() if value.grad is not None)
        parts = (v.grad.to_local() if isinstance(v.grad, DTensor) else v.grad for v in values)
        part = next(part for part in parts if part is not None and part.numel())
        part.view(-1)[-1] = float("inf")


def _scale(unscales: bool) -> Training:
    """With GradScaler, whose scale changes at each step. After the first step comes a gradient with
    an infinite element, in the shard of one rank, which must leave no trace. `unscales`: clips by
    torch's function.
    """

    def run(model: nn.Module, rank: int, recipe: Recipe) -> None:
        optimizer = recipe.optimizer(model)
        sharded = isinstance(model, FullyShardedDataParallel)
        kind = ShardedGradScaler if sharded else torch.amp.GradScaler
        scaler = kind("cpu", init_scale=2.0**9, growth_interval=1)
        for step in (0, -1, *range(1, recipe.steps)):
            x, y = models.batch(abs(step), rank, recipe.dtype)
            scaler.scale(models.loss_of(model(x), y)).backward()
            if step == -1:
                _spoil(model)
            if unscales:
                scaler.unscale_(optimizer)
                _clips(model, recipe.max_norm or 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 2.0 ** (9 + recipe.steps - 1), scaler.get_scale()

    return run


def _hand_over(model: nn.Module, rank: int, recipe: Recipe) -> None:
    """One optimizer of torch's and its schedule; the engine does some of its steps."""
    optimizer = recipe.optimizer(model)
    taken = None
    for step in range(recipe.steps):
        if step == 1:
            taken = offload.offload_states(optimizer)
        if step == recipe.steps - 1:
            assert taken is not None
            taken.give_back()
        x, y = models.batch(step, rank, recipe.dtype)
        models.loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# --- networks ------------------------------------------------------------------------------------


class Tied(Net):
    """Two modules share a weight; another weight and a bias are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(models.FEATURES, models.WIDTH)
        self.again.weight = self.stem.weight
        self.head.bias.requires_grad_(False)
        self.again.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) + self.again(torch.tanh(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


# --- 16 bits -------------------------------------------------------------------------------------


def _bf16_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    x, y = models.batch(step, rank, torch.float32)
    return models.loss_of(model(x.bfloat16()), y)


@cache
def _bf16_oracle(world_size: int) -> dict[str, torch.Tensor]:
    recipe = Setting(dtype=torch.bfloat16, here=True)
    return models.rank_by_rank(world_size, _bf16_loss, models.average, recipe)


def _masters(context: RankContext) -> Outcome:
    """Shards of 16-bit parameters, bit for bit what the same optimizer does in one process."""
    n = context.world_size
    recipe = Setting(dtype=torch.bfloat16, here=True)
    model = recipe.build()
    shard(model, init_device_mesh("cpu", (n,)), offload_policy=OFFLOAD)
    optimizer = recipe.optimizer(model)
    with Meter() as meter:
        for step in range(recipe.steps):
            _bf16_loss(model, step, context.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
    for value in model.parameters():
        master = optimizer.state[value]["master_param"]
        assert isinstance(master, DTensor)
        assert isinstance(value, DTensor)
        assert master.placements == value.placements
        assert master.dtype == torch.float32
        assert torch.equal(master.to_local().bfloat16(), value.to_local())
    wanted = local_shards(_bf16_oracle(n), n, context.rank)
    return compare(local_parameters(model), wanted, meter.used)


def _written(context: RankContext) -> Outcome:
    """A few elements in the middle of a shard that somebody writes stay what they are."""
    mesh = init_device_mesh("cpu", (context.world_size,))
    generator = torch.Generator().manual_seed(3)
    full = torch.randn(40, 13, generator=generator).bfloat16()
    value = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
    optimizer = offload.AdamW([value], lr=0.0)
    with Meter() as meter:
        for row in (None, 7, 29):
            version = value._version
            if row is not None:
                full[row] = 0
                with torch.no_grad():
                    value.copy_(distribute_tensor(full, mesh, [Shard(0)]))
            value.grad = torch.ones_like(value)
            optimizer.step()
            assert value._version > version + (row is not None)
        found = {"value": value.detach().full_tensor()}
    return compare(found, {"value": full}, meter.used)


# --- DTensors ------------------------------------------------------------------------------------


_SHAPE = (7, 5)
#: Of a parameter and of its gradient, on a 2 x 2 mesh.
_PLACEMENTS: tuple[tuple[tuple[Placement, ...], tuple[Placement, ...]], ...] = (
    ((Shard(0), Replicate()), (Shard(0), Partial())),
    ((Replicate(), Shard(1)), (Partial(), Shard(1))),
    ((Shard(0), Shard(1)), (Replicate(), Replicate())),
    ((Shard(0), Shard(0)), (Shard(0), Partial())),
    ((Replicate(), Replicate()), (Partial(), Replicate())),
)


def _spread(full: torch.Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """`full`, where Partial in parts of a quarter and three quarters."""
    whole = [Replicate() if placement.is_partial() else placement for placement in placements]
    local = distribute_tensor(full, mesh, whole).to_local().clone()
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            local = local * (0.25, 0.75)[mesh.get_local_rank(dim)]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
    )


def _placements(context: RankContext) -> Outcome:
    """The norm of all counts each element once, and gradients come where their parameters are."""
    mesh = init_device_mesh("cpu", (2, 2))
    generator = torch.Generator().manual_seed(5)
    plain = [torch.randn(_SHAPE, generator=generator).requires_grad_() for _ in _PLACEMENTS]
    spread = [
        nn.Parameter(_spread(full.detach(), mesh, placements))
        for full, (placements, _) in zip(plain, _PLACEMENTS, strict=True)
    ]
    arguments = {"lr": RATE, "momentum": 0.9}
    theirs = torch.optim.SGD(plain, **arguments)
    ours = offload.SGD(spread, **arguments, max_grad_norm=1.0)
    with Meter() as meter:
        for _ in range(models.STEPS):
            for full, part, (_, placements) in zip(plain, spread, _PLACEMENTS, strict=True):
                full.grad = torch.randn(_SHAPE, generator=generator)
                part.grad = _spread(full.grad, mesh, placements)
            norm = float(nn.utils.clip_grad_norm_(plain, 1.0))
            theirs.step()
            ours.step()
            assert ours.grad_norm is not None
            assert abs(ours.grad_norm / norm - 1) < 1e-6, (ours.grad_norm, norm)
        found = {str(i): part.detach().full_tensor() for i, part in enumerate(spread)}
    for part in spread:
        assert ours.state[part]["momentum_buffer"].placements == part.placements
    return compare(found, {str(i): full.detach() for i, full in enumerate(plain)}, meter.used)


# --- rows ----------------------------------------------------------------------------------------

ADAMW_TOLERANCE = 5e-4
_ONE = True  # Ranks of world size 1 are started for these alone.
_BUSY = Setting(micro_batches=3, max_norm=0.05, rates=True)
_FUSED = Setting(max_norm=0.05, fused_norm=True)
_CLIPPED = Setting(max_norm=0.05)
_SCALED_STEPS = models.STEPS + 1
_ACCUMULATED = 3 * (2 * UNITS - 1)
_HYBRID = {"mesh_shape": (2, 2), "sharding_strategy": ShardingStrategy.HYBRID_SHARD}


def _world() -> dist.ProcessGroup | None:
    return dist.group.WORLD


def _shards() -> dist.ProcessGroup:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")).get_group("s")


def _scaled_calls(**calls: int) -> dict[str, int]:
    return {op: count * _SCALED_STEPS for op, count in calls.items()}


def _plain_loop(recipe: Setting, train: Training):
    def run(context: RankContext) -> Outcome:
        model = recipe.build()
        with Meter() as meter:
            offloaded(train)(model, context.rank, recipe)
        found = {name: value.detach() for name, value in model.named_parameters()}
        return compare(found, models.union_oracle(1, recipe), meter.used)

    return run


ROWS = (
    Row(
        "offload_loop_busy",
        1,
        _plain_loop(_BUSY, _accumulate_and_clip),
        "offload.SGD in a plain loop: accumulation, clip_grad_norm_, OneCycleLR",
        {},
        slow=_ONE,
    ),
    Row(
        "offload_loop_scaled",
        1,
        _plain_loop(_FUSED, _scale(unscales=False)),
        "offload.SGD in a plain loop: GradScaler, max_grad_norm, an infinite gradient",
        {},
        slow=_ONE,
    ),
    Row(
        "offload_ddp_busy",
        2,
        ddp(_BUSY, offloaded(_accumulate_and_clip)),
        "offload.SGD under DDP: accumulation, clip_grad_norm_, OneCycleLR",
        {**each_step(all_reduce=1), "broadcast": 2},
    ),
    Row(
        "offload_ddp_scaled",
        3,
        ddp(_FUSED, offloaded(_scale(unscales=False))),
        "offload.SGD under DDP: GradScaler, max_grad_norm, an infinite gradient",
        {**_scaled_calls(all_reduce=1), "broadcast": 2},
    ),
    Row(
        "offload_fsdp2_w1",
        1,
        fsdp2(recipe=_BUSY, train=offloaded(_accumulate_and_clip), offload_policy=OFFLOAD),
        "offload.SGD under FSDP2 of one rank",
        {},
        may=frozenset({"all_gather", "reduce_scatter", "all_reduce"}),
        slow=_ONE,
    ),
    Row(
        "offload_fsdp2_busy",
        2,
        fsdp2(recipe=_BUSY, train=offloaded(_accumulate_and_clip), offload_policy=OFFLOAD),
        "offload.SGD, CPUOffloadPolicy: accumulation, clip_grad_norm_, OneCycleLR",
        each_step(all_gather=_ACCUMULATED, reduce_scatter=UNITS, all_reduce=1),
    ),
    Row(
        "offload_fsdp2_scaled",
        3,
        fsdp2(recipe=_FUSED, train=offloaded(_scale(unscales=False))),
        "offload.SGD, shards on the CPU: GradScaler, max_grad_norm, an infinite gradient",
        _scaled_calls(all_gather=2 * UNITS - 1, reduce_scatter=UNITS),
        some=frozenset({"all_reduce"}),
    ),
    Row(
        "offload_fsdp2_w4",
        4,
        fsdp2(recipe=_CLIPPED, train=offloaded(_scale(unscales=True)), offload_policy=OFFLOAD),
        "offload.SGD, empty shards: GradScaler, clip_grad_norm_, an infinite gradient",
        _scaled_calls(all_gather=2 * UNITS - 1, reduce_scatter=UNITS),
        some=frozenset({"all_reduce"}),
    ),
    Row(
        "offload_fsdp2_adamw",
        4,
        fsdp2(recipe=Setting(adamw=True, max_norm=0.05, fused_norm=True), train=offloaded()),
        "offload.AdamW, empty shards: max_grad_norm",
        {**FULL, **each_step(all_reduce=1)},
        tolerance=ADAMW_TOLERANCE,
    ),
    Row(
        "offload_fsdp2_hsdp",
        4,
        fsdp2(recipe=_FUSED, train=offloaded(), mesh_shape=(2, 2), offload_policy=OFFLOAD),
        "offload.SGD, HSDP: max_grad_norm counts shards once",
        {**FULL, **each_step(all_reduce=UNITS + 1)},
    ),
    Row(
        "offload_fsdp2_tied",
        3,
        fsdp2(recipe=dataclasses.replace(_FUSED, network=Tied), train=offloaded()),
        "offload.SGD: tied and frozen parameters, max_grad_norm",
        {**FULL, **each_step(all_reduce=1)},
    ),
    Row(
        "offload_fsdp2_hand_over",
        2,
        fsdp2(recipe=Setting(rates=True), train=_hand_over, offload_policy=OFFLOAD),
        "offload_states of torch's SGD, OneCycleLR; given back for the last step",
        FULL,
    ),
    Row(
        "offload_fsdp1_hand_over",
        3,
        fsdp1(recipe=Setting(rates=True), train=_hand_over, use_orig_params=True),
        "the same under FSDP1, use_orig_params",
        FULL,
    ),
    *(
        Row(
            f"offload_fsdp2_bf16_w{n}",
            n,
            _masters,
            "offload.SGD: bf16 parameters, sharded fp32 masters, against one process",
            FULL,
            tolerance=0.0,
        )
        for n in (2, 3, 4)
    ),
    Row(
        "offload_written",
        2,
        _written,
        "offload.AdamW: masters follow a few elements of a bf16 DTensor that are written",
        {},
        some=frozenset({"all_gather", "scatter"}),
        tolerance=0.0,
    ),
    Row(
        "offload_fsdp1_busy",
        2,
        fsdp1(recipe=_BUSY, train=offloaded(_accumulate_and_clip)),
        "offload.SGD, flat parameters: accumulation, clip_grad_norm_, OneCycleLR",
        each_step(all_gather=_ACCUMULATED, reduce_scatter=UNITS, all_reduce=1),
    ),
    Row(
        "offload_fsdp1_orig_params",
        3,
        fsdp1(recipe=_BUSY, train=offloaded(_accumulate_and_clip), use_orig_params=True),
        "offload.SGD, use_orig_params: accumulation, clip_grad_norm_, OneCycleLR",
        each_step(all_gather=_ACCUMULATED, reduce_scatter=UNITS, all_reduce=1),
    ),
    Row(
        "offload_fsdp1_scaled",
        3,
        fsdp1(recipe=_FUSED, train=offloaded(_scale(unscales=False), _world)),
        "offload.SGD, flat parameters: ShardedGradScaler, max_grad_norm, an infinite shard",
        {
            **_scaled_calls(all_gather=2 * UNITS - 1, reduce_scatter=UNITS),
            "all_reduce": models.STEPS + _SCALED_STEPS,  # norms, and what the scaler found
        },
    ),
    Row(
        "offload_fsdp1_w4",
        4,
        fsdp1(
            recipe=_CLIPPED,
            train=offloaded(_scale(unscales=True)),
            use_orig_params=True,
        ),
        "offload.SGD, use_orig_params: ShardedGradScaler, clip_grad_norm_, an infinite shard",
        _scaled_calls(all_gather=2 * UNITS - 1, reduce_scatter=UNITS, all_reduce=2),
    ),
    Row(
        "offload_fsdp1_hybrid",
        4,
        fsdp1(recipe=_FUSED, train=offloaded(norm_group=_shards), **_HYBRID),
        "offload.SGD, HYBRID_SHARD: max_grad_norm over the group of the shards",
        {**FULL, **each_step(all_reduce=UNITS + 1)},
    ),
    Row(
        "offload_fsdp1_tied",
        2,
        fsdp1(
            recipe=dataclasses.replace(_BUSY, network=Tied),
            train=offloaded(_accumulate_and_clip),
            use_orig_params=True,
        ),
        "offload.SGD, use_orig_params: tied and frozen parameters",
        each_step(all_gather=_ACCUMULATED, reduce_scatter=UNITS, all_reduce=1),
    ),
    Row(
        "offload_placements",
        4,
        _placements,
        "offload.SGD of DTensors of each placement with gradients of others: max_grad_norm",
        {},
        some=frozenset({"all_gather", "all_reduce"}),
        may=frozenset({"broadcast", "reduce_scatter", "scatter"}),
    ),
    Row(
        "offload_tp_fsdp2_2x2",
        4,
        tensor_parallel(2, torch.float32, lambda model: Setting(here=True).optimizer(model)),
        "offload.SGD: every parallel style, and FSDP2",
        {},
        some=frozenset({"all_gather", "all_reduce", "reduce_scatter"}),
    ),
)
