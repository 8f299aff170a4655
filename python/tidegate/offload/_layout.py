"""How an optimizer keeps its numbers, and what the states of each rule are called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

MASTERS = ("auto", "none", "fp32", "split")
STATES = ("fp32", "bf16", "8bit")
#: Key of the full-precision copy of a 16-bit parameter in states and state dicts.
MASTER = "master_param"
#: Key in memory of the 16 bits that a bfloat16 parameter lacks.
REMAINDER = "master_remainder"
#: Elements that share a scale in 8-bit states.
BLOCK = 256

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layout:
    """The keywords ``master`` and ``states`` of an optimizer, checked."""

    master: str = "auto"
    states: str = "fp32"

    def __post_init__(self) -> None:
        if self.master not in MASTERS:
            raise ValueError(f"master must be one of {', '.join(MASTERS)}; got {self.master!r}")
        if self.states not in STATES:
            raise ValueError(f"states must be one of {', '.join(STATES)}; got {self.states!r}")

    def master_of(self, parameter: torch.Tensor) -> str:
        """``none``, ``fp32`` or ``split`` for a parameter of this dtype; TypeError for others."""
        if parameter.dtype not in _DTYPES:
            offered = ", ".join(str(dtype) for dtype in _DTYPES)
            raise TypeError(
                f"parameters of {parameter.dtype} cannot be offloaded (offered: {offered}); give"
                " them a separate optimizer of torch.optim"
            )
        if parameter.dtype == torch.float32:
            return "none"
        if self.master == "split" and parameter.dtype != torch.bfloat16:
            raise TypeError(f"master='split' is for bfloat16 parameters; got {parameter.dtype}")
        return "fp32" if self.master == "auto" else self.master

    def cost_of(self, parameter: torch.Tensor, state_count: int) -> int:
        """What an element of it keeps in memory, in 64ths of a byte: all but the gradient."""
        master = {"none": 0, "fp32": 256, "split": 128}[self.master_of(parameter)]
        state = {"fp32": 256, "bf16": 128, "8bit": 65}[self.states]
        size: int = parameter.element_size()
        return 64 * size + master + state_count * state

    @property
    def state_dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}[self.states]


def scale_key(name: str) -> str:
    """Key of the scales of an 8-bit state."""
    return f"{name}_scale"


@dataclass(frozen=True)
class StateNames:
    """What torch calls the states of a rule, in the order in which the engine has them."""

    names: tuple[str, ...]
    counts_steps: bool = True

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """Keys of a state that are this package's business; all others are the user's own."""
        steps = ("step",) if self.counts_steps else ()
        return frozenset((*self.names, *map(scale_key, self.names), MASTER, REMAINDER, *steps))

    def any_in(self, state: Mapping[str, Any]) -> bool:
        return any(value is not None for key, value in state.items() if key in self.known)

    def needed(self, count: int, saved: Mapping[str, Any]) -> tuple[str, ...]:
        """The first ``count``, and those further ones that ``saved`` has.

        A step that does not use a state keeps it: momentum may be 0 for some steps.
        """
        there = (at for at, name in enumerate(self.names, 1) if saved.get(name) is not None)
        return self.names[: max(count, *there, 0)]
