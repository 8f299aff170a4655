"""States of offloaded optimizers: in torch's layout, to and from torch's, handed over."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from tidegate import offload

#: A rule and arguments that give it all its states.
RULES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"amsgrad": True}),
    ("Adam", {"weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1}),
]


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 3, bias=False)
    ).to(dtype)


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        optimizer.zero_grad()
        dtype = next(module.parameters()).dtype
        module(torch.randn(4, 7, generator=generator).to(dtype)).pow(2).sum().backward()
        optimizer.step()


def assert_equal_states(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["state"].keys() == other["state"].keys()
    for key, state in one["state"].items():
        assert state.keys() == other["state"][key].keys()
        for name, value in state.items():
            assert torch.equal(value, other["state"][key][name]), (key, name)


def assert_equal_modules(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("name", "arguments"), RULES)
def test_states_go_to_torch_and_back_bit_for_bit(name: str, arguments: dict[str, Any]) -> None:
    module = model()
    ours = getattr(offload, name)(module.parameters(), **arguments)
    train(module, ours, seed=1, n=3)
    exported = ours.state_dict()
    theirs = getattr(torch.optim, name)(model().parameters(), **arguments)
    theirs.load_state_dict(exported)
    assert_equal_states(theirs.state_dict(), exported)
    back = getattr(offload, name)(model().parameters(), **arguments)
    back.load_state_dict(theirs.state_dict())
    assert_equal_states(back.state_dict(), exported)
    assert {*exported["param_groups"][0]} == {*theirs.state_dict()["param_groups"][0]}


@pytest.mark.parametrize(("name", "arguments"), [*RULES, ("Lion", {})])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    module = model(dtype)
    optimizer = getattr(offload, name)(module.parameters(), **arguments)
    train(module, optimizer, seed=1, n=5)
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(module, optimizer, seed=2, n=5)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = model(dtype)
    resumed.load_state_dict(saved["module"])
    again = getattr(offload, name)(resumed.parameters(), **arguments)
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, seed=2, n=5)
    assert_equal_modules(resumed, module)
    assert_equal_states(again.state_dict(), optimizer.state_dict())


def test_masters_are_kept_whether_the_optimizer_or_the_model_is_loaded_first() -> None:
    module = model(torch.bfloat16)
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=3)
    saved, weights = optimizer.state_dict(), copy.deepcopy(module.state_dict())
    saved = copy.deepcopy(saved)
    train(module, optimizer, seed=2, n=3)
    for optimizer_first in (False, True):
        other = model(torch.bfloat16)
        again = offload.AdamW(other.parameters())
        train(other, again, seed=7, n=1)
        loads = [lambda: other.load_state_dict(weights), lambda: again.load_state_dict(saved)]  # noqa: B023
        for load in reversed(loads) if optimizer_first else loads:
            load()
        train(other, again, seed=2, n=3)
        assert_equal_modules(other, module)
        assert_equal_states(again.state_dict(), optimizer.state_dict())


def test_a_master_of_other_weights_is_not_taken() -> None:
    """As of a checkpoint that has none, of which the optimizer's own was left in the dictionary."""
    module, plain = model(torch.bfloat16), model(torch.bfloat16)
    optimizer = offload.AdamW(module.parameters(), lr=0.0)
    train(module, optimizer, seed=1, n=1)
    weights = {name: 2 * value for name, value in module.state_dict().items()}
    saved = optimizer.state_dict()
    module.load_state_dict(weights)
    plain.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    train(module, optimizer, seed=2, n=1)
    assert_equal_modules(module, plain)


def test_states_of_sixteen_bit_parameters_keep_their_precision() -> None:
    module = model(torch.bfloat16)
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=3)
    saved = optimizer.state_dict()
    assert all(state["exp_avg"].dtype == torch.float32 for state in saved["state"].values())
    other = offload.AdamW(model(torch.bfloat16).parameters())
    other.load_state_dict(saved)
    assert_equal_states(other.state_dict(), saved)


def test_a_loaded_state_is_a_copy() -> None:
    module = model()
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=1)
    saved = {
        key: {name: value.clone() for name, value in state.items()}
        for key, state in optimizer.state_dict()["state"].items()
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": saved, "param_groups": groups})
    saved[0]["exp_avg"].zero_()
    assert optimizer.state_dict()["state"][0]["exp_avg"].any()


def test_hooks_see_and_change_what_is_saved_and_loaded() -> None:
    module = model()
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=1)
    optimizer.register_state_dict_post_hook(lambda _, saved: saved.update(note="kept"))
    saved = optimizer.state_dict()
    assert saved["note"] == "kept"

    def double(_: torch.optim.Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
        state = {**loaded["state"], 0: {**loaded["state"][0], "step": torch.tensor(41.0)}}
        return {**loaded, "state": state}

    optimizer.register_load_state_dict_pre_hook(double)
    optimizer.load_state_dict(saved)
    assert optimizer.state_dict()["state"][0]["step"] == 41


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "exp_avg",
            torch.zeros(3),
            r"parameter 0: exp_avg has shape \(3,\), its parameter \(33, 7\)",
        ),
        ("exp_avg_sq", 3.0, "exp_avg_sq must be a tensor; got float"),
        ("exp_avg", torch.zeros(33, 7, dtype=torch.int64), "floating-point"),
        ("exp_avg", torch.zeros(33, 7, dtype=torch.uint8), "exp_avg_scale"),
        ("step", torch.tensor(-1.0), "step must not be negative; got -1.0"),
    ],
)
def test_a_bad_state_is_refused_and_nothing_changes(key: str, value: Any, message: str) -> None:
    module = model()
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=1)
    before = optimizer.state_dict()
    kept = before["state"][1]["exp_avg"].clone()
    bad = {**before["state"], 0: {**before["state"][0], key: value}}
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict({**before, "state": bad})
    assert_equal_states(optimizer.state_dict(), before)
    assert torch.equal(optimizer.state_dict()["state"][1]["exp_avg"], kept)


def test_a_state_that_is_cleared_begins_anew() -> None:
    module, other = model(), model()
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=3)
    optimizer.state.clear()
    other.load_state_dict(module.state_dict())
    train(module, optimizer, seed=2, n=3)
    train(other, offload.AdamW(other.parameters()), seed=2, n=3)
    assert_equal_modules(module, other)


def test_a_state_entry_that_is_replaced_counts() -> None:
    module = model()
    optimizer = offload.AdamW(module.parameters(), lr=0.0)
    train(module, optimizer, seed=1, n=1)
    first = next(module.parameters())
    optimizer.state[first]["exp_avg"] = torch.full_like(first, 2.0)
    first.grad = torch.zeros_like(first)
    optimizer.step()
    torch.testing.assert_close(
        optimizer.state[first]["exp_avg"], torch.full_like(first, 1.8).detach()
    )


def test_amsgrad_may_be_switched_on_later() -> None:
    module = model()
    optimizer = offload.AdamW(module.parameters())
    train(module, optimizer, seed=1, n=2)
    squares = optimizer.state_dict()["state"][0]["exp_avg_sq"].clone()
    optimizer.param_groups[0]["amsgrad"] = True
    train(module, optimizer, seed=2, n=1)
    state = optimizer.state_dict()["state"][0]
    assert (state["max_exp_avg_sq"] >= squares * 0.99).all()


def test_groups_can_be_added_and_have_their_own_settings() -> None:
    module, other = model(), model()
    pairs = [(module, offload), (other, torch.optim)]
    optimizers = []
    for it, family in pairs:
        first, *rest = it.parameters()
        optimizer = family.AdamW([first], lr=1e-2)
        train(it, optimizer, seed=1, n=1)
        optimizer.add_param_group({"params": rest, "lr": 1e-3, "weight_decay": 0.0})
        optimizers.append(optimizer)
        train(it, optimizer, seed=2, n=3)
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


SCHEDULERS: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda _: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [1, 3]},
    "ConstantLR": {"total_iters": 2},
    "LinearLR": {"total_iters": 3},
    "ExponentialLR": {"gamma": 0.5},
    "PolynomialLR": {"total_iters": 4},
    "CosineAnnealingLR": {"T_max": 4},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2, "cycle_momentum": False, "step_size_up": 2},
    "OneCycleLR": {"max_lr": 1e-2, "total_steps": 8},
    "ReduceLROnPlateau": {"patience": 0},
    "SequentialLR": {},
    "ChainedScheduler": {},
}


def schedule(name: str, optimizer: torch.optim.Optimizer) -> Any:
    family = torch.optim.lr_scheduler
    arguments = dict(SCHEDULERS[name])
    if name in ("SequentialLR", "ChainedScheduler"):
        parts = [family.ConstantLR(optimizer, total_iters=2), family.ExponentialLR(optimizer, 0.5)]
        if name == "ChainedScheduler":
            return family.ChainedScheduler(parts)
        return family.SequentialLR(optimizer, parts, milestones=[2])
    return getattr(family, name)(optimizer, **arguments)


def test_every_scheduler_of_torch_is_tried() -> None:
    family = torch.optim.lr_scheduler
    present = {
        name
        for name, kind in vars(family).items()
        if isinstance(kind, type)
        and issubclass(kind, family.LRScheduler)
        and not name.startswith("_")
    }
    assert present - {"LRScheduler", "SWALR"} == set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_it_as_they_drive_torchs(name: str) -> None:
    rates: list[list[float]] = []
    modules = []
    for family in (offload, torch.optim):
        module = model()
        optimizer = family.AdamW(module.parameters(), lr=1e-2)
        scheduler = schedule(name, optimizer)
        rates.append([])
        for step in range(6):
            train(module, optimizer, seed=step, n=1)
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates[-1].append(float(optimizer.param_groups[0]["lr"]))
        modules.append(module)
    assert rates[0] == rates[1]
    assert len(set(rates[0])) > 1
    for mine, theirs in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "arguments"), RULES)
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_is_taken_over_and_given_back(
    name: str, arguments: dict[str, Any], scheduled: bool
) -> None:
    arguments = {"lr": 1e-2, **arguments}
    module, other = model(), model()
    optimizer = getattr(torch.optim, name)(module.parameters(), **arguments)
    reference = getattr(torch.optim, name)(other.parameters(), **arguments)
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (optimizer, reference)
    ]
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))

    def train_both(seed: int) -> None:
        train(module, optimizer, seed, n=2)
        train(other, reference, seed, n=2)
        if scheduled:
            for scheduler in schedulers:
                scheduler.step()

    train_both(1)
    before = {
        key: {k: v.clone() for k, v in s.items()}
        for key, s in optimizer.state_dict()["state"].items()
    }
    blocks = offload.stats().get("arena", {}).get("blocks", 0)
    taken = offload.offload_states(optimizer)
    assert_equal_states(optimizer.state_dict(), {"state": before})
    assert offload.stats()["arena"]["blocks"] > blocks
    assert isinstance(optimizer, getattr(torch.optim, name))
    train_both(2)
    taken.give_back()
    assert type(optimizer) is getattr(torch.optim, name)
    assert offload.stats()["arena"]["blocks"] == blocks
    train_both(3)
    taken.give_back()
    assert len(calls) == 6
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_optimizers_that_are_not_known_are_not_taken_over() -> None:
    class Mine(torch.optim.AdamW):
        pass

    parameters = list(model().parameters())
    for optimizer in (Mine(parameters), torch.optim.RMSprop(parameters)):
        with pytest.raises(TypeError, match=r"offload_states takes torch\.optim\.AdamW"):
            offload.offload_states(optimizer)
