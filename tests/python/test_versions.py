"""Every torch minor has a shim of its own: how the name is found, and a foreign shim refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.python.tree import ROOT
from tests.support.interpreter import run_script

MINOR = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
# From here on torch reads the entry points of torch.distributed.backends when a name is asked for.
LAZY = (2, 14)

ONE_RANK = """
    import os, torch, torch.distributed as dist
    try:
        dist.init_process_group("tidegate", init_method="file://" + os.environ["STORE"],
                                rank=0, world_size=1)
        value = torch.tensor([1.5, -2.0])
        dist.all_reduce(value)
        print(value.tolist(), dist.get_backend())
        dist.destroy_process_group()
    except Exception as error:
        print(type(error).__name__, error)
    print("_c10d_pt" in open("/proc/self/maps").read())
"""


def run(script: str, directory: Path, **environment: str) -> list[str]:
    """The lines that a script prints in a fresh interpreter, away from the source tree."""
    variables = {"STORE": str(directory / "store"), **environment}
    return run_script(script, directory, **variables).stdout.splitlines()


@pytest.mark.skipif(MINOR < LAZY, reason=f"torch {torch.__version__} has no lazy entry points")
def test_the_name_is_found_without_autoload(tmp_path: Path) -> None:
    lines = run(ONE_RANK, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert lines[-2:] == ["[1.5, -2.0] tidegate", "True"]


@pytest.mark.skipif(MINOR >= LAZY, reason=f"torch {torch.__version__} has lazy entry points")
def test_without_autoload_the_name_is_unknown(tmp_path: Path) -> None:
    refusal, mapped = run(ONE_RANK, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[-2:]
    assert "tidegate" in refusal
    assert "nknown backend" in refusal
    assert mapped == "False"


@pytest.mark.skipif(MINOR < LAZY, reason=f"torch {torch.__version__} has no lazy entry points")
def test_with_both_entry_points_the_name_is_registered_once(tmp_path: Path) -> None:
    script = """
        import torch.distributed as dist
        print(dist.Backend.backend_list.count("tidegate"))
        print(dist.is_backend_available("tidegate"))
        print(dist.Backend.backend_list.count("tidegate"))
    """
    assert run(script, tmp_path)[-3:] == ["1", "True", "1"]


def foreign_packages() -> list[Path]:
    """tidegate as installed for other torch versions beside this one (`make build TORCH=...`)."""
    own = "_c10d_pt" + "".join(map(str, MINOR))
    found = ROOT.glob(".venv*/lib/python3*/site-packages/tidegate")
    return sorted(path for path in found if not list(path.glob(f"{own}.*")))


def test_the_shim_of_another_minor_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    """Loaded, it would import cleanly and crash in its first call (built for 2.14, run by 2.15)."""
    packages = foreign_packages()
    if not packages:
        pytest.skip("no other torch is built here (make build TORCH=...)")
    for number, package in enumerate(packages):
        site = tmp_path / str(number)
        site.mkdir()
        (entry_points,) = package.parent.glob("tidegate-*.dist-info")
        for path in (package, entry_points):
            (site / path.name).symlink_to(path)
        shims = sorted(path.name for path in package.glob("_c10d_pt*"))
        assert shims, package
        refusal, mapped = run(ONE_RANK, site, PYTHONPATH=str(site))[-2:]
        built_for = shims[0].partition(".")[0].removeprefix("_c10d_pt")
        assert refusal.startswith("RuntimeError tidegate")
        assert f"no shim for the running torch {torch.__version__}" in refusal
        assert f"shims for: {built_for[0]}.{built_for[1:]})" in refusal
        assert mapped == "False"
