"""offload_states and give_back: all of it or nothing, and nothing else of the optimizer."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch
from tidegate import offload


def optimizers(kind: str = "AdamW", **arguments: Any) -> list[torch.optim.Optimizer]:
    """Two of torch's, alike."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(50)), torch.nn.Parameter(torch.randn(7, 9))]
        made.append(getattr(torch.optim, kind)(parameters, **arguments))
    return made


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def train(*each: torch.optim.Optimizer, seed: int = 1) -> None:
    for optimizer in each:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters_of(optimizer):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def assert_alike(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for mine, theirs in zip(parameters_of(one), parameters_of(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        assert one.state[mine].keys() == other.state[theirs].keys()
        for name, value in one.state[mine].items():
            torch.testing.assert_close(value, other.state[theirs][name], rtol=1e-5, atol=1e-6)


def with_bad_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    optimizer.state[parameters_of(optimizer)[1]]["exp_avg"] = torch.zeros(3)
    return {}


def with_bad_dtype(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    optimizer.add_param_group({"params": torch.nn.Parameter(torch.ones(3).double())})
    return {}


def differentiable(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    optimizer.param_groups[0]["differentiable"] = True
    return {}


def with_duplicates(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    optimizer.param_groups[0]["params"] *= 2
    return {}


def with_bad_norm(_: torch.optim.Optimizer) -> dict[str, Any]:
    return {"max_grad_norm": -1.0}


@pytest.mark.parametrize(
    "spoil", [with_bad_state, with_bad_dtype, differentiable, with_duplicates, with_bad_norm]
)
def test_a_refused_optimizer_is_as_before(spoil: Any) -> None:
    optimizer, _ = optimizers()
    train(optimizer)
    arguments = spoil(optimizer)
    attributes = dict(vars(optimizer))
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    with pytest.raises((TypeError, ValueError)):
        offload.offload_states(optimizer, **arguments)
    assert type(optimizer) is torch.optim.AdamW
    assert vars(optimizer) == attributes
    assert optimizer.state.keys() == states.keys()
    for parameter, state in optimizer.state.items():
        assert type(state) is dict
        assert all(value is states[parameter][name] for name, value in state.items())


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("AdamW", {"fused": True}),
        ("Adam", {"amsgrad": True}),
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("Adagrad", {}),
    ],
)
def test_what_is_given_back_is_what_was_taken(kind: str, arguments: dict[str, Any]) -> None:
    optimizer, other = optimizers(kind, **arguments)
    train(optimizer, other)
    attributes, groups = vars(optimizer).keys(), list(optimizer.param_groups)
    amp = getattr(optimizer, "_step_supports_amp_scaling", None)
    first = parameters_of(optimizer)[0]
    taken = offload.offload_states(optimizer, max_grad_norm=1e9)
    train(optimizer, other, seed=2)
    note = optimizer.state[first]["note"] = other.state[parameters_of(other)[0]]["note"] = [1]
    taken.give_back()
    assert type(optimizer) is getattr(torch.optim, kind)
    assert vars(optimizer).keys() == attributes
    assert getattr(optimizer, "_step_supports_amp_scaling", None) == amp
    assert all(now is then for now, then in zip(optimizer.param_groups, groups, strict=True))
    assert optimizer.state[first].pop("note") is note
    del other.state[parameters_of(other)[0]]["note"]
    train(optimizer, other, seed=3)
    assert_alike(optimizer, other)


def test_giving_back_calls_no_hook() -> None:
    optimizer, other = optimizers()

    def refuse(*_: Any) -> None:
        raise AssertionError("called")

    optimizer.register_state_dict_pre_hook(refuse)
    optimizer.register_state_dict_post_hook(refuse)
    optimizer.register_load_state_dict_pre_hook(refuse)
    optimizer.register_load_state_dict_post_hook(refuse)
    taken = offload.offload_states(optimizer)
    train(optimizer, other)
    taken.give_back()
    train(optimizer, other)
    assert_alike(optimizer, other)


def test_entries_that_were_replaced_are_given_back() -> None:
    optimizer, _ = optimizers()
    taken = offload.offload_states(optimizer, states="8bit")
    train(optimizer)
    first = parameters_of(optimizer)[0]
    optimizer.state[first]["exp_avg"] = torch.full((50,), 2.0)
    taken.give_back()
    assert {*optimizer.state[first]} == {"step", "exp_avg", "exp_avg_sq"}
    assert torch.equal(optimizer.state[first]["exp_avg"], torch.full((50,), 2.0))
    assert type(optimizer.state[first]) is dict


def test_sixteen_bit_parameters_get_states_of_their_dtype() -> None:
    parameter = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    taken = offload.offload_states(optimizer)
    train(optimizer)
    assert "master_param" in optimizer.state[parameter]
    taken.give_back()
    assert parameter not in optimizer.state
    optimizer = torch.optim.AdamW([parameter])
    taken = offload.offload_states(optimizer)
    train(optimizer)
    taken.give_back()
    dtypes = {name: value.dtype for name, value in optimizer.state[parameter].items()}
    assert dtypes == {
        "step": torch.float32,
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.bfloat16,
    }


def wrapped(optimizer: torch.optim.Optimizer) -> list[int]:
    """As profilers and accelerators do."""
    inner, calls = optimizer.step, []

    @functools.wraps(inner)
    def step(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        return inner(*arguments, **keywords)

    optimizer.step = step  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("scheduled", [False, True])
def test_somebody_elses_step_is_not_thrown_away(scheduled: bool) -> None:
    optimizer, other = optimizers()
    if scheduled:
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)
    before = vars(optimizer).get("step")

    def unwrap() -> None:
        if before is None:
            del optimizer.step
        else:
            optimizer.step = before

    calls = wrapped(optimizer)
    with pytest.raises(ValueError, match=r"step of their own .*test_offload_handover.py:"):
        offload.offload_states(optimizer)
    train(optimizer, other)
    assert calls == [1]
    unwrap()
    taken = offload.offload_states(optimizer)
    before = vars(optimizer).get("step")
    calls = wrapped(optimizer)
    with pytest.raises(ValueError, match="step of their own"):
        taken.give_back()
    train(optimizer, other)
    assert calls == [1]
    unwrap()
    taken.give_back()
    train(optimizer, other)
    assert_alike(optimizer, other)


def test_a_scheduler_may_come_while_offloaded_and_hooks_are_called() -> None:
    optimizer, other = optimizers()
    calls: list[type] = []
    optimizer.register_step_post_hook(lambda it, *_: calls.append(type(it)))
    taken = offload.offload_states(optimizer)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(it, 0.5) for it in (optimizer, other)]
    for seed in range(4):
        train(optimizer, other, seed=seed)
        for scheduler in schedulers:
            scheduler.step()
        if seed == 1:
            taken.give_back()
    assert_alike(optimizer, other)
    assert calls == [offload.AdamW] * 2 + [torch.optim.AdamW] * 2


def test_an_optimizer_that_is_dropped_is_gone() -> None:
    optimizer, _ = optimizers()
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    gc.collect()
    gc.disable()
    try:
        offload.offload_states(optimizer)
        train(optimizer)
        gone = weakref.ref(optimizer)
        del optimizer
        assert gone() is None
    finally:
        gc.enable()
