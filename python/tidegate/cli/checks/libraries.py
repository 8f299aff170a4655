"""Libraries of GPUs and networks. Their absence is in order: tidegate does not need them."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from pathlib import Path

from tidegate.cli.checks.finding import Finding, ok, warn
from tidegate.cli.checks.machine_view import MachineView

_NOTE = "tidegate does not use it yet"


def _load(name: str, *folders: Path) -> ctypes.CDLL | None:
    """A shared library by its soname, from the loader's path or one of the folders."""
    for candidate in [name, *(str(folder / name) for folder in folders)]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def check_cuda(view: MachineView) -> Finding:
    try:
        import torch

        built_for = torch.version.cuda
    except Exception:
        built_for = None
    torch_text = f"torch is built for CUDA {built_for}" if built_for else "torch is built for CPUs"
    driver = _load("libcuda.so.1")
    if driver is None:
        return ok(f"no driver (libcuda.so.1), {torch_text}; {_NOTE}", torch_cuda=built_for)
    status = int(driver.cuInit(0))
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if status == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
        driver.cuDriverGetVersion(ctypes.byref(version))
    details = {"torch_cuda": built_for, "devices": count.value, "driver_cuda": version.value}
    if status != 0:
        return warn(
            f"the driver is there but does not start (cuInit: {status}), {torch_text}",
            "see `nvidia-smi`; in a container, start it with --gpus all",
            **details,
        )
    if not built_for:
        return warn(
            f"{count.value} devices, but {torch_text}",
            "install a CUDA build of torch if the devices are to be used, and build tidegate anew",
            **details,
        )
    driver_text = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return ok(f"{count.value} devices, driver for CUDA {driver_text}, {torch_text}", **details)


def check_nccl(view: MachineView) -> Finding:
    folders: list[Path] = []
    try:
        import torch

        # Where the wheels of torch find it: site-packages/nvidia/nccl/lib.
        folders.append(Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "lib")
    except Exception:
        pass
    library = _load("libnccl.so.2", *folders)
    if library is None:
        return ok(f"not found (libnccl.so.2); {_NOTE}")
    number = ctypes.c_int(0)
    library.ncclGetVersion(ctypes.byref(number))
    version = f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    return ok(f"found, version {version}", version=version)


def check_ucx(view: MachineView) -> Finding:
    library = _load("libucp.so.0") or _load(find_library("ucp") or "libucp.so")
    if library is None:
        return ok(f"not found (libucp.so.0); {_NOTE}")
    library.ucp_get_version_string.restype = ctypes.c_char_p
    version = library.ucp_get_version_string().decode(errors="replace")
    return ok(f"found, version {version}", version=version)
