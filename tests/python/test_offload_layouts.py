"""Compressed layouts, in and out of state dicts and memory: split masters, bf16 and 8 bits."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from tidegate import offload

from tests.support.processes import ROOT

LAYOUTS = [
    (torch.bfloat16, {"master": "split"}),
    (torch.bfloat16, {"master": "split", "states": "bf16"}),
    (torch.bfloat16, {"master": "split", "states": "8bit"}),
    (torch.bfloat16, {"master": "fp32", "states": "8bit"}),
    (torch.float32, {"states": "bf16"}),
    (torch.float32, {"states": "8bit"}),
]
SHAPES = [(70, 33), (0,), (1,), (4097,), (255,)]


def make(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in SHAPES]


def train(parameters: list[torch.Tensor], optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
@pytest.mark.parametrize("weights_first", [True, False])
def test_a_resumed_run_is_the_uninterrupted_one(
    dtype: torch.dtype, layout: dict[str, Any], weights_first: bool
) -> None:
    parameters = make(dtype)
    optimizer = offload.AdamW(parameters, lr=1e-2, **layout)
    train(parameters, optimizer, seed=1)
    file = io.BytesIO()
    torch.save({"parameters": parameters, "optimizer": optimizer.state_dict()}, file)
    train(parameters, optimizer, seed=2)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = make(dtype)
    again = offload.AdamW(resumed, lr=1e-2, **layout)
    if not weights_first:
        again.load_state_dict(saved["optimizer"])
    with torch.no_grad():
        for parameter, value in zip(resumed, saved["parameters"], strict=True):
            parameter.copy_(value)
    if weights_first:
        again.load_state_dict(saved["optimizer"])
    train(resumed, again, seed=2)
    for mine, other in zip(resumed, parameters, strict=True):
        assert torch.equal(mine, other)
    expected = optimizer.state_dict()["state"]
    for key, state in again.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, expected[key][name]), (key, name)


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
def test_a_state_dict_is_in_torchs_layout_and_its_optimizer_takes_it(
    dtype: torch.dtype, layout: dict[str, Any]
) -> None:
    parameters = make(dtype)
    optimizer = offload.AdamW(parameters, **layout)
    train(parameters, optimizer, seed=1)
    saved = optimizer.state_dict()
    names = {"step", "exp_avg", "exp_avg_sq"} | (
        {"master_param"} if dtype == torch.bfloat16 else set()
    )
    for key, state in saved["state"].items():
        assert state.keys() == names
        assert state["exp_avg"].dtype == torch.float32
        assert state["exp_avg"].shape == parameters[key].shape
        if "master_param" in state:
            rounding = state["master_param"].to(dtype)
            assert (rounding - parameters[key]).abs().max() <= 2**-8 if rounding.numel() else True
    torch.optim.AdamW(make(dtype)).load_state_dict(saved)


def test_a_split_master_steps_as_a_float32_master_does() -> None:
    one, other = make(torch.bfloat16), make(torch.bfloat16)
    split, full = offload.AdamW(one, master="split"), offload.AdamW(other, master="fp32")
    for seed in range(3):
        train(one, split, seed)
        train(other, full, seed)
        pairs = zip(split.state_dict()["state"].values(), full.state.values(), strict=True)
        for mine, theirs in pairs:
            assert torch.equal(mine["master_param"], theirs["master_param"])
            assert torch.equal(mine["exp_avg_sq"], theirs["exp_avg_sq"])


def test_a_split_master_follows_weights_that_are_written_by_others() -> None:
    parameters = make(torch.bfloat16)
    optimizer = offload.AdamW(parameters, lr=0.0, master="split")
    train(parameters, optimizer, seed=1)
    with torch.no_grad():
        parameters[0].fill_(1.5)
    train(parameters, optimizer, seed=2)
    assert (parameters[0] == 1.5).all()
    master = optimizer.state_dict()["state"][0]["master_param"]
    assert (master - 1.5).abs().max() <= 2**-8  # Half a unit of bfloat16.


def copied(model: Any, optimizer: Any, weights: torch.Tensor) -> Any:
    return copy.deepcopy((model, optimizer))


def pickled(model: Any, optimizer: Any, weights: torch.Tensor) -> Any:
    return pickle.loads(pickle.dumps((model, optimizer)))


def moved(model: Any, optimizer: Any, weights: torch.Tensor) -> Any:
    model.data = weights.clone()
    return model, optimizer


def exported(model: Any, optimizer: Any, weights: torch.Tensor) -> Any:
    optimizer.state_dict()
    return model, optimizer


def replaced(model: Any, optimizer: Any, weights: torch.Tensor) -> Any:
    state = optimizer.state[model]
    state["exp_avg"] = state["exp_avg"].clone()
    return model, optimizer


@pytest.mark.parametrize("weights_first", [True, False])
@pytest.mark.parametrize("touch", [copied, pickled, moved, exported, replaced])
def test_a_split_master_that_was_loaded_keeps_its_bits(touch: Any, weights_first: bool) -> None:
    source = torch.nn.Parameter(torch.randn(300).bfloat16())
    optimizer = offload.AdamW([source], lr=1e-3, master="split")
    for seed in range(5):
        train([source], optimizer, seed)
    saved = copy.deepcopy(optimizer.state_dict())
    model = torch.nn.Parameter(torch.randn(300).bfloat16())
    other = offload.AdamW([model], lr=1e-3, master="split")
    if weights_first:
        model.data.copy_(source.data)
    other.load_state_dict(saved)
    model, other = touch(model, other, source.data)
    with torch.no_grad():
        model.copy_(source)
    expected = saved["state"][0]["master_param"]
    assert torch.equal(other.state_dict()["state"][0]["master_param"], expected)
    other.param_groups[0]["lr"] = 0.0
    train([model], other, 0)
    assert torch.equal(other.state_dict()["state"][0]["master_param"], expected)


def test_writes_that_change_nothing_leave_a_split_master_its_bits() -> None:
    parameters, others = make(torch.bfloat16), make(torch.bfloat16)
    written = offload.AdamW(parameters, lr=1e-5, master="split")
    left = offload.AdamW(others, lr=1e-5, master="split")
    for seed in range(5):
        train(parameters, written, seed)
        train(others, left, seed)
        with torch.no_grad():
            for parameter in parameters:
                parameter.clamp_(-1e3, 1e3)
    for mine, other in zip(parameters, others, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"amsgrad": True}), ("Lion", {})],
)
def test_compressed_states_are_for_adamw(rule: str, arguments: dict[str, Any]) -> None:
    parameters = make(torch.float32)
    message = rf"states='8bit' is for AdamW without amsgrad; got {rule}"
    with pytest.raises(ValueError, match=message):
        getattr(offload, rule)(parameters, states="8bit", **arguments)
    if rule == "Lion":
        return
    theirs = getattr(torch.optim, rule)(parameters, **arguments)
    with pytest.raises(ValueError, match=message):
        offload.offload_states(theirs, states="8bit")
    assert type(theirs) is getattr(torch.optim, rule)


def test_amsgrad_that_comes_later_is_refused_before_anything_changes() -> None:
    parameters = make(torch.float32)
    optimizer = offload.AdamW(parameters, states="8bit")
    with pytest.raises(ValueError, match="got AdamW with amsgrad; leave states out"):
        optimizer.add_param_group({"params": make(torch.float32), "amsgrad": True})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(NotImplementedError, match="block8"):
        train(parameters, optimizer, seed=1)
    assert torch.equal(parameters[0], make(torch.float32)[0])


MEMORY = """
import ctypes, json, sys
import torch
from tidegate import offload

def resident():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))

count, arguments = 16 << 20, json.loads(sys.argv[1])
warm = torch.zeros(1 << 16, dtype=torch.bfloat16, requires_grad=True)
warm.grad = torch.zeros_like(warm)
offload.AdamW([warm], **arguments).step()
before = resident()
parameter = torch.zeros(count, dtype=torch.bfloat16, requires_grad=True)
parameter.grad = torch.zeros(count, dtype=torch.bfloat16)
optimizer = offload.AdamW([parameter], **arguments)
for _ in range(2): optimizer.step()
arena = offload.stats()["arena"]
print((resident() - before) / count, arena["committed_bytes"] / arena["requested_bytes"])
"""


@pytest.mark.parametrize(("states", "limit"), [("fp32", 14.1), ("bf16", 10.1), ("8bit", 8.2)])
def test_what_is_resident_is_what_the_layout_says(states: str, limit: float) -> None:
    arguments = json.dumps({"master": "split", "states": states})
    done = subprocess.run(
        (sys.executable, "-c", MEMORY, arguments),
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    resident, committed = map(float, done.stdout.split())
    assert limit - 0.3 < resident <= limit
    assert committed <= 1.01
