"""Entries of states that somebody else puts in, takes out, or has left from other settings."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tidegate import offload

from tests.python.jobs import expect_right


def parameter(count: int = 300, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(count).to(dtype))


def train(optimizer: torch.optim.Optimizer, n: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        for group in optimizer.param_groups:
            for it in group["params"]:
                it.grad = torch.randn(it.shape, generator=generator).to(it.dtype)
        optimizer.step()


def only_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state_dict()["state"][0]
    return state


@pytest.mark.parametrize("change", ["set", "ior", "update"])
@pytest.mark.parametrize("states", ["fp32", "bf16", "8bit"])
def test_a_replaced_entry_shows_in_the_state_dict(change: str, states: str) -> None:
    it = parameter(dtype=torch.bfloat16)
    optimizer = offload.AdamW([it], states=states, master="split")
    train(optimizer, 2)
    before = only_state(optimizer)
    twos = torch.full_like(it, 2.0, dtype=torch.float32).detach()
    if change == "set":
        optimizer.state[it]["exp_avg"] = twos
    elif change == "ior":
        optimizer.state[it] |= {"exp_avg": twos}
    else:
        optimizer.state[it].update(exp_avg=twos)
    after = only_state(optimizer)
    assert torch.equal(after["exp_avg"], twos)
    assert {*after} == {"step", "exp_avg", "exp_avg_sq", "master_param"}
    for name in ("exp_avg_sq", "master_param", "step"):
        assert torch.equal(after[name], before[name])
        assert after[name].dtype == torch.float32


def test_an_entry_that_is_merged_in_is_stepped_with() -> None:
    it = parameter()
    optimizer = offload.AdamW([it], lr=0.0)
    train(optimizer, 1)
    optimizer.state[it] |= {"exp_avg": torch.full((300,), 2.0)}
    it.grad = torch.zeros(300)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[it]["exp_avg"], torch.full((300,), 1.8))


def test_a_state_of_other_memory_shows_in_the_state_dict() -> None:
    it = parameter()
    optimizer = offload.AdamW([it], states="bf16")
    train(optimizer, 1)
    optimizer.state[it]["exp_avg"].data = torch.full((300,), 3.0)
    assert torch.equal(only_state(optimizer)["exp_avg"], torch.full((300,), 3.0))


@pytest.mark.parametrize("layout", [{}, {"states": "8bit"}, {"master": "none"}])
def test_entries_of_the_users_own_stay(layout: dict[str, Any]) -> None:
    it = parameter(dtype=torch.bfloat16)
    optimizer = offload.AdamW([it], **layout)
    optimizer.state[it]["note"] = "before the first step"
    train(optimizer, 1)
    average = torch.arange(3.0)
    record = optimizer.state[it].record
    optimizer.state[it]["average"] = average
    train(optimizer, 1)
    assert optimizer.state[it].record is record
    assert optimizer.state[it]["average"] is average
    optimizer.state[it]["exp_avg"] = torch.zeros(300)
    train(optimizer, 1)
    it.data = it.data.clone()
    train(optimizer, 1)
    for again in (offload.AdamW([it], **layout), copy.deepcopy(optimizer)):
        again.load_state_dict(optimizer.state_dict())
        state = only_state(again)
        assert torch.equal(state["average"], average)
        assert state["note"] == "before the first step"
    del optimizer.state[it]["average"]
    train(optimizer, 1)
    assert "average" not in only_state(optimizer)


def test_entries_alone_are_no_state() -> None:
    it = parameter()
    optimizer = offload.AdamW([it])
    optimizer.state[it]["note"] = 1
    assert only_state(optimizer) == {"note": 1}
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[it] == {"note": 1}
    train(optimizer, 1)
    assert {*only_state(optimizer)} == {"note", "step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_may_be_zero_for_some_steps(dtype: torch.dtype, nesterov: bool) -> None:
    results = []
    for family in (offload, torch.optim):
        it = parameter(dtype=dtype if family is offload else torch.float32)
        it.data = parameter(dtype=dtype).data.to(it.dtype)
        optimizer = family.SGD([it], lr=1e-3, momentum=0.9, nesterov=nesterov)
        for momentum in (0.9, 0.0, 0.8):
            optimizer.param_groups[0]["momentum"] = momentum
            train(optimizer, 2, seed=int(10 * momentum))
            if momentum == 0:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        results.append((it, only_state(optimizer)["momentum_buffer"]))
    (mine, buffer), (theirs, expected) = results
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(mine.float(), theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(buffer, expected, rtol=4 * tolerance, atol=4 * tolerance)


def test_amsgrad_may_be_switched_off_and_on() -> None:
    results = []
    for family in (offload, torch.optim):
        it = parameter()
        optimizer = family.AdamW([it], lr=1e-3, amsgrad=True)
        for amsgrad in (True, False, True):
            optimizer.param_groups[0]["amsgrad"] = amsgrad
            train(optimizer, 2)
        results.append((it, only_state(optimizer)["max_exp_avg_sq"]))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_step_that_raises_begins_no_state(keeps: bool) -> None:
    """A momentum of zeros would be taken for one of an earlier step."""
    first, second = parameter(), parameter(10)
    optimizer = offload.SGD([first, second], lr=0.1, momentum=0.9, dampening=0.5)
    if keeps:
        optimizer.state[first]["note"] = 1
    first.grad, second.grad = torch.ones(300), torch.ones(10)
    second.grad.data = torch.ones(11)
    with pytest.raises(ValueError, match="shape"):
        optimizer.step()
    assert optimizer.state_dict()["state"] == ({0: {"note": 1}} if keeps else {})
    again = offload.SGD([first, second], lr=0.1, momentum=0.9, dampening=0.5)
    again.load_state_dict(optimizer.state_dict())
    second.grad = torch.ones(10)
    for one in (optimizer, again):
        one.step()
        assert torch.equal(one.state[first]["momentum_buffer"], torch.ones(300))


RAW = torch.zeros(300, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"exp_avg": RAW}, "lacks its exp_avg_scale"),
        ({"exp_avg": RAW, "exp_avg_scale": torch.ones(3)}, r"shape \(3,\), needed are 2 scales"),
        ({"exp_avg": RAW, "exp_avg_scale": 1.0}, "exp_avg_scale"),
        ({"master_param": None, "master_remainder": RAW}, "int16"),
        ({"master_param": None, "master_remainder": RAW.short()[1:]}, r"shape \(299,\)"),
        ({"step": float("inf")}, "step"),
    ],
)
@pytest.mark.parametrize("states", ["fp32", "bf16", "8bit"])
def test_bad_compressed_states_are_refused_and_nothing_changes(
    states: str, entries: dict[str, Any], message: str
) -> None:
    parameters = [parameter(dtype=torch.bfloat16), parameter(dtype=torch.bfloat16)]
    optimizer = offload.AdamW(parameters, states=states, master="split")
    train(optimizer, 2)
    before = optimizer.state_dict()
    bad = copy.deepcopy(before)
    bad["state"][0]["exp_avg"].zero_()
    bad["state"][1].update(entries)
    groups = optimizer.param_groups
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(bad)
    assert optimizer.param_groups is groups
    for place, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, before["state"][place][name])


def test_a_remainder_is_for_split_masters() -> None:
    it = parameter(dtype=torch.bfloat16)
    optimizer = offload.AdamW([it], master="fp32")
    train(optimizer, 1)
    saved = optimizer.state_dict()
    del saved["state"][0]["master_param"]
    saved["state"][0]["master_remainder"] = torch.zeros(300, dtype=torch.int16)
    with pytest.raises(ValueError, match="master='split'"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("states", ["fp32", "bf16", "8bit"])
def test_states_as_they_are_in_memory_are_taken_by_any_layout(states: str) -> None:
    it = torch.nn.Parameter(torch.randn(20, 30))
    compressed = offload.AdamW([it], states="8bit")
    train(compressed, 3)
    raw = dict(compressed.state[it])
    expected = only_state(compressed)
    it.data = it.data.t().contiguous().t()  # The blocks are other elements now.
    other = offload.AdamW([it], states=states)
    other.load_state_dict({**compressed.state_dict(), "state": {0: raw}})
    for name in ("exp_avg", "exp_avg_sq"):
        tolerance = {"fp32": 0.0, "bf16": 0.01, "8bit": 0.15}[states]
        torch.testing.assert_close(
            only_state(other)[name], expected[name], rtol=tolerance, atol=1e-3 if tolerance else 0
        )


#: Of two ranks each of which steps a part; the second has a gradient that is refused at first.
SHARDED_JOB = """
import copy, warnings
import torch
import torch.distributed as dist
from tidegate import offload

warnings.simplefilter("ignore")
dist.init_process_group("tidegate")
torch.manual_seed(0)
start = torch.randn(20_000)

def make(**how):
    it = torch.nn.Parameter(start.clone())
    return it, offload.SGD([it], lr=1e-3, momentum=0.9, nesterov=True, **how)

pairs = [make(), make(shard_over=dist.group.WORLD)]
(alone, _), (shared, sharded) = pairs
sharded.state[shared]["note"] = [1]
shared.grad_dtype = None
shared.grad = torch.ones(20_000, dtype=torch.float64 if dist.get_rank() else torch.float32)
try:
    sharded.step()
except (RuntimeError, TypeError):
    assert sharded.state[shared] == {"note": [1]}, sharded.state
else:
    raise AssertionError("no error")
for momentum in (0.9, 0.0, 0.8):
    for it, optimizer in pairs:
        optimizer.param_groups[0]["momentum"] = momentum
        for step in range(2):
            it.grad = torch.randn(20_000, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        saved = optimizer.state_dict()
        if momentum == 0:
            optimizer.load_state_dict(copy.deepcopy(saved))
            it.grad = torch.ones(20_000)
            optimizer.step()
    one, other = (optimizer.state_dict()["state"][0] for _, optimizer in pairs)
    assert torch.equal(alone, shared)
    assert torch.equal(one["momentum_buffer"], other["momentum_buffer"])
    assert other.pop("note") == [1] and one.keys() == other.keys(), (one.keys(), other.keys())
buffer = sharded.state[shared]["momentum_buffer"]
buffer.data = buffer.data.clone()
try:
    sharded.state_dict()
except RuntimeError as error:
    assert "this rank alone knows" in str(error), error
else:
    raise AssertionError("no error")
for _, optimizer in pairs:
    optimizer.step()
one, other = (optimizer.state_dict()["state"][0] for _, optimizer in pairs)
assert torch.equal(alone, shared)
assert torch.equal(one["momentum_buffer"], other["momentum_buffer"])
dist.destroy_process_group()
print("right")
"""


def test_states_over_ranks_keep_their_entries_too(tmp_path: Path) -> None:
    expect_right(SHARDED_JOB, tmp_path, 2)
