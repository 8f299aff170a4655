"""Random optimizers, groups, shapes and numbers, each stepped beside torch's own.

`make test` takes a seeded slice; `make test-all` 10,000 cases (TIDEGATE_TEST_SEED: others).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tidegate import offload

from tests.conformance.cases import base_seed, run_all

CASES = 10_000 if run_all() else 150
PARTS = 20
SHAPES: list[tuple[int, ...]] = [
    *[(), (0,), (1,), (2, 3), (17,), (4, 0, 2), (64,), (33, 31)],
    *[(4095,), (4096,), (4097,), (3, 2000), (70_000,)],
]


def hyperparameters(rng: random.Random, rule: str) -> dict[str, Any]:
    some = {
        "lr": rng.choice([0.0, 1e-5, 1e-3, 0.1]),
        "weight_decay": rng.choice([0.0, 0.01, 0.5]),
        "maximize": rng.random() < 0.3,
    }
    if rule in ("Adam", "AdamW"):
        some["betas"] = (rng.choice([0.0, 0.4, 0.9]), rng.choice([0.5, 0.9, 0.999]))
        some["eps"] = rng.choice([1e-8, 1e-3])
        some["amsgrad"] = rng.random() < 0.3
    elif rule == "SGD":
        some["momentum"] = rng.choice([0.0, 0.5, 0.9])
        some["dampening"] = rng.choice([0.0, 0.2])
        some["nesterov"] = some["momentum"] > 0 and some["dampening"] == 0 and rng.random() < 0.5
    else:
        some["lr_decay"] = rng.choice([0.0, 0.1])
        some["eps"] = rng.choice([1e-10, 1e-3])
    return some


def numbers(rng: random.Random, shape: tuple[int, ...], special: bool) -> torch.Tensor:
    """Mostly ordinary ones, perhaps laid out otherwise in memory."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    values = torch.randn(shape, generator=generator) * rng.choice([1.0, 1e-3, 30.0])
    if special and values.numel():
        for value in (float("nan"), float("inf"), float("-inf"), 1e-40, -0.0, 3e38):
            if rng.random() < 0.5:
                values.view(-1)[rng.randrange(values.numel())] = value
    if values.dim() == 2 and rng.random() < 0.3:
        values = values.t().contiguous().t()
    return values


def compare(ours: torch.Tensor, theirs: torch.Tensor, what: str, case: int) -> None:
    """To a few units in the last place of the numbers that the result came from.

    With L2 decay these may have cancelled: a gradient that is nearly nothing then says little.
    """
    message = f"case {case}: {what}"
    torch.testing.assert_close(
        ours, theirs, rtol=2e-6, atol=1e-5, equal_nan=True, msg=lambda text: f"{message}: {text}"
    )


def run(case: int) -> None:
    rng = random.Random(f"{base_seed()}/{case}")
    rule = rng.choice(["Adam", "AdamW", "AdamW", "SGD", "Adagrad"])
    special = rng.random() < 0.3
    groups: list[tuple[list[torch.Tensor], dict[str, Any]]] = []
    for _ in range(rng.randint(1, 3)):
        shapes = rng.choices(SHAPES[:-1], k=rng.randint(1, 4))
        if rng.random() < 0.05:
            shapes.append(SHAPES[-1])
        tensors = [numbers(rng, shape, special=False) for shape in shapes]
        groups.append((tensors, hyperparameters(rng, rule)))

    def build(family: Any) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        copies = [[t.clone().requires_grad_() for t in tensors] for tensors, _ in groups]
        options = [
            {"params": parameters, **chosen}
            for parameters, (_, chosen) in zip(copies, groups, strict=True)
        ]
        optimizer = getattr(family, rule)(options)
        return [parameter for group in copies for parameter in group], optimizer

    ours, mine = build(offload)
    theirs, reference = build(torch.optim)
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    for _ in range(rng.randint(1, 3)):
        for one, other in zip(ours, theirs, strict=True):
            if rng.random() < 0.1:
                one.grad = other.grad = None
                continue
            gradient = numbers(rng, tuple(one.shape), special).to(dtype)
            one.grad_dtype = dtype
            one.grad, other.grad = gradient, gradient.float()
        mine.step()
        reference.step()
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        compare(one, other, f"parameter {place} of {rule}", case)
        wanted = {k: v for k, v in reference.state.get(other, {}).items() if v is not None}
        found = mine.state.get(one, {})
        assert found.keys() == wanted.keys(), (case, found.keys(), wanted.keys())
        for name, value in wanted.items():
            scale = 1 + float(value.abs().nan_to_num(0, 0, 0).max()) if value.numel() else 1.0
            finite = value.isfinite()
            assert torch.equal(found[name].isfinite(), finite), (case, place, name)
            compare(found[name][finite] / scale, value[finite] / scale, name, case)


@pytest.mark.parametrize("part", range(PARTS) if run_all() else [0])
def test_random_steps_are_torchs(part: int) -> None:
    parts = PARTS if run_all() else 1
    for case in range(part, CASES, parts):
        run(case)
