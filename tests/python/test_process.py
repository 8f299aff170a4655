"""The backend as a part of its process: forked children, and other Python threads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.interpreter import run_script


def _run(script: str, cwd: Path, **env: str) -> str:
    return run_script(script, cwd, OMP_NUM_THREADS="1", **env).stdout


def test_a_child_of_a_process_with_the_shim_shuts_down_at_exit(tmp_path: Path) -> None:
    statistics = tmp_path / "statistics"
    _run(
        """
        import os, sys, torch, torch.distributed as dist
        from tidegate import _backend
        _backend.load_shim()
        if os.fork() == 0:
            dist.init_process_group("tidegate", init_method="file://" + os.getcwd() + "/store",
                                    rank=0, world_size=1)
            dist.all_reduce(torch.ones(4), async_op=True).wait()
            sys.exit(0)
        assert os.wait()[1] == 0
        # Only the child has anything to write.
        os._exit(0)
        """,
        tmp_path,
        TIDEGATE_STATS_FILE=str(statistics),
    )
    (line,) = statistics.read_text().splitlines()
    (group,) = json.loads(line)["groups"].values()
    assert group["ops"]["all_reduce"]["calls"] == 1


def test_an_exit_hook_from_before_the_first_group_may_use_it(tmp_path: Path) -> None:
    output = _run(
        """
        import atexit, os, torch, torch.distributed as dist

        def last_words():
            values = torch.ones(3)
            dist.all_reduce(values)
            print("sum", values.tolist())

        atexit.register(last_words)
        dist.init_process_group("tidegate", init_method="file://" + os.getcwd() + "/store",
                                rank=0, world_size=1)
        """,
        tmp_path,
    )
    assert output.split() == ["sum", "[1.0,", "1.0,", "1.0]"]


def test_making_a_group_lets_other_threads_run(tmp_path: Path) -> None:
    _run(
        """
        import datetime, faulthandler, fcntl, os, threading, types
        import torch, torch.distributed as dist
        from tidegate import _backend
        faulthandler.dump_traceback_later(20, exit=True)  # in place of a deadlock
        _backend.load_shim()
        store = dist.FileStore("store", 2)
        store.set("key", "value")
        held = open("store", "rb")
        fcntl.flock(held, fcntl.LOCK_EX)
        # The store answers only when this thread has run.
        threading.Timer(0.3, fcntl.flock, (held, fcntl.LOCK_UN)).start()
        backend = _backend.create(
            types.SimpleNamespace(store=store, group_rank=0, group_size=2, group_id="0",
                                  timeout=datetime.timedelta(seconds=5),
                                  global_ranks_in_group=[]),
            None,
        )
        """,
        tmp_path,
    )
