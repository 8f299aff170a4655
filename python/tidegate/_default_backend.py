"""Being the default backend of a device: TIDEGATE_DEFAULT, and what torch before 2.14 gets wrong.

Imported inside ``import torch``, so nothing here imports torch at the top or lets an error out.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

VARIABLE = "TIDEGATE_DEFAULT"
_FIXED_IN = (2, 14)


def devices(environment: Mapping[str, str], served: Sequence[str]) -> list[str]:
    """Device types that TIDEGATE_DEFAULT gives to tidegate, out of ``served``.

    ValueError for a value that is not accepted; its text names the value and the remedy.
    """
    value = environment.get(VARIABLE, "")
    if value in ("", "none"):
        return []
    wanted = value.split(",")
    if not all(device in served for device in wanted):
        raise ValueError(
            f"{VARIABLE}={value} is not accepted and changes nothing: give it cpu, cuda or both"
            " with a comma between them, or unset it"
        )
    return wanted


def devices_or_warning(served: Sequence[str]) -> list[str]:
    """As ``devices`` for this process; a bad value is logged, because torch is being imported.

    The first group that is made on tidegate refuses the value with an error (common/config.cc).
    """
    try:
        return devices(os.environ, served)
    except ValueError as error:
        logging.getLogger("tidegate").warning("%s", error)
        return []


def mend_group_being_made() -> None:
    """Tell the group that c10d is making in the calling thread that its backend is a custom one.

    Before 2.14 c10d notes gloo as the type of a group that was made without naming a backend, and
    no type for one made by device ("cpu:tidegate"), whatever the default map holds. DDP and
    sequence numbers then fail with "Could not find backend type", and each destroy warns. The
    creator of a backend is not given the group, hence the look at the caller's variables; where
    they are not as expected, nothing is changed.
    """
    import torch

    if tuple(int(part) for part in str(torch.__version__).split(".")[:2]) >= _FIXED_IN:
        return
    caller = sys._getframe(2)
    if caller.f_code.co_name != "_new_process_group_helper":
        return
    found: dict[str, Any] = caller.f_locals
    backend, config, group = (found.get(name) for name in ("backend", "backend_config", "pg"))
    if backend is None or config is None or group is None:
        return
    # "tidegate" itself is noted rightly, and NCCL, where it takes part, is the better default.
    named_by_device = ":" in str(backend) or str(backend) == "undefined"
    if named_by_device and "nccl" not in config.get_device_backend_map().values():
        group._set_default_backend(torch.distributed.ProcessGroup.BackendType.CUSTOM)
