"""The machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform

import torch

from tidegate._version import __version__
from tidegate.cli.checks.machine_view import MachineView


def fingerprint() -> dict[str, str]:
    load = os.getloadavg()
    return {
        "cpu": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "tidegate": __version__,
        "load": " ".join(f"{value:.2f}" for value in load) + " at the start",
    }


def cpu_model() -> str:
    for line in (MachineView().read("proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
