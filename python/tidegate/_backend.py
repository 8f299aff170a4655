"""Chooses and loads the shim: the one shared library that was built for the running torch.

c10d has no stable binary interface. A shim of another minor version may even import cleanly and
crash in the first call, so the choice is made by name, before anything is loaded.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import threading
from typing import TYPE_CHECKING, Any, cast

import torch

import tidegate
from tidegate import _exit

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Backend

    from tidegate._shim_types import Shim

_SHIM_NAME = re.compile(r"_c10d_pt(\d)(\d+)")
_REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."

_lock = threading.Lock()
_shim: Shim | None = None


def create(backend_options: Any, pg_options: Any) -> Backend:
    """Make the backend of one group from c10d's ``DistributedBackendOptions``.

    Only the fields that every supported torch has are read. ``global_ranks_in_group`` is empty for
    the default group.
    """
    backend: Backend = load_shim().create_backend(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        backend_options.group_id,
        list(backend_options.global_ranks_in_group),
        pg_options,
    )
    return backend


def stats() -> dict[str, Any]:
    """See :func:`tidegate.stats`."""
    if _shim is None:
        return {
            "version": 1,
            "rank": -1,
            "groups": {},
            "links": {"shm": {"bytes": 0, "resident_bytes": 0, "single_copy_bytes": 0}},
            "admission": {
                **{"high_water_ops": 0, "high_water_bytes": 0},
                **{"waits": 0, "wait_seconds": 0.0, "promotions": 0},
                "limits": {
                    **{"max_ops": None, "max_bytes": None, "wait": "queue"},
                    **{"rate": None, "burst": None, "links": "all"},
                },
            },
        }
    result: dict[str, Any] = json.loads(_shim.stats_json())
    return result


def load_shim() -> Shim:
    """The shim of the running torch, loaded at the first call; thread-safe.

    RuntimeError where there is none or it cannot be loaded; its text says how to build one.
    """
    global _shim
    with _lock:
        if _shim is None:
            _shim = _import_shim()
        _exit.shut_down_at_exit()
        return _shim


def _import_shim() -> Shim:
    running = str(torch.__version__)
    major, minor = running.split(".")[:2]
    name = f"_c10d_pt{major}{minor}"
    present = present_shims()
    if name not in present:
        has = ", ".join(present.values()) or "none"
        raise RuntimeError(
            f"tidegate {tidegate.__version__} has no shim for the running torch {running} (it has"
            f" shims for: {has}); to build one, run `{_REBUILD}` in its source tree with this"
            " Python environment active."
        )
    try:
        return cast("Shim", importlib.import_module(f"tidegate.{name}"))
    except ImportError as error:
        raise RuntimeError(
            f"tidegate {tidegate.__version__} cannot load its shim for torch {present[name]} into"
            f" the running torch {running} ({error}); to build it anew, run `{_REBUILD}` in its"
            " source tree with this Python environment active."
        ) from error


def present_shims() -> dict[str, str]:
    """Module name to torch minor version, of every shim in this installation."""
    matches = (
        _SHIM_NAME.fullmatch(module.name) for module in pkgutil.iter_modules(tidegate.__path__)
    )
    return {match[0]: f"{match[1]}.{match[2]}" for match in matches if match}


def shut_down() -> None:
    """Join the threads of the shim, if it was loaded; groups are of no use afterwards."""
    if _shim is not None:
        _shim.shutdown_all()
