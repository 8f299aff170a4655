"""Imported once by the fork server, so that starting a rank does not import torch again."""

from __future__ import annotations

import importlib
import os

# One thread a rank: the suites run up to eight ranks on two cores. Read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

for _module in (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "tests.conformance.runner",
    "tests.integration.rows",
    "tests.support.workers",
):
    importlib.import_module(_module)

importlib.import_module("tests.conformance.data").prepare()
