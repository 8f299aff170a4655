"""What the checks look at: a file tree, an environment and the shim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate._shim_types import Shim

GIB = float(1 << 30)


@dataclass(frozen=True)
class MachineView:
    """The machine and process that are examined.

    `root` stands for / (a test hands in a tree of its own), `environment` for this process's
    variables. `self_test_seconds` limits the self-test. Limits, affinity, the host name and
    libraries are always those of this very process.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    self_test_seconds: float = 60.0

    def read(self, path: str) -> str | None:
        """The text of a file below `root`, stripped; None if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    @cached_property
    def shim(self) -> Shim:
        """The loaded shim. RuntimeError or ImportError, with the remedy in its text."""
        from tidegate import _backend

        return _backend.load_shim()

    @cached_property
    def limits(self) -> dict[str, Any] | None:
        """The backend's own reading of quotas, memory and nodes below `root`; None: no shim."""
        try:
            found: dict[str, Any] = self.shim.machine(str(self.root))
        except (ImportError, RuntimeError):
            return None
        return found
