"""What a call allocates beyond what the null backend does, on the thread that makes it: nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.jobs import launch_job

# Counts what the thread allocates that counts, and hands on to the C library's own functions.
COUNTER = """
#define _GNU_SOURCE
#include <stddef.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
static __thread long counting, count;
void *malloc(size_t size) { count += counting; return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { count += counting; return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { count += counting; return __libc_realloc(old, size); }
void *memalign(size_t to, size_t size) { count += counting; return __libc_memalign(to, size); }
void *aligned_alloc(size_t to, size_t size) { return memalign(to, size); }
int posix_memalign(void **result, size_t to, size_t size) {
  *result = memalign(to, size);
  return *result ? 0 : 12;
}
void count_begin(void) { count = 0; counting = 1; }
long count_end(void) { counting = 0; return count; }
"""

SCRIPT = """
import ctypes, json, os
import torch, torch.distributed as dist
import tidegate
from tidegate import _null_backend

counter = ctypes.CDLL(os.environ["LD_PRELOAD"])
_null_backend.register()
dist.init_process_group("tidegate")
null = dist.new_group(backend="tidegate_null")
ranks = dist.get_world_size()
part, whole, other = torch.ones(256), torch.ones(256 * ranks), torch.ones(256 * ranks)
parts = [torch.ones(256) for _ in range(ranks)]
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
calls = {
    "all_reduce": lambda **how: dist.all_reduce(part, **how),
    "all_gather_single": lambda **how: gather(whole, part, **how),
    "reduce_scatter_single": lambda **how: scatter(part, whole, **how),
    "broadcast": lambda **how: dist.broadcast(part, 0, **how),
    "all_gather": lambda **how: dist.all_gather(parts, part, **how),
    "reduce_scatter": lambda **how: dist.reduce_scatter(part, parts, **how),
    "all_to_all_single": lambda **how: dist.all_to_all_single(whole, other, **how),
    "barrier": lambda **how: dist.barrier(**how),
}

def least(call, group, async_op):
    counts = []
    # Long enough for threads that hold on to finished operations to get the processor.
    for _ in range(1000):
        counter.count_begin()
        work = call(group=group, async_op=async_op)
        if work is not None: work.wait()
        counts.append(counter.count_end())
        del work
    return min(counts)

beyond = {}
for name, call in calls.items():
    for async_op in (False, True):
        own, floor = least(call, None, async_op), least(call, null, async_op)
        beyond[name + (" async" if async_op else "")] = own - floor
        assert floor > 0, "nothing is counted"
dist.barrier()
if dist.get_rank() == 0: print("BEYOND", json.dumps(beyond))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("counting takes a C compiler and the C library of GNU")
    folder = tmp_path_factory.mktemp("counter")
    source, library = folder / "counter.c", folder / "counter.so"
    source.write_text(COUNTER)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def test_a_call_adds_no_allocation(counter: Path, tmp_path: Path) -> None:
    done = launch_job(SCRIPT, tmp_path, 2, {"LD_PRELOAD": str(counter), "OMP_NUM_THREADS": "1"})
    lines = [line for line in done.stdout.splitlines() if line.startswith("BEYOND ")]
    assert lines, done.stderr
    beyond = json.loads(lines[0].removeprefix("BEYOND "))
    assert len(beyond) == 16
    assert max(beyond.values()) <= 0, beyond
