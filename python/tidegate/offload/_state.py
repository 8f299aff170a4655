"""The state of one parameter: torch's dictionary, whose tensors lie in the engine's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tidegate.offload._layout import MASTER, REMAINDER, Layout, scale_key
from tidegate.offload._locals import like, local_of

if TYPE_CHECKING:
    from tidegate._shim_types import OffloadParameter


class ParameterState(dict[str, Any]):
    """What ``optimizer.state[parameter]`` holds, and the engine's record of it.

    Tensors may be changed in place. An entry that is replaced or removed makes the record void;
    the next step makes a new one of what the dictionary holds then. Pickled and copied as the
    plain dictionary that torch's optimizers have.
    """

    __slots__ = ("record",)

    def __init__(self, entries: Mapping[str, Any], record: OffloadParameter | None) -> None:
        super().__init__(entries)
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __setitem__(self, key: str, value: Any) -> None:
        self.record = None
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.record = None
        super().__delitem__(key)

    def clear(self) -> None:
        self.record = None
        super().clear()

    def pop(self, *arguments: Any) -> Any:
        self.record = None
        return super().pop(*arguments)

    def popitem(self) -> tuple[str, Any]:
        self.record = None
        return super().popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self.record = None
        return super().setdefault(key, default)

    def update(self, *arguments: Any, **entries: Any) -> None:
        self.record = None
        super().update(*arguments, **entries)


def make_state(
    parameter: torch.Tensor,
    names: tuple[str, ...],
    counts_steps: bool,
    layout: Layout,
    saved: Mapping[str, Any],
    initial: float = 0.0,
    make_record: Callable[[str], OffloadParameter] | None = None,
) -> ParameterState:
    """State of ``parameter`` in the engine's memory, with the values of ``saved`` where it has any.

    ``saved`` may hold float32, 16-bit or this layout's own representation of each of ``names``;
    what it lacks is ``initial`` (the master: the parameter's own value). ValueError if a shape in
    it is not the parameter's; nothing of ``saved`` is kept. ``make_record`` makes the engine's
    record for a kind of master, where that is not simply one of ``parameter``.
    """
    from tidegate import _backend

    local = local_of(parameter)
    check_saved(parameter, names, saved)
    master = layout.master_of(local)
    if make_record is not None:
        record = make_record(master)
    else:
        record = _backend.load_shim().OffloadParameter(
            local, master, layout.states, len(names), counts_steps
        )
        if local is not parameter:
            record.belong_to(parameter)
    if record.step is not None:
        record.step.fill_(float(saved.get("step", 0.0)))
    for index, name in enumerate(names):
        value = saved.get(name)
        if value is None:
            record.fill_state(index, initial)
        elif value.dtype == torch.uint8:
            record.states[index].copy_(local_of(value))
            record.scales[index].copy_(saved[scale_key(name)])
        else:
            record.import_state(index, local_of(value))
    record.fresh = not any(saved.get(name) is not None for name in names)
    if master != "none":
        value = saved.get(MASTER)
        if value is not None:
            record.import_master(local_of(value))
        elif REMAINDER in saved:
            record.master.copy_(local_of(saved[REMAINDER]))
    return ParameterState(entries_of(parameter, names, record), record)


def entries_of(
    parameter: torch.Tensor, names: tuple[str, ...], record: OffloadParameter
) -> dict[str, Any]:
    """What the state of ``parameter`` consists of; its tensors are the record's."""
    entries: dict[str, Any] = {}
    if record.step is not None:
        entries["step"] = record.step
    for index, name in enumerate(names):
        entries[name] = like(parameter, record.states[index])
        if record.scales:
            entries[scale_key(name)] = record.scales[index]
    if record.master is not None:
        kind = MASTER if record.master.dtype == torch.float32 else REMAINDER
        entries[kind] = like(parameter, record.master)
    return entries


def check_saved(parameter: torch.Tensor, names: Iterable[str], saved: Mapping[str, Any]) -> None:
    """ValueError unless each entry of ``saved`` fits ``parameter``."""
    for name in (*names, MASTER):
        value = saved.get(name)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{name} must be a tensor; got {type(value).__name__}")
        if value.shape != parameter.shape:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}"
            )
        if local_of(value).shape != local_of(parameter).shape:
            raise ValueError(
                f"{name} is sharded otherwise than its parameter: this rank has"
                f" {tuple(local_of(value).shape)} of it and {tuple(local_of(parameter).shape)} of"
                " the parameter; load it by torch.distributed.checkpoint"
            )
        if value.dtype == torch.uint8 and scale_key(name) not in saved:
            raise ValueError(f"{name} has 8 bits but there is no {scale_key(name)}")
        if not value.dtype.is_floating_point and value.dtype != torch.uint8:
            raise ValueError(f"{name} must be of a floating-point dtype; got {value.dtype}")
    step = saved.get("step")
    if step is not None and not float(step) >= 0:
        raise ValueError(f"step must not be negative; got {float(step)}")


def plain(parameter: torch.Tensor, names: tuple[str, ...], state: Mapping[str, Any]) -> Any:
    """``state`` in the layout of torch's optimizers: float32, under torch's names.

    The tensors of a layout that is torch's are shared; those of others are copies, from which the
    same bits can be loaded again.
    """
    record = getattr(state, "record", None)
    if record is None:
        return dict(state)
    result: dict[str, Any] = {}
    if "step" in state:
        result["step"] = state["step"]
    for index, name in enumerate(names):
        stored = state[name]
        exported = stored if record.plain_states else like(parameter, record.export_state(index))
        result[name] = exported
    if MASTER in state:
        result[MASTER] = state[MASTER]
    elif record.master is not None:
        result[MASTER] = like(parameter, record.export_master())
    return result
