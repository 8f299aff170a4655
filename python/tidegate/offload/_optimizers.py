"""The optimizers: torch's arguments, checks and names, with the engine's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from tidegate.offload._layout import StateNames
from tidegate.offload._offloaded import Offloaded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim.optimizer import ParamsT


class _AdamFamily(Offloaded):
    _names = StateNames(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    _needs = ("lr", "betas", "eps")

    def _rule(self, group: dict[str, Any]) -> str:
        return "adamw" if group["decoupled_weight_decay"] else "adam"

    def _state_count(self, group: dict[str, Any]) -> int:
        return 3 if group["amsgrad"] else 2

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            "beta1": float(beta1),
            "beta2": float(beta2),
            "eps": float(group["eps"]),
            "amsgrad": bool(group["amsgrad"]),
        }


class AdamW(_AdamFamily, torch.optim.AdamW):
    """``torch.optim.AdamW`` with its states in host memory and its step as one fused pass.

    Arguments and semantics are torch's, and so are ``state_dict()`` and its values: checkpoints go
    both ways. Parameters, gradients and states are on the CPU (FSDP2's ``CPUOffloadPolicy``, FSDP1
    on the CPU, DDP, or a plain loop), parameters float32, bfloat16 or float16; the gradient of a
    float32 parameter has any of these dtypes, that of another its dtype or float32. By keyword:

    - ``master``: what is updated when a parameter has 16 bits. ``"fp32"``: a float32 copy, from
      which the parameter is rounded at each step; ``"split"``: the bfloat16 parameter and the 16
      bits that it lacks, which are 2 bytes instead of 4; ``"none"``: the parameter itself.
      ``"auto"``, the default, is ``"fp32"``. Float32 parameters are updated themselves.
    - ``states``: ``"fp32"``; ``"bf16"``, rounded stochastically; ``"8bit"``, in blocks of 256 with
      a scale each (both for AdamW only).
    - ``max_grad_norm``: clips the gradients together to this norm, as ``clip_grad_norm_`` does,
      in the step and without a write to them; ``grad_norm`` is the norm of the last step, None if
      that was skipped. Shards of DTensors count once; the norm of parameters that are sharded
      otherwise (FSDP1; of its NO_SHARD, over a group of this rank alone) is taken over
      ``norm_group``, which a copied or unpickled optimizer must be given anew. ``inf`` clips
      nothing and has the norm for free. If a rank cannot step, those that share the norm with it
      raise RuntimeError, and do not step either.
    - ``shard_over``: a process group on one node whose ranks have the same parameters and
      gradients. Each keeps and steps a part, and has the rest from the others through shared
      memory. Construction, ``step`` and ``load_state_dict`` are then calls of all ranks; an error
      of one is RuntimeError on the others, and no rank has changed.
    - ``seed`` of the stochastic rounding, which depends on nothing but it, the parameter's place
      among the parameters, the step and the place of the element.

    Raises what torch raises for bad arguments; ``step`` raises before it changes anything:
    TypeError for a dtype that is not offered, ValueError for a gradient of another shape, a sparse
    one, one on another device or a hyperparameter that is no number, MemoryError if the states do
    not fit. One thread at a time may use an optimizer.
    """


class Adam(_AdamFamily, torch.optim.Adam):
    """``torch.optim.Adam``, whose weight decay is part of the gradient; otherwise as AdamW."""


class SGD(Offloaded, torch.optim.SGD):
    """``torch.optim.SGD``, with momentum and Nesterov; otherwise as AdamW."""

    _names = StateNames(("momentum_buffer",), counts_steps=False)
    _needs = ("lr", "momentum", "dampening")

    def _rule(self, group: dict[str, Any]) -> str:
        return "sgd"

    def _state_count(self, group: dict[str, Any]) -> int:
        return 1 if group["momentum"] != 0 else 0

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "momentum": float(group["momentum"]),
            "dampening": float(group["dampening"]),
            "nesterov": bool(group["nesterov"]),
        }


class Adagrad(Offloaded, torch.optim.Adagrad):
    """``torch.optim.Adagrad``; otherwise as AdamW."""

    _names = StateNames(("sum",))
    _needs = ("lr", "lr_decay", "eps")

    def _rule(self, group: dict[str, Any]) -> str:
        return "adagrad"

    def _initial(self, group: dict[str, Any]) -> float:
        return float(group.get("initial_accumulator_value", 0.0))

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"eps": float(group["eps"]), "lr_decay": float(group["lr_decay"])}


class _PlainLion(Optimizer):
    """The arguments of Lion, as a class of torch's would take and check them."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor,
        betas: tuple[float, float],
        weight_decay: float,
        maximize: bool,
    ) -> None:
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        for index, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)


class Lion(Offloaded, _PlainLion):
    """Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms"), algorithm 2.

    ``p *= 1 - lr * weight_decay; p -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m +
    (1 - beta2) * g``: one state, ``exp_avg``. Keywords as AdamW's.
    """

    _names = StateNames(("exp_avg",), counts_steps=False)
    _needs = ("lr", "betas")

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master: str = "auto",
        states: str = "fp32",
        max_grad_norm: float | None = None,
        norm_group: ProcessGroup | None = None,
        seed: int = 0,
        shard_over: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            weight_decay,
            maximize,
            master=master,
            states=states,
            max_grad_norm=max_grad_norm,
            norm_group=norm_group,
            seed=seed,
            shard_over=shard_over,
        )

    def _rule(self, group: dict[str, Any]) -> str:
        return "lion"

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"beta1": float(beta1), "beta2": float(beta2)}
