"""Which backend the Python suites drive, and how they name it to torch."""

from __future__ import annotations

import os

import torch.distributed as dist

# The override exists to develop the harness itself against a backend that is known to run; a
# result obtained with it says nothing about tidegate.
BACKEND = os.environ.get("TIDEGATE_TEST_BACKEND", "tidegate")
IS_TIDEGATE = BACKEND == "tidegate"
# torch 2.11 binds the method without a way to turn its result into a Python object.
WORKS_TELL_EXCEPTIONS = "exception_ptr" not in (dist.Work.exception.__doc__ or "")


# The names that this torch gives the collectives of one tensor a rank (renamed in 2.13).
ALL_GATHER_SINGLE = (
    "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
)
REDUCE_SCATTER_SINGLE = (
    "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
)


def all_gather_single(output, tensor, group=None, async_op=False):
    """`dist.all_gather_single`, under the name this torch gives it."""
    call = getattr(dist, ALL_GATHER_SINGLE)
    return call(output, tensor, group=group, async_op=async_op)


def reduce_scatter_single(output, tensor, op, group=None, async_op=False):
    """`dist.reduce_scatter_single`, under the name this torch gives it."""
    call = getattr(dist, REDUCE_SCATTER_SINGLE)
    return call(output, tensor, op=op, group=group, async_op=async_op)


def premul_sum(factor):
    """ReduceOp that multiplies each input by `factor` (float or one-element tensor), then sums."""
    return dist._make_nccl_premul_sum(factor)
