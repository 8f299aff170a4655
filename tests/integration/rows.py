"""The rows of the integration table: one way to train each, run inside the ranks.

Every row trains five steps of SGD on different samples per rank and is compared with one process
on the union of the samples (or, where the dtypes are mixed, with one process that does what the
ranks do). `python -m tests.integration.table` prints them; the tests assert them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.integration import models
from tests.integration.models import STEPS, Block
from tests.support.counters import Traffic, traffic
from tests.support.workers import RankContext

FP32, FP64 = torch.float32, torch.float64
UNITS = 3  # two blocks and the root
FP32_TOLERANCE = 2e-6
FP64_TOLERANCE = 1e-12


@dataclass
class Outcome:
    """What one rank found."""

    difference: float
    digest: str
    traffic: Traffic | None


@dataclass(frozen=True)
class Row:
    """One way to train. `per_step`: exact calls per step and rank of each operation."""

    name: str
    world_size: int
    run: Callable[[RankContext], Outcome]
    per_step: dict[str, int] = field(default_factory=dict)
    tolerance: float = FP32_TOLERANCE


Parameters = dict[str, torch.Tensor]


def _compare(found: Parameters, wanted: Parameters, before: Traffic | None) -> Outcome:
    used = None
    now = traffic()
    if now is not None and before is not None:
        used = now.since(before)
    assert found.keys() == wanted.keys(), (sorted(found), sorted(wanted))
    digest = hashlib.sha256()
    greatest = 0.0
    for name, value in found.items():
        target = wanted[name]
        assert value.shape == target.shape, (name, value.shape, target.shape)
        if value.numel():
            gap = (value.double() - target.double()).abs().max()
            greatest = max(greatest, float("inf") if gap.isnan() else float(gap))
        digest.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return Outcome(greatest, digest.hexdigest(), used)


def local_shards(full: Parameters, shards: int, index: int) -> Parameters:
    """The part of each parameter that `fully_shard` leaves on one rank (torch.chunk of dim 0)."""
    parts = {}
    for name, value in full.items():
        chunks = torch.chunk(value, shards, dim=0)
        parts[name] = (
            chunks[index] if index < len(chunks) else value.new_empty((0, *value.shape[1:]))
        )
    return parts


def local_parameters(model: nn.Module) -> Parameters:
    """This rank's parts of a `fully_shard` model; nothing is communicated."""
    found = {}
    for name, value in model.named_parameters():
        assert isinstance(value, DTensor), name
        found[name] = value.to_local().detach()
    return found


# --- FSDP1 and DDP --------------------------------------------------------------------------------


def _fsdp1(strategy: ShardingStrategy, mesh_shape: tuple[int, ...] | None = None):
    def run(context: RankContext) -> Outcome:
        placement = {}
        if mesh_shape is not None:
            names = ("replicate", "shard")
            placement["device_mesh"] = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations that concern the strategies, not us
            model = FullyShardedDataParallel(
                models.build(),
                sharding_strategy=strategy,
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                device_id=torch.device("cpu"),
                **placement,
            )
            before = traffic()
            models.train(model, context.rank)
            after = traffic()
            with FullyShardedDataParallel.summon_full_params(model):
                found = {name: value.detach().clone() for name, value in model.named_parameters()}
        outcome = _compare(found, models.union_oracle(context.world_size), before)
        if after is not None and before is not None:
            outcome.traffic = after.since(before)  # without the gathers of the comparison
        return outcome

    return run


def _ddp(context: RankContext) -> Outcome:
    model = DistributedDataParallel(models.build())
    before = traffic()
    models.train(model, context.rank)
    found = {name: value.detach() for name, value in model.module.named_parameters()}
    return _compare(found, models.union_oracle(context.world_size), before)


# --- FSDP2 ----------------------------------------------------------------------------------------

Setting = Callable[[nn.Module], None]


def _each(method: str, *arguments: object) -> Setting:
    """Calls a method of FSDPModule on the root and on every block (the setters do not recurse)."""

    def apply(model: nn.Module) -> None:
        for module in (model, *model.blocks):  # type: ignore[misc]
            getattr(module, method)(*arguments)

    return apply


def _backend_memory(model: nn.Module) -> None:
    """Staging buffers come from the backend; FSDP2 falls back silently where it has none."""
    device = torch.device("cpu")
    assert dist.group.WORLD._get_backend(device).supports_tensor_alloc(device)
    _each("set_allocate_memory_from_process_group_for_comm", True)(model)


def _prefetch(model: nn.Module) -> None:
    """All-gathers run asynchronously, one block ahead of the computation."""
    first, second = model.blocks  # type: ignore[misc]
    model._set_unshard_async_op(True)  # type: ignore[operator]
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_backward_prefetch([first])


def shard(model: nn.Module, mesh, **options) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _fsdp2(
    setting: Setting | None = None,
    *,
    mesh_shape: tuple[int, int] | None = None,
    dtype: torch.dtype = FP32,
    divide_factor: float | None = None,
    reshard_after_forward: bool | int | None = None,
):
    def run(context: RankContext) -> Outcome:
        n = context.world_size
        if mesh_shape is None:
            mesh = init_device_mesh("cpu", (n,))
            shards, index = n, context.rank
        else:
            mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard"))
            shards, index = mesh_shape[1], mesh.get_local_rank("shard")
        model = models.build(dtype)
        shard(model, mesh, reshard_after_forward=reshard_after_forward)
        if setting is not None:
            setting(model)
        before = traffic()
        models.train(model, context.rank, dtype)
        # FSDP2 divides the sum of the ranks' gradients by the factor, the union by n.
        scale = n / divide_factor if divide_factor else 1.0
        full = models.union_oracle(n, dtype, scale)
        # The last backward leaves the root sharded; compare what this rank stores.
        return _compare(local_parameters(model), local_shards(full, shards, index), before)

    return run


def _fsdp2_mixed(param_dtype: torch.dtype, reduce_dtype: torch.dtype, setting=None):
    def run(context: RankContext) -> Outcome:
        n = context.world_size
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        model = models.build()
        shard(model, init_device_mesh("cpu", (n,)), mp_policy=policy)
        before = traffic()
        models.train(model, context.rank)
        reduce = models.average
        if reduce_dtype == torch.float16:
            reduce = models.scaled_sum(*_fp16_factors(n))
        full = models.emulated_ranks(n, param_dtype, reduce_dtype, reduce)
        return _compare(local_parameters(model), local_shards(full, n, context.rank), before)

    return run


def _fp16_factors(world_size: int) -> tuple[float, float]:
    """FSDP2's split of the division around an fp16 sum: a power of two near the root, the rest."""
    before = 1
    while world_size % before == 0 and world_size / before > before:
        before *= 2
    return before, world_size / before


_FULL = {"all_gather": 2 * UNITS - 1, "reduce_scatter": UNITS}
_BF16, _FP16 = torch.bfloat16, torch.float16

ROWS = {
    row.name: row
    for row in (
        Row("fsdp1_full_shard", 2, _fsdp1(ShardingStrategy.FULL_SHARD), _FULL),
        Row(
            "fsdp1_shard_grad_op",
            2,
            _fsdp1(ShardingStrategy.SHARD_GRAD_OP),
            {"all_gather": UNITS, "reduce_scatter": UNITS},
        ),
        Row("fsdp1_no_shard", 2, _fsdp1(ShardingStrategy.NO_SHARD), {"all_reduce": UNITS}),
        Row("ddp_w2", 2, _ddp, {"all_reduce": 1}),
        Row("fsdp2_w2", 2, _fsdp2(), _FULL),
        Row("fsdp2_fp64", 2, _fsdp2(dtype=FP64), _FULL, FP64_TOLERANCE),
        Row("fsdp2_backend_memory", 2, _fsdp2(_backend_memory), _FULL),
        Row("fsdp2_async_unshard", 2, _fsdp2(_prefetch), _FULL),
        Row("fsdp2_bf16_fp32_w2", 2, _fsdp2_mixed(_BF16, FP32), _FULL),
        Row("fsdp2_bf16_bf16_w2", 2, _fsdp2_mixed(_BF16, _BF16), _FULL),
        Row("fsdp2_fp16_fp16_w2", 2, _fsdp2_mixed(_FP16, _FP16), _FULL),
        Row("fsdp1_full_shard_w3", 3, _fsdp1(ShardingStrategy.FULL_SHARD), _FULL),
        Row("fsdp2_w3", 3, _fsdp2(), _FULL),
        Row("fsdp2_bf16_bf16_w3", 3, _fsdp2_mixed(_BF16, _BF16), _FULL),
        Row("fsdp2_fp16_fp16_w3", 3, _fsdp2_mixed(_FP16, _FP16), _FULL),
        Row("fsdp2_w4", 4, _fsdp2(), _FULL),
        Row(
            "fsdp1_hybrid_shard",
            4,
            _fsdp1(ShardingStrategy.HYBRID_SHARD, (2, 2)),
            {**_FULL, "all_reduce": UNITS},
        ),
        Row("fsdp2_hsdp", 4, _fsdp2(mesh_shape=(2, 2)), {**_FULL, "all_reduce": UNITS}),
        # Given a size, FSDP2 reshards the root after forward too, and so gathers it again.
        Row(
            "fsdp2_reshard_2",
            4,
            _fsdp2(reshard_after_forward=2),
            {"all_gather": 2 * UNITS, "reduce_scatter": UNITS},
        ),
        Row(
            "fsdp2_premul_sum",
            4,
            _fsdp2(_each("set_gradient_divide_factor", 3.0), divide_factor=3.0),
            _FULL,
        ),
        Row(
            "fsdp2_force_sum",
            4,
            _fsdp2(_each("set_force_sum_reduction_for_comms", True)),
            _FULL,
        ),
        Row("fsdp2_bf16_fp32_w4", 4, _fsdp2_mixed(_BF16, FP32), _FULL),
        Row("fsdp2_bf16_bf16_w4", 4, _fsdp2_mixed(_BF16, _BF16), _FULL),
        Row("fsdp2_fp16_fp16_w4", 4, _fsdp2_mixed(_FP16, _FP16), _FULL),
        Row("ddp_w4", 4, _ddp, {"all_reduce": 1}),
    )
}


def run_row(context: RankContext, name: str) -> Outcome:
    outcome = ROWS[name].run(context)
    dist.barrier()
    return outcome


def expected_calls(row: Row) -> dict[str, int]:
    return {op: calls * STEPS for op, calls in row.per_step.items()}
