"""What a state dict that cannot be loaded leaves behind: nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tidegate import offload
from tidegate.offload import _stateful


def parameters(count: int = 2) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, generator=generator)) for _ in range(count)]


def train(optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        for group in optimizer.param_groups:
            for it in group["params"]:
                it.grad = torch.ones_like(it)
        optimizer.step()


def spoiled(optimizer: torch.optim.Optimizer, spoil: Callable[[Any], None]) -> dict[str, Any]:
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 9.0
    saved["state"][0]["exp_avg"].fill_(3.0)
    spoil(saved)
    return saved


def expect_as_before(
    optimizer: torch.optim.Optimizer,
    load: Callable[[], None],
    error: type[Exception],
    message: str,
) -> None:
    """And it goes on with its steps as if nothing had been tried."""
    before = copy.deepcopy(optimizer.state_dict())
    groups, states = optimizer.param_groups, dict(optimizer.state)
    with pytest.raises(error, match=message):
        load()
    assert optimizer.param_groups is groups
    assert [*optimizer.state] == [*states]
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for place, state in before["state"].items():
        for key, value in state.items():
            assert torch.equal(after["state"][place][key], value)
    train(optimizer)
    assert not hasattr(optimizer, "_loading")


def set_second(key: str, value: Any) -> Callable[[Any], None]:
    def spoil(saved: Any) -> None:
        saved["state"][1][key] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (set_second("exp_avg", torch.ones(5).to_sparse()), "exp_avg must be a strided tensor"),
        (set_second("exp_avg_sq", torch.ones(5, device="meta")), "strided tensor with values"),
        (set_second("step", None), "step must be a number; got None"),
        (set_second("step", "two"), "step must be a number; got 'two'"),
        (set_second("step", torch.ones(2)), "step must be a number"),
        (set_second("step", torch.ones((), device="meta")), "step must be a number"),
        (lambda saved: saved["state"].update({1: {"step": None}}), "step must be a number"),
    ],
)
def test_a_bad_state_changes_nothing(spoil: Callable[[Any], None], message: str) -> None:
    optimizer = offload.AdamW(parameters())
    train(optimizer)
    saved = spoiled(optimizer, spoil)
    expect_as_before(optimizer, lambda: optimizer.load_state_dict(saved), ValueError, message)


def test_scales_are_looked_at_too() -> None:
    optimizer = offload.AdamW(parameters(), states="8bit")
    train(optimizer)
    raw = dict(optimizer.state[optimizer.param_groups[0]["params"][1]])
    raw["exp_avg_scale"] = raw["exp_avg_scale"].to_sparse()
    saved = spoiled(optimizer, lambda saved: saved["state"].update({1: raw}))
    expect_as_before(
        optimizer, lambda: optimizer.load_state_dict(saved), ValueError, "exp_avg_scale must be"
    )


def test_memory_that_does_not_suffice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = offload.AdamW(parameters())
    train(optimizer)
    saved = spoiled(optimizer, lambda _: None)
    made = []

    def make_state(*arguments: Any) -> Any:
        made.append(arguments)
        if len(made) == 2:
            raise MemoryError("no more")
        return original(*arguments)

    def load() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_stateful, "make_state", make_state)
            optimizer.load_state_dict(saved)

    original = _stateful.make_state
    expect_as_before(optimizer, load, MemoryError, "no more")
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 9.0


@pytest.mark.parametrize(
    ("loading", "saving", "missing"),
    [
        ("AdamW", "SGD", "betas, eps"),
        ("SGD", "AdamW", "momentum, dampening"),
        ("Adagrad", "AdamW", "lr_decay"),
        ("Adam", "Lion", "eps"),
        ("Lion", "Adagrad", "betas"),
    ],
)
def test_settings_of_another_rule_are_refused(loading: str, saving: str, missing: str) -> None:
    make: Any = getattr(offload, saving)
    saved = make(parameters(), lr=0.5).state_dict()
    make = getattr(offload, loading)
    optimizer = make(parameters(), lr=0.1)
    train(optimizer)
    expect_as_before(
        optimizer, lambda: optimizer.load_state_dict(saved), ValueError, f"lacks {missing}: are"
    )


@pytest.mark.parametrize("rule", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_groups_of_old_versions_of_torch_get_its_defaults(rule: str) -> None:
    """Only what the oldest had is there; torch's ``__setstate__`` makes up the rest."""
    oldest = {
        *("lr", "betas", "eps", "weight_decay", "momentum", "dampening"),
        *("lr_decay", "params"),
    }
    results = []
    for family in (offload, torch.optim):
        make: Any = getattr(family, rule)
        it = parameters(1)
        optimizer = make(it, lr=0.1, weight_decay=0.5)
        train(optimizer)
        saved = optimizer.state_dict()
        for group in saved["param_groups"]:
            for key in group.keys() - oldest:
                del group[key]
        optimizer.load_state_dict(saved)
        train(optimizer)
        results.append(it[0].detach())
    torch.testing.assert_close(*results)


def test_a_parameter_whose_elements_share_memory_is_not_taken_over() -> None:
    whole = torch.nn.Parameter(torch.ones(1).expand(4))
    optimizer = torch.optim.SGD([*parameters(1), whole], lr=0.1)
    with pytest.raises(ValueError, match="memory of its own for each element"):
        offload.offload_states(optimizer)
    assert type(optimizer) is torch.optim.SGD


def test_a_parameter_that_has_left_is_forgotten() -> None:
    """One of SGD without momentum, of which no state is kept."""
    staying, leaving = parameters()
    optimizer = offload.SGD([staying, leaving], lr=0.1)
    train(optimizer)
    reference = weakref.ref(leaving)
    del optimizer.param_groups[0]["params"][1]
    train(optimizer)
    del leaving
    gc.collect()
    assert reference() is None
