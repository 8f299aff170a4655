"""An optimizer whose states are spread over the ranks of a node, each of which steps its part."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tidegate.offload._cuts import BLOCK, cuts_of
from tidegate.offload._layout import BLOCK as SCALE_BLOCK
from tidegate.offload._layout import MASTER, REMAINDER, Layout, StateNames, scale_key
from tidegate.offload._locals import is_flattened
from tidegate.offload._node import dropped_in, free, gather, keep_after, node_of
from tidegate.offload._state import (
    FORKED,
    ParameterState,
    dequantised,
    entries_of,
    make_state,
    plain,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tidegate._shim_types import OffloadParameter, OffloadStep

Settings = dict[str, object]


class Shards:
    """What an optimizer with ``shard_over=`` has besides.

    Everything that changes states or parameters is done by all ranks together, in two agreements:
    after the first, all ranks are known to be able and about to do the same; after the second, all
    have done so. Outside of the two, up to its own next first one, a rank may read all states.
    """

    def __init__(self, group: ProcessGroup) -> None:
        from tidegate import _backend

        node = node_of(group)
        shim = _backend.load_shim()
        self._group = group
        self._node = node
        self._native = shim.OffloadShards(node)
        keep_after(self, node, self._native)
        self._make_whole = functools.partial(shim.OffloadParameter, in_arena=False)
        self._rank = dist.get_rank(group)
        self._process = os.getpid()
        self._rows: dict[torch.Tensor, int] = {}
        self._cuts: list[list[int]] = []
        self._plan = ""
        self._turn = 0
        self._broken: str | None = None

    # Who has what.

    def knows(self, parameter: torch.Tensor) -> bool:
        return parameter in self._rows

    def plan(self, parameters: list[torch.Tensor], costs: list[int]) -> None:
        """Share out more parameters; ``costs`` is that of an element of each.

        Nothing has changed if it raises.
        """
        for parameter in parameters:
            check_parameter(parameter)
        counts = [parameter.numel() for parameter in parameters]
        cuts = cuts_of(counts, costs, dist.get_world_size(self._group))
        self._native.plan(cuts)
        for parameter in parameters:
            self._rows[parameter] = len(self._rows)
        self._cuts += cuts
        self._plan = _digest_of([self._plan, [(p.shape, p.dtype) for p in parameters], cuts]).hex()

    def part_of(self, parameter: torch.Tensor) -> tuple[int, int]:
        """Where this rank's part begins and ends, in elements in the order of memory."""
        cuts = self._cuts[self._rows[parameter]]
        return cuts[self._rank], cuts[self._rank + 1]

    # States.

    def make_state(
        self,
        parameter: torch.Tensor,
        names: StateNames,
        count: int,
        layout: Layout,
        saved: Mapping[str, Any],
        initial: float,
    ) -> ParameterState:
        """As :func:`make_state`, of this rank's part; ``saved`` may be of it or of the whole."""
        begin, end = self.part_of(parameter)
        if self._is_of_another_order(parameter, names, saved):
            # Another order shares out other elements: some of them lie with the other ranks.
            assert isinstance(saved, ParameterState)
            saved = self.whole_state(parameter, layout, saved)
        part = parameter.detach().as_strided(
            (end - begin,), (1,), parameter.storage_offset() + begin
        )
        values = dict(saved)
        for index, name in enumerate((*names.names, MASTER, REMAINDER)):
            value, key = values.get(name), scale_key(name)
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                if value.dtype == torch.uint8 and key in values:
                    if value.stride() == parameter.stride():
                        blocks = slice(begin // SCALE_BLOCK, -(-end // SCALE_BLOCK))
                        values[key] = values[key][blocks]
                    else:  # In another order blocks are other ones.
                        value = dequantised(index, value, values.pop(key))
                values[name] = _in_memory_order(parameter, value)[begin:end]

        def make_record(master: str, states: int) -> OffloadParameter:
            return self._native.make_record(
                self._rows[parameter], parameter, master, layout.states, states, names.counts_steps
            )

        return make_state(part, names, count, layout, values, initial, make_record)

    def _is_of_another_order(
        self, parameter: torch.Tensor, names: StateNames, saved: Mapping[str, Any]
    ) -> bool:
        """Whether parts of ``saved`` are of the parameter when it lay otherwise in memory.

        ValueError if they are and cannot be put in order.
        """
        record = saved.record if isinstance(saved, ParameterState) else None
        row = self._rows[parameter]
        before = record.parameter_strides if record else self._native.strides_of(row)
        if not before or _order_of(parameter, before) == _order_of(parameter, parameter.stride()):
            return False
        values = [saved.get(name) for name in (*names.names, MASTER, REMAINDER)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if all(value.shape == parameter.shape for value in tensors):
            return False
        if record is None or not record.has_its_memory:
            raise ValueError(
                f"the strides of a parameter of shape {tuple(parameter.shape)} have changed from"
                f" {tuple(before)} to {parameter.stride()} and, before a step, an entry of its"
                " state was replaced by this rank's part of a tensor; give whole tensors, or make"
                " a step in between"
            )
        return True

    def whole_state(
        self, parameter: torch.Tensor, layout: Layout, state: ParameterState
    ) -> dict[str, Any]:
        """``plain`` of the whole parameter's state, of the parts of all ranks; in ordinary memory.

        Not a collective: the parts are read where they lie.
        """
        self.check_usable()
        if state.record is None or not state.record.has_its_memory:
            raise RuntimeError(
                "an entry of the state of a parameter was replaced; this rank alone knows of it"
                " until the next step"
            )
        names = state.names
        # The parts are of what the parameter was when all ranks entered them.
        then = _in_order(parameter.detach(), self._native.strides_of(self._rows[parameter]))
        record = self._make_whole(
            then,
            layout.master_of(parameter),
            layout.states,
            len(state.record.states),
            False,
        )
        self._native.gather(self._rows[parameter], record)
        whole = ParameterState(entries_of(parameter, names, record), record, names)
        counted = {"step": state["step"]} if names.counts_steps else {}
        others = {key: value for key, value in state.items() if key not in names.known}
        values = plain(parameter, whole)
        ordered = {name: _in_order(value, parameter.stride()) for name, value in values.items()}
        return {**counted, **ordered, **others}

    # What the ranks do together.

    def check_usable(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(FORKED)
        if self._broken is not None:
            raise RuntimeError(
                f"this optimizer is of no more use: {self._broken}; make a new one and load the"
                " parameters and the states from a checkpoint"
            )

    def prepare_step(
        self, step: OffloadStep, prepare: Callable[[], Settings], skip: bool, factor: float | None
    ) -> bool:
        """Whether all ranks go on to step, after ``prepare`` and what it says is alike on all.

        With ``factor``, the sums of the gradients times it can be had from :meth:`total_sums`
        afterwards. If ``prepare`` raises on a rank, that rank raises the same and the others
        RuntimeError, and nothing has changed on any. False on all if any says ``skip``.
        """
        self.check_usable()
        problem: Exception | None = None
        settings: Settings = {}
        try:
            if not skip:
                settings = prepare()
                settings["order of a parameter's elements in memory"] = self._native.orders_of(step)
                if factor is not None:
                    step.sums(factor)
                    self._native.put_sums(step, self._turn)
        except Exception as error:
            problem = error
        if self._agree("step", problem, skip, settings):
            return False
        self._native.register_step(step)
        return True

    def run_step(self, step: OffloadStep, update: Callable[[], object], wants_sums: bool) -> None:
        """``update`` this rank's part, which the engine also shows the others, and copy theirs."""

        def run() -> None:
            update()
            if wants_sums:
                self._native.put_sums(step, self._turn)

        self._change("a step", run, lambda: self._native.fetch(step))

    def total_sums(self, step: OffloadStep) -> torch.Tensor:
        """The sum of squares of each gradient; the last that is asked of a step."""
        return self._native.total_sums(step, self._turn)

    def end_step(self) -> None:
        self._turn = 1 - self._turn

    def load(
        self,
        load: Callable[[], None],
        records: Callable[[], list[Any]],
        what: str = "load a state_dict",
    ) -> None:
        """Do ``load``, which calls :meth:`before_loading` where it has checked everything."""
        self.check_usable()
        self._what_is_loaded = what
        self._loading = "checks"
        problem: Exception | None = None
        try:
            load()
            self._native.register(records())
        except Exception as error:
            problem = error
        if self._loading == "asks":
            assert problem is not None
            raise problem
        if self._loading == "checks":
            self._agree(what, problem)
            return
        self._change(f"the call to {what}", lambda: _raise(problem))

    def before_loading(self) -> None:
        self._loading = "asks"
        self._agree(self._what_is_loaded, None)
        self._loading = "changes"

    def _change(
        self, what: str, change: Callable[[], object], after: Callable[[], object] | None = None
    ) -> None:
        """The second agreement; whatever goes wrong from here on leaves the ranks different."""
        problem: Exception | None = None
        try:
            change()
        except Exception as error:
            problem = error
        try:
            self._agree(f"finish {what}", problem)
            if after is not None:
                after()
        except Exception as error:
            self._broken = f"{what} ended half-way ({error})"
            raise

    def _agree(
        self,
        what: str,
        problem: Exception | None,
        skip: bool = False,
        settings: Settings | None = None,
    ) -> bool:
        """Meet all ranks; whether any of them has ``skip``.

        Raises ``problem``, or RuntimeError for that of another rank or settings that differ, or
        what the group raises for a rank that is lost.
        """
        settings = {**(settings or {}), "parameters": self._plan}
        digests = {name: _digest_of(value) for name, value in settings.items()}
        digest = int.from_bytes(_digest_of(digests), "big", signed=True)
        card = self._native.card()
        mine = torch.tensor([problem is not None, skip, digest, *card], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dropped = dropped_in(self._node)
        try:
            dist.all_gather(everyone, mine, group=self._group)
            told = [row.tolist() for row in everyone]
            failed = any(row[0] for row in told)
            skips = any(row[1] for row in told)
            differs = not failed and not skips and any(row[2] != digest for row in told)
            details: list[Any] = []
            if failed or differs:
                details = gather(self._group, (problem and _text_of(problem), digests))
        except Exception as error:
            if problem is None:
                raise
            raise problem from error
        if problem is not None:
            raise problem
        if failed:
            rank, text = next((r, text) for r, (text, _) in enumerate(details) if text)
            raise RuntimeError(f"rank {rank} cannot {what}, so no rank does: {text}")
        if differs:
            names = [
                n for n in digests if any(theirs.get(n) != digests[n] for _, theirs in details)
            ]
            raise RuntimeError(
                f"the ranks of shard_over= cannot {what}: they differ in their {', '.join(names)}"
            )
        self._native.set_cards([row[3:] for row in told])
        free(dropped)
        return skips


def check_parameter(parameter: torch.Tensor) -> None:
    """ValueError unless it is whole on every rank."""
    if isinstance(parameter, DTensor) or is_flattened(parameter):
        raise ValueError(
            "shard_over= is for parameters that every rank has whole (DDP, a plain loop); those of"
            " FSDP and other DTensors are sharded already: leave it out"
        )


def _in_memory_order(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The elements of ``value``, which has the parameter's shape, as the parameter's lie."""
    value = _in_order(value, parameter.stride())
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def _in_order(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """``value``, or a copy of it if its elements do not lie as ``strides`` says."""
    if not strides or value.stride() == tuple(strides):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def _order_of(parameter: torch.Tensor, strides: Sequence[int]) -> tuple[int, ...]:
    """What ``strides`` says of the order of the elements: those of dimensions of 1 say nothing."""
    if parameter.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(parameter.shape, strides, strict=True) if size > 1)


def _digest_of(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).digest()


def _text_of(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _raise(problem: Exception | None) -> None:
    if problem is not None:
        raise problem


assert BLOCK % SCALE_BLOCK == 0
