"""TIDEGATE_DEFAULT makes tidegate what a group gets that is made without naming a backend."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tidegate
import torch
import torch.distributed as dist
from tidegate import _default_backend

NEEDS_MENDING = tuple(map(int, str(torch.__version__).split(".")[:2])) < (2, 14)

# torch gives a group that names no backend that of the machine's accelerator, and none for the CPU.
needs_cpu_machine = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="a group without a name is the accelerator's here"
)

# What a rank does in a group that was made without naming a backend, or with the one given.
USE_GROUP = """
    import os, sys, torch, torch.distributed as dist
    import torch.multiprocessing as mp
    torch.set_num_threads(1)

    def main(rank, path, backend):
        dist.init_process_group(backend, init_method="file://" + path, rank=rank, world_size=2)
        cpu = torch.device("cpu")
        names = [dist.group.WORLD._get_backend(cpu).name()]
        value = torch.tensor([1.0 + rank])
        dist.all_reduce(value)
        assert value.item() == 3.0, value
        from torch.distributed.device_mesh import init_device_mesh
        names.append(init_device_mesh("cpu", (2,)).get_group()._get_backend(cpu).name())
        names.append(dist.new_group([0, 1])._get_backend(cpu).name())
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
        model(torch.full((1, 3), 1.0 + rank)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.5] * 3], model.module.weight.grad
        dist.destroy_process_group()
        os.write(1, (" ".join(names) + "\\n").encode())

    if __name__ == "__main__":
        # Forked, for torch has read the variable here.
        arguments = (sys.argv[1], sys.argv[2] or None)
        mp.start_processes(main, args=arguments, nprocs=2, start_method="fork")
"""


def run(script: str, *arguments: str, cwd: Path, **environment: str) -> tuple[str, str]:
    """Runs a script away from the source tree; returns its output and errors."""
    path = cwd / "script.py"
    path.write_text(textwrap.dedent(script))
    inherited = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=cwd,
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {"cpu": "gloo", "cuda": "nccl"}),
        ("none", {"cpu": "gloo", "cuda": "nccl"}),
        ("cpu", {"cpu": "tidegate", "cuda": "nccl"}),
        ("cuda", {"cpu": "gloo", "cuda": "tidegate"}),
        ("cpu,cuda", {"cpu": "tidegate", "cuda": "tidegate"}),
    ],
)
def test_map_follows_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: dict[str, str]
) -> None:
    others = [name for name in dist.Backend.backend_list if name != "tidegate"]
    monkeypatch.setattr(dist.Backend, "backend_list", others)
    stock = {"cpu": "gloo", "cuda": "nccl"}
    monkeypatch.setattr(dist.Backend, "default_device_backend_map", stock)
    monkeypatch.setenv("TIDEGATE_DEFAULT", value)
    tidegate._register()
    assert dist.Backend.default_device_backend_map == expected


@pytest.mark.parametrize("value", ["gpu", "cpu,", "cpu, cuda", "CPU", "none,cpu"])
def test_bad_value_is_named_with_the_remedy(value: str) -> None:
    with pytest.raises(ValueError, match="give it cpu, cuda or both") as caught:
        _default_backend.devices({"TIDEGATE_DEFAULT": value}, ["cpu", "cuda"])
    assert f"TIDEGATE_DEFAULT={value} is not accepted" in str(caught.value)


def test_torch_imports_with_a_bad_value_and_one_line(tmp_path: Path) -> None:
    script = """
        import torch.distributed as dist
        print(dist.get_default_backend_for_device("cpu"), "tidegate" in dist.Backend.backend_list)
    """
    # -W error: a warning in the place of the log line would break the import.
    output, errors = run(script, cwd=tmp_path, TIDEGATE_DEFAULT="gpu", PYTHONWARNINGS="error")
    assert output.split() == ["gloo", "True"]
    assert errors.count("\n") == 1
    assert "TIDEGATE_DEFAULT=gpu is not accepted" in errors


def test_group_refuses_the_bad_value(tmp_path: Path) -> None:
    script = """
        import sys, torch.distributed as dist
        try:
            dist.init_process_group("tidegate", init_method="file://" + sys.argv[1], rank=0,
                                    world_size=1)
        except (RuntimeError, ValueError) as error:
            print(error)
    """
    output, _ = run(script, str(tmp_path / "store"), cwd=tmp_path, TIDEGATE_DEFAULT="gpu")
    assert "TIDEGATE_DEFAULT=gpu is not accepted" in output
    assert "unset it" in output


@needs_cpu_machine
@pytest.mark.parametrize(
    ("default", "backend"),
    [("cpu", ""), ("none", "cpu:tidegate,cuda:gloo")],
)
def test_group_without_a_name_is_whole(tmp_path: Path, default: str, backend: str) -> None:
    """Mesh, subgroup and DDP; no warning of c10d about a backend that it does not find."""
    store = str(tmp_path / "store")
    output, errors = run(USE_GROUP, store, backend, cwd=tmp_path, TIDEGATE_DEFAULT=default)
    assert output.splitlines() == ["tidegate tidegate tidegate"] * 2
    if backend and not NEEDS_MENDING:
        return  # what torch does with a device string from 2.14 on is its own matter
    assert "No backend of type" not in errors


@needs_cpu_machine
def test_gloo_stays_what_it_was(tmp_path: Path) -> None:
    output, _ = run(USE_GROUP, str(tmp_path / "store"), "", cwd=tmp_path, TIDEGATE_DEFAULT="cuda")
    assert output.splitlines() == ["gloo gloo gloo"] * 2
