"""The optimizers that are timed: each with parameters, gradients and conversions of its own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tidegate.cli.optimizer_benchmark.request import (
    CEILINGS,
    DEEPSPEED,
    FOREACH,
    FP32,
    FUSED,
    SCENARIOS,
    TIDEGATE,
    TORCH,
    TORCH_EXACT,
    TORCH_UNCLIPPED,
    UNCLIPPED,
    Request,
)

LEARNING_RATE = 1e-3
#: Below the norm of every gradient that is fed, so that each step clips.
MAX_NORM = 1.0
_SLICE = 1 << 20  # elements that are summed in double at once
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "sgd": {"momentum": 0.9, "weight_decay": 0.01},
    "adagrad": {"eps": 1e-10, "weight_decay": 0.01},
}
_CLASSES = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "adagrad": "Adagrad"}

Tensors = list[torch.Tensor]


class Skip(Exception):
    """This contender cannot be had here; the text says why."""


@dataclass
class Contender:
    """`step` is what is timed. `parameters` and `gradients` are the model's; `masters`, of which
    the parameters are rounded images, is empty where there are none outside of the optimizer."""

    step: Callable[[], object]
    parameters: Tensors
    gradients: Tensors
    masters: Tensors = field(default_factory=list)
    #: Whose results are the same, and whether they are its masters.
    compared_with: str = TORCH
    with_masters: bool = False
    #: Same formula in the same precision; False: rounded otherwise, so only nearly the same.
    exact: bool = True
    scale: float = 1.0  #: That gradients are fed with, a power of two.
    optimizer: Any = None  #: Of tidegate's.
    #: Whether what is updated has fewer than 32 bits, so that small steps are lost.
    coarse: bool = False
    version: str = ""  #: And compiler flags.


def names(request: Request) -> list[str]:
    """All contenders of a request; torch, which the results are compared with, goes first."""
    scenario = SCENARIOS[request.scenario]
    found = [TORCH, *(name for name in request.rivals if name != TORCH), TIDEGATE]
    if request.ceiling and request.scenario in ("one", "gpt2") and request.dtype == "fp32":
        found += CEILINGS
    if scenario.clip:
        found += [TORCH_EXACT, TORCH_UNCLIPPED, UNCLIPPED, FUSED]
    if scenario.mixed:
        found.append(FP32)
    return found


def dtype_of(request: Request) -> torch.dtype:
    return _TYPES[request.dtype]


def make(name: str, start: Sequence[torch.Tensor], request: Request) -> Contender:
    """The contender `name` with parameters equal to `start`. Raises Skip."""
    clip = SCENARIOS[request.scenario].clip
    if name == FOREACH:
        return _around(start, _torch(request, foreach=True), _clip if clip else None)
    if name == DEEPSPEED:
        kind, version = _deepspeed(request)
        made = _around(start, kind, _clip if clip else None)
        made.version = version
        return made
    if name == TIDEGATE:
        made = _tidegate(start, request, MAX_NORM if clip else None, request.master)
        made.compared_with = TORCH_EXACT if clip else TORCH
        _judge_as(made, request)
        return made
    if name in CEILINGS:
        return _ceiling(start, request, CEILINGS[name])
    if name in (UNCLIPPED, FUSED):
        fused = name == FUSED
        made = _tidegate(start, request, math.inf if fused else None, request.master)
        if fused:
            made.scale = 2.0
            # As a GradScaler hands them over.
            made.optimizer.grad_scale = torch.tensor(made.scale)
            made.optimizer.found_inf = torch.tensor(0.0)
        made.compared_with = TORCH_UNCLIPPED
        _judge_as(made, request)
        return made
    if name == FP32:
        made = _tidegate([tensor.float() for tensor in start], request, None, "auto")
        made.with_masters = True
        _judge_as(made, request)
        return made
    clipped = {TORCH: _clip, TORCH_EXACT: _clip_exactly}
    return _around(start, _torch(request, fused=True), clipped.get(name) if clip else None)


def _judge_as(made: Contender, request: Request) -> None:
    """How tidegate's results are compared with those of rivals, which have masters in fp32."""
    made.coarse = request.master == "none" and made.parameters[0].dtype != torch.float32
    made.exact = request.states == "fp32" and not made.coarse


def masters_of(one: Contender) -> Tensors:
    """In fp32, of whichever contender; its parameters where these are what is updated."""
    if one.optimizer is None:
        return one.masters or one.parameters
    states = one.optimizer.state_dict()["state"]
    found = [states[place].get("master_param") for place in range(len(one.parameters))]
    return one.parameters if found[0] is None else found


Kind = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def _torch(request: Request, **how: bool) -> Kind:
    kind = getattr(torch.optim, _CLASSES[request.optimizer])
    return lambda parameters: kind(
        parameters, lr=LEARNING_RATE, **_ARGUMENTS[request.optimizer], **how
    )


def _deepspeed(request: Request) -> tuple[Kind, str]:
    if request.optimizer not in ("adamw", "adam"):
        raise Skip(f"DeepSpeed is measured with adamw and adam, not {request.optimizer}")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Its just-in-time build calls ninja, which pip puts beside the interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        from deepspeed import __version__ as version
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder import CPUAdamBuilder
    except ImportError as error:
        raise Skip(f"{error}; scripts/deepspeed.sh makes an environment") from error
    arguments = dict(_ARGUMENTS[request.optimizer])
    mode = request.optimizer == "adamw"

    def kind(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        try:
            made: torch.optim.Optimizer = DeepSpeedCPUAdam(
                parameters, lr=LEARNING_RATE, adamw_mode=mode, **arguments
            )
        except RuntimeError as error:
            raise Skip(
                f"DeepSpeed's cpu_adam cannot be built: {error.__cause__ or error}"
            ) from error
        return made

    return kind, f"{version}, {' '.join(CPUAdamBuilder().cxx_args())}"


Parameters = Sequence[torch.nn.Parameter]


def _clip(parameters: Parameters) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)


def _clip_exactly(parameters: Parameters) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = 0.0
    for gradient in gradients:
        for part in gradient.view(-1).split(_SLICE):
            squares += float(part.double().square().sum())
    factor = min(1.0, MAX_NORM / (math.sqrt(squares) + 1e-6))
    torch._foreach_mul_(gradients, factor)


def _around(
    start: Sequence[torch.Tensor], kind: Kind, clip: Callable[[Parameters], None] | None
) -> Contender:
    """An optimizer that has gradients and parameters in one type: it steps on fp32 masters."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    gradients = [torch.zeros_like(tensor) for tensor in start]
    if start[0].dtype == torch.float32:
        _attach(parameters, gradients)
        optimizer = kind(parameters)

        def step() -> None:
            if clip:
                clip(parameters)
            optimizer.step()

        return Contender(step, list(parameters), gradients)

    masters = [torch.nn.Parameter(tensor.float()) for tensor in start]
    wide = [torch.zeros_like(tensor) for tensor in masters]
    _attach(masters, wide)
    optimizer = kind(masters)
    images = [parameter.detach() for parameter in parameters]
    values = [master.detach() for master in masters]

    def converting_step() -> None:
        torch._foreach_copy_(wide, gradients)
        if clip:
            clip(masters)
        optimizer.step()
        torch._foreach_copy_(images, values)

    return Contender(converting_step, list(parameters), gradients, list(masters))


def _tidegate(
    start: Sequence[torch.Tensor], request: Request, max_norm: float | None, master: str
) -> Contender:
    try:
        offload = importlib.import_module("tidegate.offload")
    except ImportError as error:
        raise Skip(str(error)) from error
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    gradients = [torch.zeros_like(tensor) for tensor in start]
    _attach(parameters, gradients)
    kind = getattr(offload, _CLASSES[request.optimizer])
    try:
        optimizer = kind(
            parameters,
            lr=LEARNING_RATE,
            **_ARGUMENTS[request.optimizer],
            master=master,
            states=request.states,
            max_grad_norm=max_norm,
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise Skip(str(error)) from error
    return Contender(optimizer.step, list(parameters), gradients, optimizer=optimizer)


def _ceiling(start: Sequence[torch.Tensor], request: Request, ahead: int) -> Contender:
    """One flat pass over as many elements; its results mean nothing."""
    try:
        library = ctypes.CDLL(request.ceiling)
    except OSError as error:
        raise Skip(str(error)) from error
    count = sum(tensor.numel() for tensor in start)
    # Parameters and gradients lie where a model has them, states where an engine may put them.
    streams = [torch.zeros(count), torch.zeros(count), _in_huge_pages(count), _in_huge_pages(count)]
    gradients = list(streams[1].split([tensor.numel() for tensor in start]))
    views = [part.view(tensor.shape) for part, tensor in zip(gradients, start, strict=True)]
    addresses = [ctypes.c_void_p(stream.data_ptr()) for stream in streams]
    numbers = (ctypes.c_ssize_t(count), ctypes.c_ssize_t(ahead), ctypes.c_int(request.threads))

    def step() -> None:
        library.tidegate_bench_ceiling(*addresses, *numbers)

    # The streams live as long as their addresses are used.
    return Contender(step, streams, views, compared_with="")


def _in_huge_pages(count: int) -> torch.Tensor:
    """Zeros of fp32 in 2 MiB pages, where the kernel has such for those who ask."""
    memory = mmap.mmap(-1, max(1, 4 * count), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32, count=count).zero_()


def _attach(parameters: Sequence[torch.nn.Parameter], gradients: Tensors) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
