"""Ranks as processes, cheap enough to kill by the hundred.

Starting Python and importing torch costs seconds, so one server process imports torch once and
forks every rank of every job from itself. It has one thread and no process group when it forks,
therefore a rank starts as a freshly imported interpreter: the backend's library is loaded after the
fork, and the rank ends by a normal interpreter exit.

1. `ForkServer` starts the server (`python -m tests.support.processes`); close it with `with`.
2. `Job(server, "package.module:function", world_size)` forks one process a rank; each calls
   `function(rank)` with a `Rank`. What a rank prints goes to `job.log(rank)`.
3. Rank and harness talk through `Rank.report` / `Job.expect` and `Job.send` / `Rank.receive`; a
   harness that has to wait for a phase waits for its report. Times are `time.monotonic()`, which is
   comparable between processes.
4. Leaving the `with` block of a job kills what is left of it, children of ranks included.

Every wait has a limit. A limit that passes is a `Hang`, which carries the stacks of the ranks that
were still running.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.support.backend import BACKEND

ROOT = Path(__file__).resolve().parents[2]
STACKS_SIGNAL = signal.SIGUSR1
MAX_REQUEST = 1 << 16

Message = dict[str, Any]


class Hang(Exception):
    """A rank did not do within the limit what it had to do."""


class Died(Exception):
    """A rank ended before it reported what it had to report."""


class Rank:
    """What one rank knows: its place in the job, the job's arguments, the line to the harness."""

    def __init__(self, assignment: Message, line: connection.Connection) -> None:
        self.rank: int = assignment["rank"]
        self.world_size: int = assignment["world_size"]
        self.args: Message = assignment["args"]
        self.directory = Path(assignment["directory"])
        self._line = line

    def report(self, event: str, **fields: Any) -> None:
        self._line.send({"event": event, "at": time.monotonic(), **fields})

    def receive(self) -> Any:
        """Block until the harness sends something."""
        return self._line.recv()

    def join(self, timeout: float = 10.0, name: str = "world") -> None:
        """Make the default group over the store that the job asked for ("file" or "tcp")."""
        import torch.distributed as dist

        store: dist.Store
        if self.args.get("store", "file") == "file":
            # Without a world size: with one, a FileStore counts the processes that end, forked
            # children included, and removes its file when there were as many, in use or not.
            store = dist.FileStore(str(self.directory / f"store.{name}"))
        else:
            store = self._tcp_store()
        dist.init_process_group(
            BACKEND,
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=timeout),
        )

    def _tcp_store(self) -> Any:
        import torch.distributed as dist

        if self.rank == 0:
            store = dist.TCPStore(
                "127.0.0.1", 0, self.world_size, is_master=True, wait_for_workers=False
            )
            self.report("port", port=store.port)
            return store
        return dist.TCPStore("127.0.0.1", self.receive(), self.world_size, wait_for_workers=False)


class Job:
    """The processes of one job, seen from the harness."""

    def __init__(
        self,
        server: ForkServer,
        target: str,
        world_size: int,
        *,
        args: Message | None = None,
        env: dict[str, str] | None = None,
        limit: float = 60.0,
    ) -> None:
        self.world_size = world_size
        self.directory = Path(tempfile.mkdtemp(prefix="job-", dir=server.directory))
        self.pids: list[int] = []
        self.status: dict[int, int] = {}
        self._server = server
        self._lines: list[connection.Connection] = []
        self._pidfds: list[int] = []
        self._inbox: list[list[Message]] = [[] for _ in range(world_size)]
        self._deadline = time.monotonic() + limit
        arguments = dict(args or {})
        try:
            for rank in range(world_size):
                ours, theirs = connection.Pipe()
                assignment = {
                    "do": "fork",
                    "target": target,
                    "rank": rank,
                    "world_size": world_size,
                    "args": arguments,
                    "directory": str(self.directory),
                    "log": str(self.log_path(rank)),
                    "env": {"TMPDIR": str(self.directory), **(env or {})},
                }
                pid = server.request(assignment, [theirs.fileno()])
                theirs.close()
                self.pids.append(pid)
                self._lines.append(ours)
                self._pidfds.append(os.pidfd_open(pid))
            if arguments.get("store") == "tcp":
                port = self.expect("port", [0])[0]["port"]
                self.send(port, range(1, world_size))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ranks(self, *but: int) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in but]

    def log_path(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.log"

    def log(self, rank: int) -> str:
        return self.log_path(rank).read_text(errors="replace")

    def send(self, message: Any, ranks: Iterable[int]) -> None:
        for rank in ranks:
            try:
                self._lines[rank].send(message)
            except (BrokenPipeError, ConnectionResetError):
                raise Died(self._obituary(rank, "something could be sent to it")) from None

    def expect(
        self, event: str, ranks: Sequence[int] | None = None, limit: float | None = None
    ) -> dict[int, Message]:
        """The report `event` of each of `ranks` (default: all), for at most `limit` seconds."""
        wanted = set(self.ranks() if ranks is None else ranks)
        deadline = self._until(limit)
        found: dict[int, Message] = {}
        while True:
            for rank in wanted - found.keys():
                for index, message in enumerate(self._inbox[rank]):
                    if message["event"] == event:
                        found[rank] = self._inbox[rank].pop(index)
                        break
            missing = sorted(wanted - found.keys())
            if not missing:
                return found
            lines = {self._lines[rank]: rank for rank in missing if not self._lines[rank].closed}
            ended = [rank for rank in missing if self._lines[rank].closed]
            if ended:
                raise Died(self._obituary(ended[0], f"it reported {event!r}"))
            ready = connection.wait(list(lines), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Hang(f"no {event!r} from ranks {missing}" + self.stacks(missing))
            for line in ready:
                self._read(lines[line])  # type: ignore[index]

    def wait_exit(
        self, ranks: Sequence[int] | None = None, limit: float | None = None
    ) -> dict[int, int]:
        """Exit status of each of `ranks` (default: all), negative for a signal."""
        wanted = self.ranks() if ranks is None else list(ranks)
        deadline = self._until(limit)
        waiting = {self._pidfds[rank]: rank for rank in wanted if rank not in self.status}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                left = sorted(waiting.values())
                raise Hang(f"ranks {left} did not exit" + self.stacks(left))
            for pidfd in ready:
                self._reap(waiting.pop(pidfd))  # type: ignore[arg-type]
        return {rank: self.status[rank] for rank in wanted}

    def signal(self, rank: int, number: int) -> float:
        """Send a signal; returns the time just before it was sent."""
        at = time.monotonic()
        signal.pidfd_send_signal(self._pidfds[rank], number)
        return at

    def kill(self, rank: int) -> float:
        return self.signal(rank, signal.SIGKILL)

    def stacks(self, ranks: Sequence[int]) -> str:
        """The Python stacks of `ranks`, by a signal handler that does not need the GIL."""
        texts = []
        for rank in ranks:
            if rank in self.status:
                continue
            before = len(self.log(rank))
            self.signal(rank, STACKS_SIGNAL)
            deadline = time.monotonic() + 2
            while "\n  File" not in self.log(rank)[before:] and time.monotonic() < deadline:
                connection.wait([self._pidfds[rank]], 0.05)
            texts.append(
                f"\n--- rank {rank} (pid {self.pids[rank]}), log and stacks:\n{self.log(rank)}"
            )
        return "".join(texts)

    def leftovers(self) -> list[str]:
        """Processes that outlive their rank (each rank leads a process group of its own)."""
        members = self._members().items()
        return [f"process {pid} of rank {self.pids.index(group)}" for pid, group in members]

    def close(self) -> None:
        for rank, pid in enumerate(self.pids):
            if rank not in self.status:
                os.kill(pid, signal.SIGKILL)
                self._reap(rank)
        for pid in self._members():
            os.kill(pid, signal.SIGKILL)
        for line in self._lines:
            line.close()
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds = []
        shutil.rmtree(self.directory, ignore_errors=True)

    def _members(self) -> dict[int, int]:
        """Live processes in the process groups of the ranks: pid -> process group."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, group = fields[0], int(fields[2])
            if group in self.pids and state != "Z":
                found[int(entry.name)] = group
        return found

    def _until(self, limit: float | None) -> float:
        now = time.monotonic()
        return self._deadline if limit is None else min(self._deadline, now + limit)

    def _read(self, rank: int) -> None:
        try:
            self._inbox[rank].append(self._lines[rank].recv())
        except (EOFError, ConnectionResetError):
            self._lines[rank].close()

    def _reap(self, rank: int) -> None:
        if rank not in self.status:
            self.status[rank] = self._server.request({"do": "reap", "pid": self.pids[rank]})

    def _obituary(self, rank: int, what: str) -> str:
        try:
            status = str(self.wait_exit([rank], 2.0)[rank])
        except Hang:
            status = "still running"
        return f"rank {rank} ended (status {status}) before {what}; its log:\n{self.log(rank)}"


class ForkServer:
    """The process that imports torch (and `preload`) once and forks ranks. Not thread-safe."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # One thread is a condition for forking; OpenBLAS would start its pool at import.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.support.processes", "--fd", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, *preload], pass_fds=[theirs.fileno()], cwd=ROOT, env=env
        )
        theirs.close()
        self._socket.settimeout(120)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, message: Message, descriptors: Sequence[int] = ()) -> int:
        socket.send_fds(self._socket, [pickle.dumps(message)], list(descriptors))
        answer = self._socket.recv(MAX_REQUEST)
        if not answer:
            raise Died(f"the fork server ended with status {self._process.wait()}")
        kind, value = pickle.loads(answer)
        if kind != message["do"]:
            raise RuntimeError(f"the fork server answers {message['do']} with {kind}: {value}")
        return int(value)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _start_rank(assignment: Message, line_fd: int) -> Callable[[], None]:
    """The forked child becomes a rank: own process group, log, environment. Returns its work."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives the server
    log = os.open(assignment["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    faulthandler.enable()
    os.environ.update(assignment["env"])
    tempfile.tempdir = None
    rank = Rank(assignment, connection.Connection(line_fd))
    module, _, name = assignment["target"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda: function(rank)


def _serve(control: socket.socket) -> Callable[[], None] | None:
    """Answer requests until the harness goes away; returns the work to do in a forked rank."""
    children: set[int] = set()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 4)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return None
        message = pickle.loads(data)
        answer: tuple[str, int | str]
        if message["do"] == "fork":
            if count_threads() != 1:
                answer = "error", f"{count_threads()} threads, so it cannot fork"
            elif (pid := os.fork()) == 0:
                control.close()
                return _start_rank(message, fds[0])
            else:
                children.add(pid)
                answer = "fork", pid
        else:
            children.discard(message["pid"])
            answer = "reap", os.waitstatus_to_exitcode(os.waitpid(message["pid"], 0)[1])
        for fd in fds:
            os.close(fd)
        control.send(pickle.dumps(answer))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("preload", nargs="*")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    for module in ("torch.distributed", *options.preload):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    work = _serve(socket.socket(fileno=options.fd))
    if work is not None:
        work()


if __name__ == "__main__":
    # Under its own name, so that its classes are those that preloaded modules see.
    importlib.import_module("tests.support.processes").main()
