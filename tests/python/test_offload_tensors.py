"""What parameters, gradients and states may be as tensors, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree
from tidegate import offload
from torch.testing._internal.two_tensor import TwoTensor

from tests.support.interpreter import run_script


def stepped(gradient: torch.Tensor) -> torch.Tensor:
    parameter = torch.ones(8, requires_grad=True)
    parameter.grad = gradient
    offload.SGD([parameter], lr=0.1).step()
    return parameter.detach()


def test_a_gradient_without_memory_is_zero() -> None:
    assert torch.equal(stepped(torch._efficientzerotensor((8,))), torch.ones(8))


def test_a_gradient_that_negates_its_memory_is_negated() -> None:
    assert torch.equal(stepped(torch._neg_view(torch.ones(8))), torch.full((8,), 1.1))


def test_a_gradient_that_is_still_on_its_way_is_waited_for() -> None:
    class OnItsWay(torch.Tensor):
        def wait(self) -> torch.Tensor:
            return torch.ones(8)

    late = torch.zeros(8).as_subclass(OnItsWay)
    torch.testing.assert_close(stepped(late), torch.full((8,), 0.9))


def test_a_subclass_that_wraps_other_tensors_is_refused() -> None:
    two = TwoTensor(torch.ones(8), torch.ones(8))
    with pytest.raises(TypeError, match="gradients are ordinary tensors; got a subclass"):
        stepped(two)
    parameter = TwoTensor(torch.ones(8), torch.ones(8)).requires_grad_()
    parameter.grad = pytree.tree_map(torch.clone, two)
    with pytest.raises(TypeError, match="parameters are ordinary tensors; got a subclass"):
        offload.SGD([parameter], lr=0.1, momentum=0.9).step()


def test_a_parameter_whose_elements_share_memory_is_refused_before_anything_changes() -> None:
    good = torch.ones(5, requires_grad=True)
    shared = torch.zeros(1).expand(4).requires_grad_()
    good.grad, shared.grad = torch.ones(5), torch.ones(4)
    optimizer = offload.SGD([good, shared], lr=0.1)
    with pytest.raises(ValueError, match="memory of its own for each element"):
        optimizer.step()
    assert torch.equal(good, torch.ones(5))


@pytest.mark.parametrize("change", [lambda v: v[:10].clone(), lambda v: v.double().int()])
def test_a_state_that_was_given_other_memory_is_refused(change) -> None:
    parameter = torch.ones(5000, requires_grad=True)
    parameter.grad = torch.ones(5000)
    optimizer = offload.AdamW([parameter])
    optimizer.step()
    before = parameter.detach().clone()
    state = optimizer.state[parameter]["exp_avg"]
    state.data = change(state.data)
    with pytest.raises(ValueError, match="exp_avg"):
        optimizer.step()
    assert torch.equal(parameter, before)


def test_a_state_that_was_moved_to_other_memory_counts() -> None:
    parameter = torch.ones(5000, requires_grad=True)
    parameter.grad = torch.ones(5000)
    optimizer = offload.AdamW([parameter])
    optimizer.step()
    state = optimizer.state[parameter]["exp_avg"]
    state.data = torch.full((5000,), 2.0, dtype=torch.bfloat16)
    optimizer.step()
    expected = torch.full((5000,), 2.0 * 0.9 + 0.1)
    torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], expected)


@pytest.mark.parametrize("momentum", [0.5, 0.0])
def test_a_state_of_another_order_counts_element_by_element(momentum: float) -> None:
    dtype = torch.float32 if momentum else torch.bfloat16
    parameter = torch.zeros(6, 5, dtype=dtype, requires_grad=True)
    parameter.grad = torch.zeros(6, 5, dtype=dtype)
    optimizer = offload.SGD([parameter], lr=1.0, momentum=momentum)
    optimizer.step()
    state = optimizer.state[parameter]["momentum_buffer" if momentum else "master_param"]
    values = torch.arange(30.0).view(6, 5)
    if not momentum:
        parameter.data.copy_(values)
    state.data = values.t().contiguous().t()
    optimizer.step()
    assert torch.equal(parameter.detach().float(), -momentum * values if momentum else values)


def tied_by_memory(dtype: torch.dtype) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    one = torch.nn.Parameter(torch.arange(20, dtype=dtype))
    other = torch.nn.Parameter(one.detach()[4:12])
    return one, other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_that_share_memory_are_refused(dtype: torch.dtype, momentum: float) -> None:
    one, other = tied_by_memory(dtype)
    third = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    groups = [{"params": [("a", third), ("b", one)]}, {"params": [("c", other)]}]
    optimizer = offload.SGD(groups, lr=0.1, momentum=momentum)
    third.grad, one.grad = torch.ones_like(third), torch.ones_like(one)
    optimizer.step()
    before = one.detach().clone()
    other.grad = torch.ones_like(other)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"parameter 1 of group 0 .* 0 of group 1 .*tie the"):
            optimizer.step()
        assert torch.equal(one, before)
        assert other not in optimizer.state
    other.data = other.detach().clone()
    optimizer.step()
    other.data = one.detach()[:8]
    with pytest.raises(ValueError, match="share memory"):
        optimizer.step()


def test_views_of_one_tensor_that_share_no_element_step() -> None:
    whole = torch.arange(60.0).view(6, 10)
    parts = [whole[:, :4], whole[:, 4:7], whole[::2, 7:], whole[1::2, 7:], whole[:0]]
    parameters = [torch.nn.Parameter(part) for part in parts]
    optimizer = offload.SGD(parameters, lr=1.0)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(whole, torch.arange(60.0).view(6, 10) - 1)
    optimizer.add_param_group({"params": [torch.nn.Parameter(whole[5:, 9])]})
    (added,) = optimizer.param_groups[1]["params"]
    added.grad = torch.ones_like(added)
    with pytest.raises(ValueError, match=r"parameter 3 of group 0 and parameter 0 of group 1"):
        optimizer.step()


def test_writes_past_autograd_to_a_parameter_with_gaps_are_noticed() -> None:
    whole = torch.ones(100, 100, dtype=torch.bfloat16)
    parameter = whole[:, ::2].requires_grad_()
    optimizer = offload.SGD([parameter], lr=1e-3)
    for _ in range(2):
        parameter.grad = torch.ones(100, 50, dtype=torch.bfloat16)
        optimizer.step()
        parameter.data.fill_(7.0)
    parameter.grad = torch.zeros(100, 50, dtype=torch.bfloat16)
    optimizer.step()
    assert (parameter == 7.0).all()


def test_a_step_after_most_of_what_the_last_one_saw_is_gone() -> None:
    # Large ones: their memory goes back to the system, and nothing is where it was.
    parameters = [torch.ones(1 << 20, requires_grad=True) for _ in range(8)]
    optimizer = offload.AdamW(parameters, lr=0.1, weight_decay=0.0)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = parameters.pop()
    for parameter in parameters:
        del optimizer.state[parameter]
    optimizer.param_groups[0]["params"] = [kept]
    del parameter, parameters
    kept.grad = torch.ones_like(kept)
    optimizer.step()
    torch.testing.assert_close(kept.detach(), torch.full_like(kept, 0.8))


def test_it_works_where_addresses_are_limited(tmp_path: Path) -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (20 << 30, 20 << 30));"
        "import torch; from tidegate import offload;"
        "p = torch.ones(3, requires_grad=True); p.grad = torch.ones(3);"
        "offload.AdamW([p]).step(); print('right')"
    )
    done = run_script(script, tmp_path, OMP_NUM_THREADS="1")
    assert done.stdout == "right\n", done.stderr


def test_a_step_without_threads_changes_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    script = (
        "import os, resource, torch, torch._dynamo; from tidegate import offload\n"
        "q = torch.ones(1 << 18, requires_grad=True); q.grad = torch.ones_like(q)\n"
        "of_torch = torch.optim.AdamW([q], lr=0.1); of_torch.step()\n"
        "p = q.detach().clone().requires_grad_(); p.grad = torch.ones_like(p)\n"
        "o = offload.AdamW([p], lr=0.1); o.load_state_dict(of_torch.state_dict())\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGESIZE')\n"
        "old = resource.getrlimit(resource.RLIMIT_AS)\n"
        # Room for the stacks of some threads, not of 64.
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), old[1]))\n"
        "try:\n"
        "    o.step(); print('stepped')\n"
        "except MemoryError as error:\n"
        "    print(torch.equal(p, q), float(o.state[p]['step']))\n"
        "resource.setrlimit(resource.RLIMIT_AS, old)\n"
        "o.step(); of_torch.step()\n"
        "print(float(o.state[p]['step']), torch.allclose(p, q, rtol=1e-6, atol=0))\n"
    )
    done = run_script(script, tmp_path, OMP_NUM_THREADS="1", TIDEGATE_OFFLOAD_THREADS="64")
    if done.stdout.startswith("stepped"):
        pytest.skip("this machine has room for the threads all the same")
    assert done.stdout == "True 1.0\n2.0 True\n", done.stderr
