"""What all offloaded optimizers share: construction, and the step over the engine."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tidegate.offload import _norm
from tidegate.offload._layout import Layout
from tidegate.offload._locals import PLAIN, gradient_of, is_flattened, local_of
from tidegate.offload._overlap import first_overlap
from tidegate.offload._shards import Shards, check_parameter
from tidegate.offload._state import check_process
from tidegate.offload._stateful import Stateful

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tidegate._shim_types import OffloadParameter, OffloadStep


class Offloaded(Stateful):
    """Mixed in before an optimizer class of torch's, whose constructor and state names it keeps."""

    _engine_step: OffloadStep | None
    _max_grad_norm: float | None
    #: Norm of all gradients in the last step, before clipping; None without ``max_grad_norm`` and
    #: after a step that was skipped or failed.
    grad_norm: float | None = None
    #: Over which ranks the gradients of other parameters than DTensors are spread. A copied or
    #: unpickled optimizer has none, and refuses to take norms until it is set again.
    norm_group: ProcessGroup | None = None
    _lost_norm_group = False

    def __init__(
        self,
        *arguments: Any,
        master: str = "auto",
        states: str = "fp32",
        max_grad_norm: float | None = None,
        norm_group: ProcessGroup | None = None,
        seed: int = 0,
        shard_over: ProcessGroup | None = None,
        **keywords: Any,
    ) -> None:
        def construct() -> None:
            self._layout = Layout(master, states)  # By which add_param_group checks.
            super(Offloaded, self).__init__(*arguments, **keywords)

        if shard_over is None:
            construct()
            self._take_over(self._layout, max_grad_norm, norm_group, seed)
        else:
            self._construct_over(shard_over, construct, max_grad_norm, norm_group, seed)

    def _construct_over(
        self,
        group: ProcessGroup,
        construct: Callable[[], None],
        max_grad_norm: float | None,
        norm_group: ProcessGroup | None,
        seed: int,
    ) -> None:
        """Whatever is wrong on a rank, it meets the others, who come and would wait for it."""
        problem: Exception | None = None
        try:
            construct()
            if norm_group is not None:
                raise ValueError(
                    "norm_group= is for gradients of which every rank has a part; with shard_over="
                    " each has all of them, and they count once: leave norm_group out"
                )
            for _, parameter in self._all_parameters():
                check_parameter(parameter)
        except Exception as error:
            problem = error
        try:
            shards = Shards(group)
        except Exception as error:
            raise (problem or error) from (problem and error)

        def take_over() -> None:
            if problem is not None:
                raise problem
            self._shards = shards
            shards.before_loading()
            self._take_over(self._layout, max_grad_norm, None, seed)

        shards.load(take_over, self._records, "make an optimizer")

    def _take_over(
        self,
        layout: Layout,
        max_grad_norm: float | None,
        norm_group: ProcessGroup | None,
        seed: int,
    ) -> None:
        """Begin to step what torch's constructor has made."""
        for group in self.param_groups:
            self._check_group(group, layout)
        if not 0 <= operator.index(seed) < 1 << 64:
            raise ValueError(f"seed must be 0 to 2**64 - 1; got {seed}")
        self._layout = layout
        self.max_grad_norm = max_grad_norm
        self.grad_norm = None
        self.norm_group = norm_group
        self._seed = seed
        self._engine_step = None
        self._adopt_states()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; ValueError also for a group with a parameter twice or that has no step."""
        super().add_param_group(param_group)
        try:
            self._check_group(param_group, self._layout)
        except ValueError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: dict[str, Any], layout: Layout) -> None:
        if group.get("differentiable"):
            raise ValueError("an offloaded step is not differentiable")
        if len(set(group["params"])) != len(group["params"]):
            # torch warns, and steps it twice; all parameters are stepped at once here.
            raise ValueError("a parameter group has the same parameter twice; give it once")
        amsgrad = group.get("amsgrad")
        if layout.states != "fp32" and (amsgrad or self._rule(group) != "adamw"):
            raise ValueError(
                f"states={layout.states!r} is for AdamW without amsgrad; got {type(self).__name__}"
                f"{' with amsgrad' if amsgrad else ''}; leave states out"
            )

    @property
    def max_grad_norm(self) -> float | None:
        """Norm that gradients are clipped to; None: they are not. May be changed between steps."""
        return self._max_grad_norm

    @max_grad_norm.setter
    def max_grad_norm(self, value: float | None) -> None:
        if value is not None and not value > 0:
            raise ValueError(f"max_grad_norm must be above 0; got {value}")
        self._max_grad_norm = value

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves the gradients as they are and hands over scale and found_inf.

        Not for shards that are no DTensors: only where ShardedGradScaler unscales them itself do
        the ranks agree on what it found.
        """
        return self.norm_group is None and not self._lacks_norm_group()

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, _: bool) -> None:
        """torch's constructors say so of their own fused steps."""

    # What a rule says of itself.

    def _rule(self, group: dict[str, Any]) -> str:
        raise NotImplementedError

    def _hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    # The step.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; all or, if it raises, none of them.

        ``closure``, if given, is called first, with gradients enabled, and its result returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step_once()
        return loss

    # A compiled function around it has a break here, as with torch's own that are not compiled.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _step_once(self) -> None:
        found_inf = getattr(self, "found_inf", None)
        skip = found_inf is not None and float(found_inf) != 0
        scale = getattr(self, "grad_scale", None)
        factor = 1.0 if scale is None else _inverse(float(scale))
        known = self.grad_norm is not None
        self.grad_norm = None
        if self._shards is not None:
            self._step_part(self._shards, skip, factor)
            return
        if skip:
            return
        step = self._step_of_engine()
        try:
            if self.max_grad_norm is None:
                self._collect(step)
                step.run(factor, self._seed, False)
            else:
                self.grad_norm = self._step_with_norm(step, factor, self.max_grad_norm, known)
        finally:
            self._end_step(step)

    def _step_with_norm(
        self, step: OffloadStep, factor: float, limit: float, checked: bool
    ) -> float:
        """Step, and return the norm; ``checked``: there was one before."""
        stepped: list[torch.Tensor] = []

        def prepare() -> None:
            if not checked:
                self._check_norm_group()
            stepped.extend(self._collect(step))

        def sum_up() -> _norm.Squares:
            prepare()
            return stepped, step.sums(factor)

        def run() -> _norm.Squares:
            return stepped, step.run(factor, self._seed, True)

        everyone = [parameter for group in self.param_groups for parameter in group["params"]]
        shared = _norm.SharedNorm(everyone, self.norm_group)
        if math.isfinite(limit):
            norm = shared.of(sum_up)
            step.run(factor * _clip_factor(limit, norm), self._seed, False)
        else:
            shared.agree(prepare)
            norm = shared.of(run)
        return norm

    def _step_part(self, shards: Shards, skip: bool, factor: float) -> None:
        """As _step_once, together with the other ranks of ``shard_over``."""
        step = self._step_of_engine()
        limit = self.max_grad_norm
        clips = limit is not None and math.isfinite(limit)
        wants_sums = limit is not None and not clips

        def prepare() -> dict[str, object]:
            self._collect(step)
            groups = [(self._rule(group), self._settings(group)) for group in self.param_groups]
            return {
                "gradients (some have one that others lack)": [
                    parameter.grad is not None for _, parameter in self._all_parameters()
                ],
                "settings of a parameter group": groups,
                "scale of the gradients": factor,
                "max_grad_norm or seed": (limit, self._seed),
            }

        try:
            if not shards.prepare_step(step, prepare, skip, factor if clips else None):
                return
            if limit is not None and clips:
                norm = _norm.norm_of(shards.total_sums(step))
                factor *= _clip_factor(limit, norm)
            shards.run_step(step, lambda: step.run(factor, self._seed, wants_sums), wants_sums)
            if wants_sums:
                norm = _norm.norm_of(shards.total_sums(step))
            shards.end_step()
            self.grad_norm = norm if limit is not None else None
        finally:
            self._end_step(step)

    def _end_step(self, step: OffloadStep) -> None:
        step.clear()  # Gradients belong to the caller, who may want their memory back.
        self._forget_begun()

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """What the engine is told of a parameter group."""
        common = {
            "lr": float(group["lr"]),
            "weight_decay": float(group.get("weight_decay", 0.0)),
            "maximize": bool(group.get("maximize", False)),
        }
        return common | self._hyperparameters(group)

    def _check_norm_group(self) -> None:
        if not self._lacks_norm_group():
            return
        if self._lost_norm_group:
            raise ValueError(
                "the optimizer that this one is a copy of had a norm_group, which is not copied:"
                " set optimizer.norm_group, or max_grad_norm to None"
            )
        raise ValueError(
            "max_grad_norm of FSDP1's parameters needs norm_group=, the process group over"
            " which they are sharded (of NO_SHARD, a group of this rank alone, such as"
            " torch.distributed.new_subgroups(1)[0]); or clip by clip_grad_norm_ of the wrapped"
            " model"
        )

    def _lacks_norm_group(self) -> bool:
        return self.norm_group is None and (
            self._lost_norm_group
            or any(is_flattened(parameter) for _, parameter in self._all_parameters())
        )

    def _collect(self, step: OffloadStep) -> list[torch.Tensor]:
        """Give the engine all that has a gradient; the parameters, in its order."""
        stepped: list[torch.Tensor] = []
        step.fetch_again()
        self._renew_places()
        for group in self.param_groups:
            # A list at a time: there may be thousands of small parameters.
            parameters = group["params"]
            gradients = [parameter.grad for parameter in parameters]
            kinds = set(map(type, gradients))
            places: list[int] = []  # Of those that are left, if not all are.
            if type(None) in kinds:
                places = [at for at, gradient in enumerate(gradients) if gradient is not None]
                parameters = [parameters[at] for at in places]
                gradients = [gradients[at] for at in places]
            local = parameters
            if not PLAIN.issuperset(kinds.union(map(type, parameters))):
                gradients = list(map(gradient_of, parameters, gradients))
                local = list(map(local_of, parameters))
            records: list[Any] = self._records_of(parameters)
            for place in step.stale(records, local, self._state_count(group)):
                parameter = parameters[place]
                check_process(records[place])
                records[place] = self._adopt(parameter, group, self.state.get(parameter) or {})
            settings = self._settings(group)
            step.add(self._rule(group), records, gradients, places=places, **settings)
            stepped += parameters
        if not self._memory_checked:
            self._check_memory()
            self._memory_checked = True
        return stepped

    def _check_memory(self) -> None:
        """ValueError if two parameters share memory: two threads would update it at once."""
        everyone = [
            (parameter, f"parameter {place} of group {number}", group.get("param_names"), place)
            for number, group in enumerate(self.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        records = self._records_of([parameter for parameter, *_ in everyone])
        known = [it for it, record in zip(everyone, records, strict=True) if record is not None]
        overlap = first_overlap([local_of(parameter) for parameter, *_ in known])
        if overlap is None:
            return
        names = [
            where if names is None else f"{where} ({names[place]})"
            for _, where, names, place in (known[at] for at in overlap)
        ]
        raise ValueError(
            f"{names[0]} and {names[1]} share memory, which an offloaded step would update from"
            " both at once; tie the Parameter objects (head.weight = embedding.weight), or give the"
            " optimizer one of the two"
        )

    def _records_of(self, parameters: list[torch.Tensor]) -> list[OffloadParameter | None]:
        states = map(self.state.get, parameters)
        records = [getattr(state, "record", None) for state in states]
        if self._stateless:
            missing = (place for place, record in enumerate(records) if record is None)
            for place in missing:
                records[place] = self._stateless.get(parameters[place])
        return records

    def _step_of_engine(self) -> OffloadStep:
        from tidegate import _backend

        if self._engine_step is None:
            self._engine_step = _backend.load_shim().OffloadStep()
        return self._engine_step

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._engine_step = None
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_max_grad_norm": self._max_grad_norm,
            "_seed": self._seed,
            "_lost_norm_group": self._lost_norm_group or self.norm_group is not None,
        }


def _inverse(scale: float) -> float:
    """As a division of tensors has it."""
    return 1.0 / scale if scale != 0 else math.copysign(math.inf, scale)


def _clip_factor(limit: float, norm: float) -> float:
    # In this order a norm that is NaN makes all parameters NaN, as with torch.
    return min(limit / (norm + 1e-6), 1.0)
