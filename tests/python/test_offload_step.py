"""The offloaded step: torch's results, dtypes, clipping, scaling, and nothing done by halves."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tidegate import offload

from tests.python.tree import ROOT

#: A rule, torch's class, the arguments of both.
RULES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.0, "betas": (0.7, 0.95), "eps": 1e-6}),
    ("AdamW", {"betas": (0.3, 0.99), "weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True}),
    ("AdamW", {"maximize": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.1}),
    (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5},
    ),
]
SHAPES = [(3, 5), (0,), (1,), (4097,), (2, 0, 3), (64, 257), ()]


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in SHAPES]


def give_gradients(all_of: list[list[torch.Tensor]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for same in zip(*all_of, strict=True):
        gradient = torch.randn(same[0].shape, generator=generator)
        for parameter in same:
            parameter.grad = gradient.to(parameter.dtype, copy=True)


# Numbers here are up to 4, whose last bit is 2.4e-7: what cancels to less keeps that error.
def assert_close(
    ours: list[torch.Tensor], theirs: list[torch.Tensor], rtol: float, atol: float = 3e-7
) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("name", "arguments"), RULES)
def test_each_step_is_torchs(name: str, arguments: dict[str, Any]) -> None:
    fused = {"fused": True} if name != "Adagrad" else {}
    theirs = parameters()
    reference = getattr(torch.optim, name)(theirs, **arguments, **fused)
    for step in range(6):
        # From the same state: what differs is one step's rounding.
        ours = [p.detach().clone().requires_grad_() for p in theirs]
        mine = getattr(offload, name)(ours, **arguments)
        if step > 0:
            mine.load_state_dict(reference.state_dict())
        give_gradients([ours, theirs], seed=step)
        mine.step()
        reference.step()
        assert_close(ours, theirs, rtol=1e-6)
        expected = reference.state_dict()["state"]
        for key, state in mine.state_dict()["state"].items():
            assert state.keys() == {k for k, v in expected[key].items() if v is not None}
            for entry, value in state.items():
                torch.testing.assert_close(value, expected[key][entry], rtol=1e-6, atol=3e-7)


#: Learning rates, gradients and weights whose parts cancel, or outweigh each other.
FAR_APART: list[tuple[str, dict[str, Any], float, float]] = [
    ("AdamW", {"lr": 0.9, "weight_decay": 1.0, "betas": (0.3, 0.999)}, 1e-3, 1.0),
    ("AdamW", {"lr": 0.1, "betas": (0.95, 0.99), "eps": 1e-11}, 1e-6, 0.02),
    ("Adam", {"lr": 0.1, "betas": (0.0, 0.999), "amsgrad": True}, 1e-3, 0.1),
    ("Adam", {"lr": 0.1, "weight_decay": 0.05}, 1e-3, 0.02),
    ("Adagrad", {"lr": 0.1, "weight_decay": 0.01}, 1e-3, 0.02),
    ("SGD", {"lr": 0.1, "momentum": 0.9}, 10.0, 0.02),
    ("SGD", {"lr": 0.1, "momentum": 0.99, "dampening": 0.1, "weight_decay": 0.1}, 1.0, 0.02),
    ("SGD", {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 1.0}, 3e3, 1.0),
]


@pytest.mark.parametrize(("name", "arguments", "gradients", "weights"), FAR_APART)
def test_a_step_differs_from_torchs_by_what_the_documentation_says(
    name: str, arguments: dict[str, Any], gradients: float, weights: float
) -> None:
    (bound,) = re.findall(
        r"fused one by at most (\S+) of the parameter", (ROOT / "docs/offload.md").read_text()
    )
    generator = torch.Generator().manual_seed(0)
    theirs = (torch.randn(1 << 16, generator=generator) * weights).requires_grad_()
    ours = theirs.detach().clone().requires_grad_()
    reference = getattr(torch.optim, name)([theirs], fused=True, **arguments)
    mine = getattr(offload, name)([ours], **arguments)
    for step in range(8):
        if step > 0:
            with torch.no_grad():
                ours.copy_(theirs)
            mine.load_state_dict(reference.state_dict())
        before = theirs.detach().clone()
        buffer = reference.state[theirs].get("momentum_buffer", torch.zeros(())).clone()
        ours.grad = torch.randn(before.shape, generator=generator) * gradients
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
        scale = torch.maximum(before.abs(), (theirs - before).abs()).double()
        if name == "SGD":
            factor = arguments["lr"] * arguments["momentum"]
            scale = torch.maximum(scale, factor * buffer.double().abs())
        assert bool(((ours - theirs).abs() <= float(bound) * scale).all()), step


def lion(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor, lr: float, wd: float) -> None:
    p.mul_(1 - lr * wd).sub_(lr * torch.sign(0.9 * m + (1 - 0.9) * g))
    m.mul_(0.99).add_(g, alpha=1 - 0.99)


def test_lion_is_the_papers() -> None:
    ours, theirs = parameters(), parameters()
    momenta = [torch.zeros_like(p) for p in theirs]
    optimizer = offload.Lion(ours, lr=0.01, weight_decay=0.1)
    for step in range(5):
        give_gradients([ours, theirs], seed=step)
        optimizer.step()
        with torch.no_grad():
            for p, m in zip(theirs, momenta, strict=True):
                assert p.grad is not None
                lion(p, m, p.grad, 0.01, 0.1)
        assert_close(ours, theirs, rtol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "gradient"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad", "Lion"])
def test_a_sixteen_bit_parameter_is_its_masters_rounding(
    name: str, dtype: torch.dtype, gradient: torch.dtype
) -> None:
    short = torch.randn(5000).to(dtype).requires_grad_()
    long = short.detach().float().requires_grad_()
    arguments = {"lr": 1e-3} | ({"momentum": 0.9} if name == "SGD" else {})
    mixed = getattr(offload, name)([short], **arguments)
    full = getattr(offload, name)([long], **arguments)
    for _ in range(5):
        grad = torch.randn(5000).to(gradient)
        if gradient == dtype:
            short.grad = grad
        else:
            short.grad_dtype = gradient
            short.grad = grad
        long.grad = grad.float()
        mixed.step()
        full.step()
        assert torch.equal(mixed.state[short]["master_param"], long)
        assert torch.equal(short, long.to(dtype))


def test_master_follows_weights_that_are_written_by_others() -> None:
    parameter = torch.randn(100).bfloat16().requires_grad_()
    optimizer = offload.AdamW([parameter], lr=1e-3)
    parameter.grad = torch.randn(100).bfloat16()
    optimizer.step()
    master = optimizer.state[parameter]["master_param"].clone()
    with torch.no_grad():
        parameter[:50] = 3.0
    parameter.grad = torch.zeros(100).bfloat16()
    optimizer.param_groups[0].update(lr=0.0)
    optimizer.step()
    assert (parameter[:50] == 3.0).all()
    # Elements that nobody has written keep the bits that the parameter does not show.
    assert torch.equal(optimizer.state[parameter]["master_param"][50:], master[50:])


def write_through_data(parameter: torch.Tensor, values: torch.Tensor) -> None:
    parameter.data.copy_(values)


def replace_data(parameter: torch.Tensor, values: torch.Tensor) -> None:
    parameter.data = values.clone()


def write_in_place(parameter: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)


@pytest.mark.parametrize("write", [write_in_place, write_through_data, replace_data])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 5, 64, 5000])
def test_weights_that_are_loaded_stay_however_they_are_written(
    write: Callable[[torch.Tensor, torch.Tensor], None], dtype: torch.dtype, size: int
) -> None:
    parameter = torch.randn(size).to(dtype).requires_grad_()
    optimizer = offload.AdamW([parameter], lr=0.0)
    parameter.grad = torch.randn(size).to(dtype)
    optimizer.step()
    loaded = torch.randn(size).to(dtype)
    loaded[0] = float("nan")
    write(parameter, loaded)
    optimizer.step()
    assert torch.equal(parameter[1:], loaded[1:])
    assert parameter[0].isnan()


def test_a_parameter_without_master_is_computed_in_float32_and_rounded() -> None:
    parameter = torch.randn(1000).bfloat16().requires_grad_()
    wide = parameter.detach().float().requires_grad_()
    optimizer = offload.SGD([parameter], lr=0.1, master="none")
    parameter.grad = torch.randn(1000).bfloat16()
    wide.grad = parameter.grad.float()
    optimizer.step()
    offload.SGD([wide], lr=0.1).step()
    assert torch.equal(parameter, wide.bfloat16())


def strided(kind: str) -> torch.Tensor:
    """Tensors of one shape whose elements lie in memory in several ways."""
    if kind == "transposed":
        return torch.randn(7, 5).t()
    if kind == "gaps":
        return torch.randn(10, 14)[::2, ::2]
    return torch.randn(5, 7)


@pytest.mark.parametrize("kind", ["contiguous", "transposed", "gaps"])
@pytest.mark.parametrize("gradient", ["contiguous", "transposed", "gaps"])
def test_memory_order_does_not_matter(kind: str, gradient: str) -> None:
    whole = strided(kind).requires_grad_()
    plain = whole.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    ours, theirs = offload.AdamW([whole]), offload.AdamW([plain])
    for _ in range(3):
        grad = strided(gradient)
        whole.grad, plain.grad = grad, grad.clone(memory_format=torch.contiguous_format)
        ours.step()
        theirs.step()
        assert torch.equal(whole, plain)
    assert torch.equal(ours.state[whole]["exp_avg"], theirs.state[plain]["exp_avg"])


def test_one_tensor_and_its_parts_step_alike() -> None:
    whole = torch.randn(200_000).requires_grad_()
    cuts = [1, 4095, 4096, 4097, 65536, 100_000]
    parts = [part.clone().requires_grad_() for part in whole.detach().tensor_split(cuts)]
    one, many = offload.AdamW([whole]), offload.AdamW(parts)
    for _ in range(3):
        whole.grad = torch.randn(200_000)
        for part, grad in zip(parts, whole.grad.tensor_split(cuts), strict=True):
            part.grad = grad
        one.step()
        many.step()
        assert torch.equal(whole.detach(), torch.cat([part.detach() for part in parts]))


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_fused_clipping_is_clip_grad_norm(max_norm: float) -> None:
    ours, theirs = parameters(), parameters()
    clipping = offload.AdamW(ours, max_grad_norm=max_norm)
    reference = torch.optim.AdamW(theirs, fused=True)
    for step in range(4):
        give_gradients([ours, theirs], seed=step)
        before = [p.grad.clone() for p in ours if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        reference.step()
        clipping.step()
        assert clipping.grad_norm == pytest.approx(float(norm), rel=1e-6)
        assert_close(ours, theirs, rtol=2e-6)
        for p, grad in zip(ours, before, strict=True):
            assert p.grad is not None
            assert torch.equal(p.grad, grad)


def test_an_infinite_limit_has_the_norm_and_clips_nothing() -> None:
    ours, theirs = parameters(), parameters()
    watching, plain = offload.AdamW(ours, max_grad_norm=float("inf")), offload.AdamW(theirs)
    give_gradients([ours, theirs], seed=1)
    norm = torch.nn.utils.get_total_norm([p.grad for p in theirs if p.grad is not None])
    watching.step()
    plain.step()
    assert watching.grad_norm == pytest.approx(float(norm), rel=1e-6)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_grad_scaler_skips_an_infinite_gradient(name: str) -> None:
    ours, theirs = parameters(), parameters()
    arguments = {"lr": 0.1}
    mine = getattr(offload, name)(ours, **arguments)
    reference = getattr(torch.optim, name)(theirs, **arguments, fused=True)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    for step in range(5):
        for group, optimizer, scaler in ((ours, mine, scalers[0]), (theirs, reference, scalers[1])):
            optimizer.zero_grad()
            give_gradients([group], seed=step)
            scaler.scale(torch.tensor(1.0))  # As scale(loss) does: from here on it has a scale.
            for p in group:
                assert p.grad is not None
                p.grad.mul_(scaler.get_scale())
            if step == 2:
                assert group[0].grad is not None
                group[0].grad[1, 2] = float("inf")
            before = [p.detach().clone() for p in group]
            scaler.step(optimizer)
            scaler.update()
            if step == 2:
                assert all(torch.equal(p, was) for p, was in zip(group, before, strict=True))
        assert_close(ours, theirs, rtol=2e-6, atol=1e-6)
    assert scalers[0].get_scale() == scalers[1].get_scale() == 512.0


def test_parts_that_are_no_dtensors_are_not_taken_for_the_whole() -> None:
    """FSDP1's: a rank sees neither what others found nor their part of the norm."""
    ours = parameters()
    optimizer = offload.AdamW(ours, max_grad_norm=1.0)
    assert optimizer._step_supports_amp_scaling
    for parameter in ours:
        parameter._fsdp_flattened = True  # type: ignore[attr-defined]
    assert not optimizer._step_supports_amp_scaling
    give_gradients([ours], seed=0)
    before = [p.detach().clone() for p in ours]
    with pytest.raises(ValueError, match="needs norm_group="):
        optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(ours, before, strict=True))


def test_gradients_that_are_missing_leave_their_parameters() -> None:
    ours = parameters()
    frozen = torch.ones(3)
    optimizer = offload.AdamW([{"params": ours[:2]}, {"params": [*ours[2:], frozen]}])
    optimizer.step()
    assert not optimizer.state
    ours[3].grad = torch.ones_like(ours[3])
    optimizer.step()
    assert list(optimizer.state) == [ours[3]]
    assert torch.equal(frozen, torch.ones(3))


def with_gradient(
    make: Callable[[], torch.Tensor], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    parameter.grad_dtype = None
    parameter.grad = make()
    return parameter


def sparse_gradient() -> list[torch.Tensor]:
    embedding = torch.nn.Embedding(4, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    return list(embedding.parameters())


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (sparse_gradient, ValueError, "sparse gradients need an optimizer of torch.optim"),
        (
            lambda: [with_gradient(lambda: torch.ones(3, dtype=torch.float64))],
            TypeError,
            "of parameter 0 of its group .* Double; offered are",
        ),
        # Places are counted among all, with a gradient and without.
        (
            lambda: [torch.ones(3, requires_grad=True), *sparse_gradient()],
            ValueError,
            "of parameter 1 of its group has the layout Sparse",
        ),
        (
            lambda: [
                with_gradient(lambda: torch.ones(3, dtype=torch.float16), dtype=torch.bfloat16)
            ],
            TypeError,
            "has the dtype Half; that of a parameter of BFloat16 has its dtype or float32",
        ),
    ],
)
def test_a_bad_gradient_changes_nothing(
    bad: Callable[[], list[torch.Tensor]], error: type[Exception], message: str
) -> None:
    good = torch.ones(5000, requires_grad=True)
    good.grad = torch.ones(5000)
    optimizer = offload.AdamW([{"params": [good]}, {"params": bad()}])
    with pytest.raises(error, match=message):
        optimizer.step()
    assert torch.equal(good, torch.ones(5000))
    assert all(float(state["step"]) == 0 for state in optimizer.state.values())


@pytest.mark.parametrize("value", [float("nan"), -1.0, float("inf")])
def test_a_learning_rate_that_is_none_changes_nothing(value: float) -> None:
    ours = parameters()
    before = [p.detach().clone() for p in ours]
    optimizer = offload.AdamW(ours)
    optimizer.param_groups[0]["lr"] = value
    give_gradients([ours], seed=0)
    with pytest.raises(ValueError, match="lr"):
        optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(ours, before, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "learning rate"),
        ({"lr": float("nan")}, "learning rate"),
        ({"betas": (1.0, 0.9)}, "beta"),
        ({"eps": -1.0}, "epsilon"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm"),
        ({"master": "fp64"}, "master must be one of auto, none, fp32, split; got 'fp64'"),
        ({"states": "4bit"}, "states must be one of fp32, bf16, 8bit; got '4bit'"),
        ({"differentiable": True}, "differentiable"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offload.AdamW([torch.ones(1, requires_grad=True)], **arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_dtypes_that_are_not_offered_are_refused(dtype: torch.dtype) -> None:
    parameter = torch.ones(2, dtype=dtype, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(TypeError, match=rf"{dtype} .* a separate optimizer of torch\.optim"):
        offload.AdamW([parameter]).step()


def test_a_closure_and_hooks_are_called_as_by_torch() -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = offload.SGD([parameter], lr=1.0)
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: order.append("pre"))
    optimizer.register_step_post_hook(lambda *_: order.append("post"))

    def closure() -> torch.Tensor:
        order.append("closure")
        optimizer.zero_grad()
        loss = (2 * parameter).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6.0
    assert order == ["pre", "closure", "post"]
    assert torch.equal(parameter, torch.full((3,), -1.0))


def test_lr_may_be_a_tensor_that_changes() -> None:
    rate = torch.tensor(0.5)
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = offload.SGD([parameter], lr=rate)
    parameter.grad = torch.ones(2)
    optimizer.step()
    rate.fill_(0.25)
    optimizer.step()
    assert torch.equal(parameter, torch.full((2,), -0.75))


@pytest.mark.filterwarnings("error")
def test_a_training_step_may_be_compiled_around_it() -> None:
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2)
        optimizer = offload.AdamW(module.parameters(), lr=0.1)

        def train(
            x: torch.Tensor,
            module: torch.nn.Module = module,
            optimizer: offload.AdamW = optimizer,
        ) -> None:
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()

        run = torch.compile(train, backend="eager") if compiles else train
        for step in range(3):
            run(torch.full((4, 3), step + 1.0))
        results.append(module.weight.detach())
    assert torch.equal(*results)


def test_autograd_learns_that_a_parameter_has_changed() -> None:
    parameter = torch.ones(3, requires_grad=True)
    loss = (parameter * parameter).sum()
    parameter.grad = torch.ones(3)
    offload.SGD([parameter], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_optimizer_can_be_copied() -> None:
    ours = parameters()
    optimizer = offload.AdamW(ours, max_grad_norm=1.0)
    give_gradients([ours], seed=0)
    optimizer.step()
    twin_parameters, twin = copy.deepcopy((ours, optimizer))
    assert twin.max_grad_norm == 1.0
    for step in range(3):
        give_gradients([ours, twin_parameters], seed=step)
        optimizer.step()
        twin.step()
    for mine, other in zip(ours, twin_parameters, strict=True):
        assert torch.equal(mine, other)


def test_statistics_tell_threads_and_memory() -> None:
    parameter = torch.ones(1 << 20, requires_grad=True)
    parameter.grad = torch.ones(1 << 20)
    optimizer = offload.AdamW([parameter])
    optimizer.step()
    with_states = offload.stats()
    assert len(with_states["threads"]) >= 1
    del optimizer, parameter
    without = offload.stats()
    freed = with_states["arena"]["requested_bytes"] - without["arena"]["requested_bytes"]
    assert freed == 2 * 4 * (1 << 20)
