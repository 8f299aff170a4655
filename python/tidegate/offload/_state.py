"""The state of one parameter: torch's dictionary, whose tensors lie in the engine's memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tidegate.offload._layout import BLOCK, MASTER, REMAINDER, Layout, StateNames, scale_key
from tidegate.offload._locals import like, local_of

if TYPE_CHECKING:
    from tidegate._shim_types import OffloadParameter


FORKED = (
    "the states of this optimizer lie in memory of the process that this one was forked from, which"
    " goes on to change them; copy what is to be saved before the fork"
    " (copy.deepcopy(optimizer.state_dict())), or make the optimizer after it"
)


class ParameterState(dict[str, Any]):
    """What ``optimizer.state[parameter]`` holds, and the engine's record of it.

    Tensors may be changed in place. Where an entry that the engine knows is replaced or removed the
    record is void; the next step makes a new one of what the dictionary holds then. Entries of
    other names are the user's own. Pickled and copied as the plain dictionary that torch's
    optimizers have.
    """

    __slots__ = ("names", "record")

    def __init__(
        self, entries: Mapping[str, Any], record: OffloadParameter | None, names: StateNames
    ) -> None:
        super().__init__(entries)
        self.record = record
        self.names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _changes(self, keys: Iterable[str]) -> None:
        if not self.names.known.isdisjoint(keys):
            self.record = None

    def __setitem__(self, key: str, value: Any) -> None:
        self._changes((key,))
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._changes((key,))
        super().__delitem__(key)

    def __ior__(self, entries: Any) -> ParameterState:  # type: ignore[override,misc]
        self.update(entries)
        return self

    def clear(self) -> None:
        self._changes(self)
        super().clear()

    def pop(self, *arguments: Any) -> Any:
        self._changes(arguments[:1])
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        self._changes((key,))
        return key, value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._changes((key,))
        return super().setdefault(key, default)

    def update(self, *arguments: Any, **entries: Any) -> None:
        new = dict(*arguments, **entries)
        self._changes(new)
        super().update(new)


def make_state(
    parameter: torch.Tensor,
    names: StateNames,
    count: int,
    layout: Layout,
    saved: Mapping[str, Any],
    initial: float = 0.0,
    make_record: Callable[[str, int], OffloadParameter] | None = None,
) -> ParameterState:
    """State of ``parameter`` in the engine's memory, with the values of ``saved`` where it has any.

    It has the first ``count`` of ``names``, and what else of them ``saved`` has. ``saved`` may hold
    them in float32, 16 bits or 8 bits with scales; what it lacks is ``initial`` (the master: the
    parameter's own value). The user's own entries go along. Raises what :func:`check_saved` does;
    nothing of ``saved`` is kept but those. ``make_record`` makes the engine's record for a kind of
    master and a number of states, where that is not simply one of ``parameter``.
    """
    from tidegate import _backend

    local = local_of(parameter)
    check_saved(parameter, names, layout, saved)
    master = layout.master_of(local)
    needed = names.needed(count, saved)
    if make_record is not None:
        record = make_record(master, len(needed))
    else:
        record = _backend.load_shim().OffloadParameter(
            local, master, layout.states, len(needed), names.counts_steps
        )
        if local is not parameter:
            record.belong_to(parameter)
    if record.step is not None:
        record.step.fill_(float(saved.get("step", 0.0)))
    for index, name in enumerate(needed):
        value = saved.get(name)
        if value is None:
            record.fill_state(index, initial)
        else:
            _import(record, index, local_of(value), saved.get(scale_key(name)))
    record.fresh = not any(saved.get(name) is not None for name in needed)
    if master != "none":
        value = saved.get(MASTER)
        if value is not None:
            record.import_master(local_of(value))
        elif REMAINDER in saved:
            record.master.copy_(local_of(saved[REMAINDER]))
    others = {key: value for key, value in saved.items() if key not in names.known}
    return ParameterState({**entries_of(parameter, names, record), **others}, record, names)


def _import(record: OffloadParameter, index: int, value: torch.Tensor, scales: Any) -> None:
    state = record.states[index]
    if value.dtype != torch.uint8:
        record.import_state(index, value)
    elif state.dtype == torch.uint8 and state.stride() == value.stride():
        state.copy_(value)
        record.scales[index].copy_(scales)
    else:  # Of another layout, or in another order, in which blocks are other ones.
        record.import_state(index, dequantised(index, value, scales))


def dequantised(index: int, value: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The ``index``-th state of its rule, of 8 bits, in float32."""
    from tidegate import _backend

    like_value = torch.empty_strided(value.shape, value.stride())
    raw = _backend.load_shim().OffloadParameter(
        like_value, "none", "8bit", index + 1, False, in_arena=False
    )
    raw.states[index].copy_(value)
    raw.scales[index].copy_(scales)
    return raw.export_state(index)


def entries_of(
    parameter: torch.Tensor, names: StateNames, record: OffloadParameter
) -> dict[str, Any]:
    """What the record has of the state of ``parameter``; the tensors are the record's."""
    entries: dict[str, Any] = {}
    if record.step is not None:
        entries["step"] = record.step
    for index, (name, state) in enumerate(zip(names.names, record.states, strict=False)):
        entries[name] = like(parameter, state)
        if record.scales:
            entries[scale_key(name)] = record.scales[index]
    if record.master is not None:
        kind = MASTER if record.master.dtype == torch.float32 else REMAINDER
        entries[kind] = like(parameter, record.master)
    return entries


def check_process(record: OffloadParameter | None) -> None:
    """RuntimeError for a record of the process that this one was forked from."""
    if record is not None and record.is_of_parent_process:
        raise RuntimeError(FORKED)


def check_saved(
    parameter: torch.Tensor, names: StateNames, layout: Layout, saved: Mapping[str, Any]
) -> None:
    """ValueError unless each entry of ``saved`` fits ``parameter``, TypeError for its dtype."""
    local = local_of(parameter)
    master = layout.master_of(local)
    for name in (*names.names, MASTER, REMAINDER):
        value = saved.get(name)
        if value is None or (name == REMAINDER and master == "none"):
            continue
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{name} must be a tensor; got {type(value).__name__}")
        if value.shape != parameter.shape:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}"
            )
        here = local_of(value)
        if here.shape != local.shape:
            raise ValueError(
                f"{name} is sharded otherwise than its parameter: this rank has"
                f" {tuple(here.shape)} of it and {tuple(local.shape)} of the parameter; load it by"
                " torch.distributed.checkpoint"
            )
        _check_readable(name, here)
        if name == REMAINDER:
            if value.dtype != torch.int16 or (master != "split" and saved.get(MASTER) is None):
                raise ValueError(f"{name} is of master='split', in int16; got {value.dtype}")
        elif value.dtype == torch.uint8 and name != MASTER:
            _check_scales(local, scale_key(name), saved)
        elif not value.dtype.is_floating_point:
            raise ValueError(f"{name} must be of a floating-point dtype; got {value.dtype}")
    if names.counts_steps and "step" in saved:
        _check_step(saved["step"])


def _check_readable(name: str, local: torch.Tensor) -> None:
    if local.layout != torch.strided or local.is_meta:
        raise ValueError(
            f"{name} must be a strided tensor with values; got one of layout {local.layout} on"
            f" {local.device}"
        )


def _check_step(step: Any) -> None:
    try:
        number = float(step)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"step must be a number; got {step!r}") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"step must not be negative; got {number}")


def _check_scales(local: torch.Tensor, key: str, saved: Mapping[str, Any]) -> None:
    scales = saved.get(key)
    if not isinstance(scales, torch.Tensor) or not scales.dtype.is_floating_point:
        raise ValueError(f"an 8-bit state lacks its {key}")
    _check_readable(key, local_of(scales))
    blocks = -(-local.numel() // BLOCK)
    if scales.shape != (blocks,):
        raise ValueError(f"{key} has shape {tuple(scales.shape)}, needed are {blocks} scales")


def plain(parameter: torch.Tensor, state: ParameterState) -> dict[str, Any]:
    """``state`` in the layout of torch's optimizers: float32, under torch's names.

    The tensors of a layout that is torch's are shared; those of others are copies, from which the
    same bits can be loaded again. The user's own entries are as they are.
    """
    record, names = state.record, state.names
    if record is None:
        return dict(state)
    result: dict[str, Any] = {}
    if record.step is not None:
        result["step"] = state["step"]
    for index, name in enumerate(names.names[: len(record.states)]):
        stored = state[name]
        exported = stored if record.plain_states else like(parameter, record.export_state(index))
        result[name] = exported
    if MASTER in state:
        result[MASTER] = state[MASTER]
    elif record.master is not None:
        result[MASTER] = like(parameter, record.export_master())
    result.update((key, value) for key, value in state.items() if key not in names.known)
    return result
