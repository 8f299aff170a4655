"""States of an optimizer in the engine's memory: made, exported, loaded, pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from tidegate.offload._layout import Layout, StateNames
from tidegate.offload._locals import local_of, stream_of
from tidegate.offload._shards import Shards
from tidegate.offload._state import ParameterState, check_process, check_saved, make_state, plain

if TYPE_CHECKING:
    from tidegate._shim_types import OffloadParameter


class Stateful(Optimizer):
    """What an offloaded optimizer does with its states, between and around steps."""

    _names: StateNames
    #: Settings of a parameter group that no version of torch makes up when they are not loaded.
    _needs: tuple[str, ...]
    _layout: Layout
    #: Of parameters that have no state: SGD without momentum.
    _stateless: dict[torch.Tensor, OffloadParameter]
    #: Of each parameter among all, made when it is first asked for.
    _places: dict[torch.Tensor, int]
    #: Parameters whose state the step under way has begun, and what there was before.
    _begun: list[tuple[torch.Tensor, dict[str, Any] | None]]
    #: Whether no two parameters share memory, as they were when their records were made.
    _memory_checked: bool
    #: With ``shard_over=``.
    _shards: Shards | None = None

    # What a rule says of itself.

    def _state_count(self, group: dict[str, Any]) -> int:
        """How many of its states a step of ``group`` uses."""
        return len(self._names.names)

    def _initial(self, group: dict[str, Any]) -> float:
        return 0.0

    # States of the engine.

    def _adopt_states(self) -> None:
        """After construction and unpickling: what torch has made of states goes to the engine."""
        self._stateless = {}
        self._places = {}
        self._memory_checked = False
        self._begun = []
        with torch.no_grad():
            for group, parameter in self._all_parameters():
                state = self.state.get(parameter)
                if state and self._names.any_in(state):
                    self._adopt(parameter, group, state)

    def _adopt(
        self, parameter: torch.Tensor, group: dict[str, Any], saved: Mapping[str, Any]
    ) -> OffloadParameter:
        """Make the parameter's state anew in the engine's memory, with the values of ``saved``."""
        make: Callable[..., ParameterState] = make_state
        if self._shards is not None:
            if not self._shards.knows(parameter):
                self._plan(self._shards)
            make = self._shards.make_state
        count, initial = self._state_count(group), self._initial(group)
        state = make(parameter, self._names, count, self._layout, saved, initial)
        record = state.record
        assert record is not None
        self._memory_checked = False
        record.stream = stream_of(parameter, self._place_of(parameter))
        if not self._names.any_in(saved):
            self._begun.append((parameter, self.state.get(parameter)))
        if state:
            self.state[parameter] = state
        else:
            self._stateless[parameter] = record
        return record

    def _forget_begun(self) -> None:
        """At the end of a step: what it has begun and then, as it failed, not stepped is no state.

        Kept, a momentum buffer of zeros would not be taken for one that a first step makes.
        """
        for parameter, before in self._begun:
            state = self.state.get(parameter)
            record = getattr(state, "record", None) or self._stateless.get(parameter)
            if record is None or not record.fresh:
                continue
            self._stateless.pop(parameter, None)
            if before is not None:
                self.state[parameter] = before
            elif state is not None:
                del self.state[parameter]
        self._begun.clear()

    def _plan(self, shards: Shards) -> None:
        """Share out the parameters that are trained and new."""
        new = [
            (parameter, self._layout.cost_of(parameter, self._state_count(group)))
            for group, parameter in self._all_parameters()
            if (parameter.requires_grad or parameter.grad is not None)
            and not shards.knows(parameter)
        ]
        shards.plan([parameter for parameter, _ in new], [cost for _, cost in new])

    def _place_of(self, parameter: torch.Tensor) -> int:
        if parameter not in self._places:
            self._renew_places(always=True)
        return self._places[parameter]

    def _renew_places(self, always: bool = False) -> None:
        """Where parameters have come or gone, or ``always``."""
        count = sum(len(group["params"]) for group in self.param_groups)
        if not always and count == len(self._places):
            return
        everything = (parameter for _, parameter in self._all_parameters())
        self._places = {known: place for place, known in enumerate(everything)}
        for parameter in self._stateless.keys() - self._places.keys():
            del self._stateless[parameter]

    def _all_parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                yield group, parameter

    def _records(self) -> list[OffloadParameter]:
        records = (getattr(state, "record", None) for state in self.state.values())
        return [record for record in records if record is not None]

    # States out.

    def state_dict(self) -> dict[str, Any]:
        """As torch's, in the layout of torch's optimizers whatever the layout in memory.

        States are float32 and under torch's names, with ``master_param`` beside them where there
        is one, and load into the optimizer of torch's that this one is named after. With
        ``shard_over=`` it is the states of all ranks, on each that asks and without the others'
        help, but an optimizer must not be dropped on a rank while another reads.
        """

        def export(_: Optimizer, result: dict[str, Any]) -> None:
            states = result["state"]
            with torch.no_grad():
                for place, (group, parameter) in enumerate(self._all_parameters()):
                    if place in states:
                        states[place] = self._plain_state(group, parameter)

        # First of all hooks: the user's see what is returned.
        hook = self.register_state_dict_post_hook(export, prepend=True)
        try:
            result: dict[str, Any] = super().state_dict()
        finally:
            hook.remove()
        return result

    def _plain_state(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The state of ``parameter`` as torch's optimizers have it."""
        state = self.state[parameter]
        check_process(getattr(state, "record", None))
        if self._shards is not None:
            if isinstance(state, ParameterState):
                return self._shards.whole_state(parameter, self._layout, state)
            return dict(state)
        record = getattr(state, "record", None)
        is_current = record is not None and record.serves(local_of(parameter))
        if not is_current and self._names.any_in(state):
            self._adopt(parameter, group, state)
            state = self.state[parameter]
        return plain(parameter, state) if isinstance(state, ParameterState) else dict(state)

    # States in.

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; takes dictionaries of torch's optimizers and of any layout of this one's.

        States keep their precision whatever the parameter's dtype, and what a state has besides
        those of torch's is kept as it is. ValueError if one does not fit its parameter, before
        anything has changed. With ``shard_over=`` all ranks must call it, each with the states of
        all, of which it takes its part.
        """
        if self._shards is None:
            self._load(state_dict)
        else:
            self._shards.load(lambda: self._load(state_dict), self._records)

    def _load(self, state_dict: dict[str, Any]) -> None:
        states: dict[Any, Any] = {}

        def keep_states(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
            states.update(self._checked_states(loaded))
            # torch's would copy all states and round them to the parameters' dtypes.
            return {**loaded, "state": {}}

        # Last of all hooks: what the user's make of the dictionary is what is loaded.
        hook = self.register_load_state_dict_pre_hook(keep_states)
        self._loading = states
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            del self._loading

    def _checked_states(self, loaded: dict[str, Any]) -> dict[Any, Any]:
        """The states of a dictionary by parameter; ValueError if one does not fit it."""
        for place, group in enumerate(loaded["param_groups"]):
            missing = [name for name in self._needs if name not in group]
            if missing:
                raise ValueError(
                    f"parameter group {place} lacks {', '.join(missing)}: are these the states of"
                    f" another optimizer than {type(self).__name__}?"
                )
        keys = [key for group in loaded["param_groups"] for key in group["params"]]
        members = dict(zip(keys, self._all_parameters(), strict=False))
        states: dict[Any, Any] = {}
        for key, saved in loaded["state"].items():
            if key not in members:
                states[key] = saved
                continue
            _, parameter = members[key]
            try:
                if not self._names.known.isdisjoint(saved):
                    check_saved(parameter, self._names, self._layout, saved)
            except ValueError as error:
                raise ValueError(f"state of parameter {key}: {error}") from None
            states[parameter] = dict(saved)
        return states

    def __setstate__(self, state: dict[str, Any]) -> None:
        if self._shards is not None:
            self._shards.before_loading()
        attributes: dict[str, Any] = self.__dict__
        before = dict(attributes)
        try:
            super().__setstate__(state)
            self.state.update(getattr(self, "_loading", {}))
            self._adopt_states()
        except BaseException:
            attributes.clear()
            attributes.update(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        if self._shards is not None:
            raise TypeError(
                "an optimizer with shard_over= has a part of its states only and can be neither"
                " pickled nor copied; save its state_dict()"
            )
        for record in self._records():
            check_process(record)
        return {**super().__getstate__(), "_layout": self._layout}
