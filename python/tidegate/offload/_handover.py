"""An optimizer of torch's that exists already: its states to the engine and back."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from tidegate.offload._layout import MASTER, Layout, StateNames
from tidegate.offload._locals import local_of
from tidegate.offload._optimizers import SGD, Adagrad, Adam, AdamW

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim.optimizer import Optimizer

    from tidegate.offload._offloaded import Offloaded

_OFFLOADED: dict[type[Optimizer], type[Offloaded]] = {
    torch.optim.AdamW: AdamW,
    torch.optim.Adam: Adam,
    torch.optim.SGD: SGD,
    torch.optim.Adagrad: Adagrad,
}


class OffloadedStates:
    """What :func:`offload_states` returns: a way back. Usable as a context manager."""

    def __init__(
        self, optimizer: Offloaded, original: type[Optimizer], added: frozenset[str]
    ) -> None:
        self._optimizer: Offloaded | None = optimizer
        self._original = original
        self._added = added

    def give_back(self) -> None:
        """Make the optimizer what it was, with the states as they are now, in ordinary memory.

        States become float32, as torch's optimizers load them, but that they take the dtype of a
        16-bit parameter, as torch's do. Parameter groups and hooks stay as they are, and no hook is
        called. Does nothing the second time. If it raises, the optimizer is still offloaded:
        ValueError if somebody has replaced its ``step`` meanwhile, who must take that away first.
        """
        if self._optimizer is None:
            return
        optimizer: Any = self._optimizer
        scheduled = _has_step(optimizer)
        with torch.no_grad():
            states = {
                parameter: _given_back(
                    parameter, optimizer._plain_state(group, parameter), optimizer._names
                )
                for group, parameter in optimizer._all_parameters()
                if optimizer.state.get(parameter)
            }
        optimizer.__class__ = self._original
        for name in self._added:
            vars(optimizer).pop(name, None)
        if scheduled:
            _renew_step(optimizer)
        for parameter, state in states.items():
            if state:
                optimizer.state[parameter] = state
            else:
                del optimizer.state[parameter]
        self._optimizer = None

    def __enter__(self) -> OffloadedStates:
        return self

    def __exit__(self, *exception: object) -> None:
        self.give_back()


def offload_states(
    optimizer: Optimizer,
    *,
    master: str = "auto",
    states: str = "fp32",
    max_grad_norm: float | None = None,
    norm_group: ProcessGroup | None = None,
    seed: int = 0,
) -> OffloadedStates:
    """Move the states of a ``torch.optim`` optimizer to the engine, which does its steps from now.

    ``optimizer`` is an AdamW, Adam, SGD or Adagrad of ``torch.optim`` and stays the same object:
    schedulers, hooks and whoever else holds it need not know. It becomes the class of the same name
    in ``tidegate.offload``, whose keywords these are. ``give_back()`` of the result undoes it.

    TypeError for any other optimizer, also for a subclass, whose step may do anything, and for a
    parameter of a dtype that is not offered; ValueError for settings that are not, for a parameter
    whose elements share memory, and where somebody has put a ``step`` of their own on the
    optimizer, which would go on to call torch's (a scheduler's is known). Whatever it raises, the
    optimizer is as before.
    """
    from tidegate import _backend

    original = type(optimizer)
    offloaded = _OFFLOADED.get(original)
    if offloaded is None:
        offered = ", ".join(f"torch.optim.{kind.__name__}" for kind in _OFFLOADED)
        raise TypeError(
            f"offload_states takes {offered}; got {original.__module__}.{original.__qualname__}"
        )
    layout = Layout(master, states)
    shim = _backend.load_shim()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                layout.master_of(local_of(parameter))
                # The memory of one that has no states yet is looked at, too.
                shim.OffloadParameter(local_of(parameter), "none", states, 0, False, in_arena=False)
    changed: Any = optimizer
    scheduled = _has_step(changed)
    attributes, entries = dict(vars(changed)), dict(changed.state)
    try:
        changed.__class__ = offloaded
        changed._take_over(layout, max_grad_norm, norm_group, seed)
        changed._patch_step_function()
    except BaseException:
        changed.__class__ = original
        vars(changed).clear()
        vars(changed).update(attributes)
        changed.state.clear()
        changed.state.update(entries)
        raise
    added = frozenset(vars(changed).keys() - attributes.keys())
    if scheduled:
        _renew_step(changed)
    return OffloadedStates(changed, original, added)


def _given_back(
    parameter: torch.Tensor, state: dict[str, Any], names: StateNames
) -> dict[str, Any]:
    """``state`` as torch's optimizer would have it after a load, in memory of its own."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if key == MASTER:
            continue
        if key not in names.known or not isinstance(value, torch.Tensor):
            result[key] = value
        else:
            dtype = value.dtype if key == "step" else parameter.dtype
            result[key] = value.to(dtype, copy=True)
    return result


def _has_step(optimizer: Any) -> bool:
    """Whether a scheduler has put a ``step`` on the optimizer; ValueError if somebody else has."""
    step = vars(optimizer).get("step")
    if step is None:
        return False
    inner = getattr(step, "__wrapped__", None)
    inner = getattr(inner, "__func__", inner)
    # Who wraps a scheduler's has its attributes, too, but wraps that.
    if not hasattr(step, "_wrapped_by_lr_sched") or inner is not type(optimizer).step:
        code = getattr(step, "__code__", None)
        where = repr(step) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        raise ValueError(
            f"somebody has put a step of their own on the optimizer, in the place of its class's"
            f" ({where}); take that away first"
        )
    return True


def _renew_step(optimizer: Any) -> None:
    """A scheduler's ``step`` calls the class that it met."""
    step = type(optimizer).step
    reference = weakref.ref(optimizer)

    @functools.wraps(step)
    def stepping(*arguments: Any, **keywords: Any) -> Any:
        itself = reference()
        assert itself is not None
        itself._opt_called = True
        return step(itself, *arguments, **keywords)

    stepping._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = stepping
