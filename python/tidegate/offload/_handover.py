"""An optimizer of torch's that exists already: its states to the engine and back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from tidegate.offload._layout import MASTER, Layout
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

    def __init__(self, optimizer: Offloaded, original: type[Optimizer]) -> None:
        self._optimizer: Offloaded | None = optimizer
        self._original = original

    def give_back(self) -> None:
        """Make the optimizer what it was, with the states as they are now, in ordinary memory.

        States become float32, as torch's optimizers load them, but that they take the dtype of a
        16-bit parameter, as torch's do. Does nothing the second time.
        """
        if self._optimizer is None:
            return
        optimizer: Any = self._optimizer
        self._optimizer = None
        exported = optimizer.state_dict()
        for state in exported["state"].values():
            state.pop(MASTER, None)
        optimizer.__class__ = self._original
        for name in ("_layout", "_norm_group", "_seed", "_stateless", "_engine_step"):
            del optimizer.__dict__[name]
        _renew_step(optimizer)
        optimizer.load_state_dict(exported)
        for state in optimizer.state.values():
            # Loading shares tensors that have the right dtype already.
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[key] = value.clone()

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

    TypeError for any other optimizer, also for a subclass, whose step may do anything.
    """
    original = type(optimizer)
    offloaded = _OFFLOADED.get(original)
    if offloaded is None:
        offered = ", ".join(f"torch.optim.{kind.__name__}" for kind in _OFFLOADED)
        raise TypeError(
            f"offload_states takes {offered}; got {original.__module__}.{original.__qualname__}"
        )
    changed: Any = optimizer
    layout = Layout(master, states)
    changed.__class__ = offloaded
    changed._take_over(layout, max_grad_norm, norm_group, seed)
    changed._patch_step_function()
    _renew_step(changed)
    return OffloadedStates(changed, original)


def _renew_step(optimizer: Any) -> None:
    """A scheduler puts a ``step`` of its own into the optimizer, which calls the class it met."""
    old = optimizer.__dict__.get("step")
    if old is None:
        return
    step = type(optimizer).step

    @functools.wraps(step)
    def stepping(*arguments: Any, **keywords: Any) -> Any:
        optimizer._opt_called = True
        return step(optimizer, *arguments, **keywords)

    stepping._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = stepping
