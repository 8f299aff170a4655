"""Optimizers whose states live in host memory and whose step is one fused pass on the CPU.

Drop-in for ``torch.optim``: each class takes its namesake's arguments and adds some by keyword
(:class:`AdamW` says which). No process group is needed; with FSDP, DDP and DTensor they step the
shards of this rank. ``docs/offload.md`` has the layouts, their memory and when not to use them.
"""

from __future__ import annotations

from tidegate.offload._handover import offload_states
from tidegate.offload._optimizers import SGD, Adagrad, Adam, AdamW, Lion
from tidegate.offload._stats import stats

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "offload_states", "stats"]
