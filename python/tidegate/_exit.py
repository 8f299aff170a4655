"""Ends what the shim runs before the interpreter goes. Imports neither torch nor the shim."""

from __future__ import annotations

import atexit
import os
import sys

_process_with_hook: int | None = None


def shut_down_at_exit() -> None:
    """Join the threads of the shim before the interpreter goes, also without a destroy call.

    c10d may never run the destructor of a backend, and a thread that still holds a tensor when
    Python finalises ends the process with an abort. Hooks run in the opposite order of their
    registration: this one is registered while torch is imported, so that those which come later may
    still use groups. A forked child, which has the shim of its parent, needs one of its own.
    """
    global _process_with_hook
    owner = os.getpid()
    if _process_with_hook == owner:
        return
    _process_with_hook = owner

    def shut_down() -> None:
        backend = sys.modules.get("tidegate._backend")
        # A forked child inherits the hook but none of the threads.
        if os.getpid() == owner and backend is not None:
            backend.shut_down()

    atexit.register(shut_down)
