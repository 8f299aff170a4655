"""Checkpoints of `tidegate.offload`: to other numbers of ranks, and both ways with `torch.optim`.

Saved and loaded by the offloaded AdamW, saved by it and loaded by torch's, saved by torch's and
loaded by it: all states must come back as the bits that were saved.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from tidegate import offload
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from tests.integration import models
from tests.integration.models import RATE, STEPS, Recipe
from tests.integration.rows.base import (
    Meter,
    Outcome,
    Row,
    Tensors,
    compare,
    digest_of,
    greatest_difference,
)
from tests.integration.rows.checkpoint import join
from tests.integration.rows.fsdp1 import wrap
from tests.integration.rows.fsdp2 import shard
from tests.support.counters import Traffic
from tests.support.pools import PoolKeeper
from tests.support.workers import RankContext

OURS, TORCHS = "ours", "torchs"
_FAMILIES = {OURS: offload, TORCHS: torch.optim}
WAYS = ((OURS, OURS), (OURS, TORCHS), (TORCHS, OURS))
BF16 = torch.bfloat16


def _adamw(family: str, model: nn.Module, **layout: str) -> Optimizer:
    """`layout`: keywords that only the offloaded one has."""
    keywords = layout if family == OURS else {}
    optimizer: Optimizer = _FAMILIES[family].AdamW(model.parameters(), lr=RATE / 10, **keywords)
    return optimizer


def _network(dtype: torch.dtype, other: bool) -> nn.Module:
    """The usual one; `other`: with other contents, for what is loaded must not be there."""
    model = models.build(dtype)
    if other:
        torch.manual_seed(99)
        for value in model.parameters():
            nn.init.normal_(value)
    return model


# --- FSDP2 ---------------------------------------------------------------------------------------


def _sharded(context: RankContext, dtype: torch.dtype, other: bool = False) -> nn.Module:
    model = _network(dtype, other)
    shard(model, init_device_mesh("cpu", (context.world_size,)))
    return model


def _parts(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """This rank's parts of parameters and saved states, which must be sharded alike."""
    parts: Tensors = {}
    states = optimizer.state_dict()["state"]
    for index, (name, value) in enumerate(model.named_parameters()):
        assert isinstance(value, DTensor), name
        parts[name] = value.to_local().detach().clone()
        state = states[index]
        assert state["step"].shape == ()
        assert state["step"].dtype == torch.float32
        assert state["step"].device.type == "cpu"
        for key in state.keys() - {"step"}:
            assert isinstance(state[key], DTensor), (name, key)
            assert state[key].placements == value.placements, (name, key)
            assert state[key].device_mesh == value.device_mesh, (name, key)
            parts[f"{name}.{key}"] = state[key].to_local().detach().clone()
        parts[f"{name}.step"] = state["step"].detach().reshape(1).clone()
    return parts


def _saves(
    context: RankContext, path: str, dtype: torch.dtype, layout: dict[str, str]
) -> tuple[dict, Traffic | None]:
    """Trains and saves by each family; this rank's parts of what was saved."""
    saved = {}
    with Meter() as meter:
        for family in _FAMILIES:
            model = _sharded(context, dtype)
            optimizer = _adamw(family, model, **layout)
            models.train(model, context.rank, Recipe(dtype=dtype), optimizer=optimizer)
            state, optimizer_state = get_state_dict(model, optimizer)
            content = {"model": state, "optimizer": optimizer_state}
            dcp.save(content, checkpoint_id=f"{path}/{family}")
            saved[family] = _parts(model, optimizer)
    return saved, meter.used


def _loads(
    context: RankContext,
    path: str,
    dtype: torch.dtype,
    layout: dict[str, str],
    ways: tuple[tuple[str, str], ...],
) -> dict[tuple[str, str], Tensors]:
    """Loads in each way into an optimizer that has no states yet; this rank's parts of it."""
    loaded = {}
    for saver, loader in ways:
        model = _sharded(context, dtype, other=True)
        before = [value.detach().clone().to_local() for value in model.parameters()]
        optimizer = _adamw(loader, model, **layout)
        state, optimizer_state = get_state_dict(model, optimizer)
        # torch has made the states by a step of rate 0.
        for was, value in zip(before, model.parameters(), strict=True):
            assert torch.equal(was, value.to_local())
            assert value.grad is None
        dcp.load(
            {"model": state, "optimizer": optimizer_state},
            checkpoint_id=f"{path}/{saver}",
            # torch's have no masters.
            planner=DefaultLoadPlanner(allow_partial_load=(saver, dtype) == (TORCHS, BF16)),
        )
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
        parts = loaded[saver, loader] = _parts(model, optimizer)
        # The loaded weights are what the next step begins with, whatever master was left.
        optimizer.param_groups[0]["lr"] = 0.0
        _loss(model).backward()
        optimizer.step()
        for name, value in model.named_parameters():
            assert torch.equal(value.to_local(), parts[name]), name
    return loaded


def _loss(model: nn.Module) -> torch.Tensor:
    x, y = models.batch(0, 0, next(model.parameters()).dtype)
    return models.loss_of(model(x), y)


def _without_steps(parts: Tensors) -> Tensors:
    assert all(int(value) == STEPS for key, value in parts.items() if key.endswith(".step"))
    return {key: value for key, value in parts.items() if not key.endswith(".step")}


def _reshard(
    saved_at: int,
    loaded_at: int,
    dtype: torch.dtype,
    ways: tuple[tuple[str, str], ...],
    **layout: str,
):
    def drive(pools: PoolKeeper) -> list[Outcome]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as path:
            saved = pools.get(saved_at).run(_saves, path, dtype, layout)
            loaded = pools.get(loaded_at).run(_loads, path, dtype, layout, ways)
        greatest, digest = 0.0, {}
        for saver, loader in ways:
            wanted = join([_without_steps(parts[saver]) for parts, _ in saved])
            found = join([_without_steps(parts[saver, loader]) for parts in loaded])
            if (saver, dtype) == (TORCHS, BF16):
                found = {key: value for key, value in found.items() if key in wanted}
            greatest = max(greatest, greatest_difference(found, wanted))
            digest.update({f"{saver}>{loader}.{key}": value for key, value in found.items()})
        return [Outcome(greatest, digest_of(digest), used) for _, used in saved]

    return drive


def _from_rank_zero(dtype: torch.dtype, ways: tuple[tuple[str, str], ...]):
    """Whole states on rank 0, broadcast from there into an optimizer that has none."""

    def run(context: RankContext) -> Outcome:
        found: Tensors = {}
        wanted: Tensors = {}
        with Meter() as meter:
            for saver, loader in ways:
                model = _sharded(context, dtype)
                optimizer = _adamw(saver, model)
                recipe = Recipe(dtype=dtype)
                models.train(model, context.rank, recipe, optimizer=optimizer)
                whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
                state = get_model_state_dict(model, options=whole)
                optimizer_state = get_optimizer_state_dict(model, optimizer, options=whole)
                assert bool(optimizer_state) == (context.rank == 0)

                other = _sharded(context, dtype, other=True)
                loaded = _adamw(loader, other)
                spread = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
                set_model_state_dict(other, state, options=spread)
                set_optimizer_state_dict(other, loaded, optimizer_state, options=spread)
                found.update(_named(f"{saver}>{loader}", _parts(other, loaded)))
                wanted.update(_named(f"{saver}>{loader}", _parts(model, optimizer)))
                if saver == loader:  # They go on alike, bit for bit.
                    models.train(model, context.rank, recipe, optimizer=optimizer)
                    models.train(other, context.rank, recipe, optimizer=loaded)
                    found.update(_named("later", _parts(other, loaded)))
                    wanted.update(_named("later", _parts(model, optimizer)))
        return compare(found, wanted, meter.used)

    return run


def _named(prefix: str, parts: Tensors) -> Tensors:
    return {f"{prefix}.{key}": value for key, value in parts.items()}


# --- FSDP1 ---------------------------------------------------------------------------------------


@contextmanager
def _whole(model: FullyShardedDataParallel) -> Iterator[None]:
    # Of tensors on the CPU, torch's default `offload_to_cpu` copies nothing: with use_orig_params
    # all states are then in one buffer, where only the last of them is left (torch 2.13).
    configs = FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = StateDictType.FULL_STATE_DICT
        with FullyShardedDataParallel.state_dict_type(model, kind, *configs):
            yield


def _whole_states(model: FullyShardedDataParallel, optimizer: Optimizer) -> dict[str, Any]:
    with _whole(model):
        return FullyShardedDataParallel.optim_state_dict(model, optimizer)


def _flat(state: dict[str, Any]) -> Tensors:
    return {
        f"{name}.{key}": value.clone()
        for name, entries in state["state"].items()
        for key, value in entries.items()
    }


def _saves_flat(context: RankContext, path: str) -> tuple[dict[str, Tensors], Traffic | None]:
    saved = {}
    with Meter() as meter:
        for family in _FAMILIES:
            model = wrap(_network(torch.float32, other=False))
            optimizer = _adamw(family, model)
            models.train(model, context.rank, optimizer=optimizer)
            state = _whole_states(model, optimizer)
            saved[family] = _flat(state)
            if context.rank == 0:
                torch.save(state, Path(path, family))
    return saved, meter.used


def _loads_flat(context: RankContext, path: str, **options: Any) -> dict[tuple[str, str], Tensors]:
    loaded = {}
    for saver, loader in WAYS:
        model = wrap(_network(torch.float32, other=True), **options)
        optimizer = _adamw(loader, model)
        state = torch.load(Path(path, saver), weights_only=True)
        with _whole(model):
            own = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, state)
        optimizer.load_state_dict(own)
        loaded[saver, loader] = _flat(_whole_states(model, optimizer))
        models.train(model, context.rank, optimizer=optimizer)
    return loaded


def _reshard_flat(saved_at: int, loaded_at: int, use_orig_params: bool):
    def drive(pools: PoolKeeper) -> list[Outcome]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as path:
            saved = pools.get(saved_at).run(_saves_flat, path)
            loaded = pools.get(loaded_at).run(_load_flat_as, path, use_orig_params)
        greatest = 0.0
        for (saver, _), found in loaded[0].items():
            greatest = max(greatest, greatest_difference(found, saved[0][0][saver]))
        digest = digest_of(loaded[0][OURS, OURS])
        return [Outcome(greatest, digest, used) for _, used in saved]

    return drive


def _load_flat_as(context: RankContext, path: str, use_orig_params: bool) -> dict:
    return _loads_flat(context, path, use_orig_params=use_orig_params)


# --- rows ----------------------------------------------------------------------------------------


def _row(
    name: str,
    saved_at: int,
    loaded_at: int,
    drive: Callable[[PoolKeeper], list[Outcome]],
    shows: str,
) -> Row:
    return Row(
        f"offload_{name}_{saved_at}_to_{loaded_at}",
        saved_at,
        None,
        shows,
        calls={},
        some=frozenset({"all_gather", "reduce_scatter"}),
        may=frozenset({"all_reduce", "broadcast", "gather", "scatter"}),
        tolerance=0.0,
        drive=drive,
        label=f"{saved_at}>{loaded_at}",
    )


_SHOWS = "offload.AdamW and torch's, both ways:"

ROWS = (
    *(
        _row(
            "dcp",
            2,
            n,
            _reshard(2, n, torch.float32, WAYS),
            f"{_SHOWS} dcp.save of FSDP2 at 2 ranks, dcp.load at {n}",
        )
        for n in (4, 1)
    ),
    _row(
        "dcp_bf16",
        2,
        4,
        _reshard(2, 4, BF16, ((OURS, OURS), (TORCHS, OURS))),
        "offload.AdamW with bf16 parameters: fp32 states and masters, and from torch's without",
    ),
    _row(
        "dcp_compressed",
        2,
        4,
        _reshard(2, 4, BF16, ((OURS, OURS),), master="split", states="bf16"),
        "offload.AdamW with bf16 parameters, split masters, bf16 states: dcp.save, dcp.load",
    ),
    *(
        _row(
            "fsdp1_state",
            2,
            n,
            _reshard_flat(2, n, use_orig_params=n > 1),
            f"{_SHOWS} FSDP.optim_state_dict at 2 ranks, loaded at {n}",
        )
        for n in (4, 1)
    ),
    *(
        Row(
            f"offload_full_state{suffix}",
            3,
            _from_rank_zero(dtype, ways),
            f"{whose} full_state_dict, cpu_offload, broadcast_from_rank0",
            calls={},
            some=frozenset({"all_gather", "broadcast", "reduce_scatter"}),
            may=frozenset({"all_reduce"}),
            tolerance=0.0,
        )
        for suffix, dtype, ways, whose in (
            ("", torch.float32, WAYS, _SHOWS),
            ("_bf16", BF16, ((OURS, OURS),), "offload.AdamW with bf16 parameters:"),
        )
    ),
)
