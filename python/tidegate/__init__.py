"""tidegate: a c10d process-group backend for PyTorch.

Nobody needs to import this package: its entry points register the name, and
``torch.distributed.init_process_group("tidegate")`` then works in any script. Importing it loads no
shared library; that happens when the first group is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate._barrier import monitored_barrier
from tidegate._limits import Options, set_limits
from tidegate._memory import empty
from tidegate._version import __version__

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Backend

__all__ = ["Options", "__version__", "empty", "monitored_barrier", "set_limits", "stats"]

_NAME = "tidegate"
_DEVICES = ["cpu", "cuda"]


def stats() -> dict[str, Any]:
    """Return what this process has done so far.

    ``{"version": 1, "rank": r, "groups": {name: {"ranks": [...], "ops": {op: {"calls": n,
    "bytes": b, "seconds": s, "errors": e}}}}, "links": {"shm": {"bytes": b, "resident_bytes":
    b, "single_copy_bytes": b}}, "admission": {"high_water_ops": n, "high_water_bytes": b, "waits":
    n, "wait_seconds": s, "promotions": n, "limits": {"max_ops": n, "max_bytes": b, "wait": "queue",
    "rate": r, "burst": b, "links": "all"}}}``

    ``version`` numbers the layout of the dictionary, ``rank`` is this process's rank in the job (-1
    before the first group), ``ranks`` are those of the group's members. ``bytes`` of an operation
    are those of its output (of its input for ``reduce_scatter`` and ``send``), ``bytes`` of a link
    those read from peers, of which ``resident_bytes`` were read where they lie, in tensors that
    ``tidegate.empty`` or ``allocate_tensor`` made, and ``single_copy_bytes`` in other tensors, in
    the memory of their ranks' processes. ``seconds`` run from the call to its completion.
    ``admission`` is of the all-gathers of all groups that have no limits of their own; of one that
    has, its entry in ``groups`` has such an ``admission``, too. ``high_water_*`` are the most that
    was in flight, in operations and bytes of output, since limits on that were set (0 without
    any); ``waits`` and ``wait_seconds`` how often and how long all-gathers were held;
    ``promotions`` those that went over the limit because somebody waited for them or their caller
    was not to be kept any longer; limits that are off are None. Any thread may call it.
    """
    from tidegate import _backend

    return _backend.stats()


def _autoload() -> None:
    """Register the backend while torch is being imported (entry point ``torch.backends``).

    An exception here would break ``import torch`` itself for everybody in the environment, so a
    failure is logged and the name stays unknown. It is logged, not warned, because ``-W error``
    turns a warning into an exception.
    """
    try:
        _register()
    except Exception as error:
        import logging

        logging.getLogger(_NAME).warning(
            "tidegate could not register itself with torch.distributed: %r", error
        )


def _register() -> None:
    """Register the name; also the entry point ``torch.distributed.backends`` of torch 2.14+."""
    import torch.distributed as dist

    from tidegate import _default_backend, _exit

    if not dist.is_available() or _NAME in dist.Backend.backend_list:
        return
    # register_backend claims each device that has no default yet: being the default of a device is
    # the user's choice, never a side effect of having tidegate installed.
    defaults = dict(dist.Backend.default_device_backend_map)
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=_devices())
    defaults.update(dict.fromkeys(_default_backend.devices_or_warning(_DEVICES), _NAME))
    dist.Backend.default_device_backend_map.clear()
    dist.Backend.default_device_backend_map.update(defaults)
    _exit.shut_down_at_exit()


def _devices() -> list[str]:
    """What groups of this name say that they serve.

    torch's own ShardedTensor.gather takes the first of these that is not the CPU for its tensors,
    so a torch without CUDA must not hear of it.
    """
    import torch

    return [device for device in _DEVICES if device != "cuda" or torch.backends.cuda.is_built()]


def _create(backend_options: Any, pg_options: Any) -> Backend:
    """Make the backend of one group; c10d calls it with its ``DistributedBackendOptions``."""
    from tidegate import _backend, _default_backend

    _default_backend.mend_group_being_made()
    return _backend.create(backend_options, pg_options)
