"""Tells whether torch's coalescing manager, which an exception leaves without its end, is over."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import GeneratorType


def watch_opener() -> Callable[[], bool] | None:
    """What tells, from now on, whether the coalescing manager that calls this has ended.

    The shim calls this within ``_coalescing_manager``, a generator that ``contextlib`` drives. None
    if something else called, or if they no longer are what they were.
    """
    opener = sys._getframe(1)
    driver = opener.f_back
    if opener.f_code.co_name != "_coalescing_manager" or driver is None:
        return None
    generator = getattr(driver.f_locals.get("self"), "gen", None)
    if not isinstance(generator, GeneratorType) or generator.gi_frame is not opener:
        return None
    reference = weakref.ref(generator)

    def ended() -> bool:
        living = reference()
        return living is None or living.gi_frame is None

    return ended
