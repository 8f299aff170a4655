"""Jobs of several ranks, for tests that look at what each rank printed.

`run_job` forks the ranks from a server that has imported torch, so that a job takes a fraction of a
second. `launch_job` is torchrun, for what has to be in a rank's environment, or around it, before
its interpreter starts: each rank and the launcher import torch, seconds of a processor each.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ForkServer, Job, Rank

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
LIMIT_S = 180


def expect_right(script: str, folder: Path, size: int, **env: str) -> None:
    """Runs a job each rank of which says "right", and nothing else, if all it checks holds."""
    done = run_job(script, folder, size, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["right"] * size


def run_job(
    script: str, folder: Path, size: int, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on `size` ranks with `env` added to the environment, whatever becomes of it.

    Each rank finds what torchrun would tell it and a store that outlives all ranks. The output is
    that of rank 0, then that of rank 1, and so on; the status that of the first one that failed.
    """
    import torch.distributed as dist

    _script(folder).write_text(script)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ,
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size),
        **env,
    }
    _environment(folder).write_text(json.dumps(environment))
    target = f"{__name__}:run_rank"
    with Job(_server(), target, size, args={"folder": str(folder)}, limit=LIMIT_S) as job:
        status = job.wait_exit()
        output = "".join(_output(job.directory, rank).read_text() for rank in job.ranks())
        errors = "".join(map(job.log, job.ranks()))
    failed = [code for code in status.values() if code != 0]
    return subprocess.CompletedProcess(
        [str(_script(folder))], failed[0] if failed else 0, output, errors
    )


def run_rank(rank: Rank) -> None:
    """A rank of `run_job`, in a process forked for it."""
    import torch

    output = os.open(_output(rank.directory, rank.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.close(output)
    folder = Path(rank.args["folder"])
    os.environ.clear()
    os.environ.update(json.loads(_environment(folder).read_text()))
    os.environ.update(RANK=str(rank.rank), LOCAL_RANK=str(rank.rank))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.argv = [str(_script(folder))]
    runpy.run_path(sys.argv[0], run_name="__main__")


def launch_job(
    script: str, folder: Path, size: int, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """The same under torchrun, whose ranks write in any order."""
    _script(folder).write_text(script)
    command = [*LAUNCHER, str(size), str(_script(folder))]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as launcher:
        try:
            output, errors = launcher.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            # Killed, it would leave its ranks behind, which may turn round and round for ever.
            launcher.terminate()
            output, errors = launcher.communicate()
            raise AssertionError(f"no end after {LIMIT_S} s:\n{output}{errors}") from None
    return subprocess.CompletedProcess(command, launcher.returncode, output, errors)


def _script(folder: Path) -> Path:
    return folder / "script.py"


def _environment(folder: Path) -> Path:
    return folder / "environment.json"


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.out"


@functools.cache
def _server() -> ForkServer:
    """One for the process, started by its first job."""
    server = ForkServer(preload=[__name__, "numpy", "pytest"])
    atexit.register(server.close)
    return server
