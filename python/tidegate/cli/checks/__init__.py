"""What `tidegate doctor` checks, in the order in which it reports; docs/doctor.md explains each."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.cli.checks import libraries, memory, network, processors, registration, self_test
from tidegate.cli.checks.finding import Finding
from tidegate.cli.checks.machine_view import MachineView

Check = Callable[[MachineView], Finding]

CHECKS: dict[str, Check] = {
    "torch": registration.check_torch,
    "shim": registration.check_shim,
    "autoload": registration.check_autoload,
    "default": registration.check_default,
    "settings": registration.check_settings,
    "shared-memory": memory.check_shared_memory,
    "single-copy": memory.check_single_copy,
    "memory": memory.check_memory,
    "memlock": memory.check_memlock,
    "hugepages": memory.check_hugepages,
    "cpus": processors.check_cpus,
    "numa": processors.check_numa,
    "threads": processors.check_threads,
    "matmul": processors.check_matmul,
    "hostname": network.check_hostname,
    "cuda": libraries.check_cuda,
    "nccl": libraries.check_nccl,
    "ucx": libraries.check_ucx,
    "self-test": self_test.check_self_test,
}
