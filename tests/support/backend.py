"""Which backend the Python suites drive, and how they name it to torch."""

from __future__ import annotations

import os

import torch.distributed as dist

# The override exists to develop the harness itself against a backend that is known to run; a
# result obtained with it says nothing about tidegate.
BACKEND = os.environ.get("TIDEGATE_TEST_BACKEND", "tidegate")
IS_TIDEGATE = BACKEND == "tidegate"


def all_gather_single(output, tensor, group=None, async_op=False):
    """`dist.all_gather_single`, under the name this torch gives it (renamed in 2.13)."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(output, tensor, group=group, async_op=async_op)


def reduce_scatter_single(output, tensor, op, group=None, async_op=False):
    """`dist.reduce_scatter_single`, under the name this torch gives it (renamed in 2.13)."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(output, tensor, op=op, group=group, async_op=async_op)


def premul_sum(factor):
    """ReduceOp that multiplies each input by `factor` (float or one-element tensor), then sums."""
    return dist._make_nccl_premul_sum(factor)
