"""The backend "tidegate_null", which communicates nothing: a benchmark's floor, and no more.

Unknown to torch until it is registered here, so that nobody trains on it by accident.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tidegate._backend import load_shim

NAME = "tidegate_null"


def register() -> None:
    """Make ``backend="tidegate_null"`` a name in this process, of CPU groups; idempotent."""
    if NAME in dist.Backend.backend_list:
        return
    defaults = dict(dist.Backend.default_device_backend_map)
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    # Named or not at all: registering must not make it the default of a device.
    dist.Backend.default_device_backend_map.clear()
    dist.Backend.default_device_backend_map.update(defaults)


def _create(backend_options: Any, _pg_options: Any) -> Any:
    return load_shim().NullBackend(backend_options.group_rank, backend_options.group_size)
