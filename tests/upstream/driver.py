"""Runs tests of the suite on one backend and world size; `suite.py` starts one process for each.

    python -m tests.upstream.driver BACKEND RANKS TEST...

Torch's harness starts each rank of each test in a fresh interpreter, which costs seconds for the
import of torch. Here ranks are forked from this process, which has imported torch and compiled the
suite, has one thread and never makes a group. Everything else is torch's harness, including its
verdict. Standard output gets one JSON object a test, as soon as its result is known.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

# Read when torch is imported. One thread a rank, and no pool of threads in a process that forks.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
# Longer than the suite's own deadlines; a hang costs this much.
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "150")

import torch

from tests.support.processes import count_threads
from tests.upstream.loader import load
from tests.upstream.rewrite import NAME
from tests.upstream.verdict import LOG_MARK, Result

LOG_TAIL_BYTES = 40_000


class _Verdict(unittest.TestResult):
    """Keeps the one outcome of one test."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = ("failed", "the harness gave no verdict")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = ("passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = ("skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.outcome = ("failed", self.errors[-1][1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.outcome = ("failed", self.failures[-1][1])


def make_case(suite: Any, backend: str) -> type:
    """The test case class of `suite`, with ranks that are forked."""

    class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def _spawn_processes(self) -> None:
            if count_threads() != 1:
                raise RuntimeError(f"{count_threads()} threads, so it cannot fork")
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *args: Any, **kwargs: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            faulthandler.enable()
            # A fresh interpreter would read it while it imports the suite.
            suite.INIT_METHOD = os.environ["INIT_METHOD"]
            super()._run(*args, **kwargs)

        def _check_return_codes(self, fn: Any, *args: Any) -> None:
            super()._check_return_codes(fn, *args)
            # Torch looks at the first rank's status only. Ours are all held to a clean end.
            codes = [process.exitcode for process in self.processes]
            if backend == NAME and fn not in self.skip_return_code_checks and len(set(codes)) > 1:
                raise AssertionError(f"exit codes of the ranks: {codes}")

    return Case


def _write_to(log: Path) -> None:
    """Standard output and error go to the end of `log`, whoever writes to them."""
    sys.stdout.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def run_test(case: type, test: str, backend: str, ranks: int, log: Path) -> Result:
    verdict = _Verdict()
    began = time.monotonic()
    case(test).run(verdict)  # type: ignore[attr-defined]
    seconds = time.monotonic() - began
    outcome, detail = verdict.outcome
    if outcome == "failed":
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        detail += f"\n{LOG_MARK}\n{tail}"
    return Result(test, backend, ranks, outcome, round(seconds, 2), detail)


def main(arguments: list[str]) -> None:
    backend, ranks, *tests = arguments
    suite, _ = load(backend, int(ranks))
    with tempfile.TemporaryDirectory(prefix="tidegate-upstream-") as scratch:
        tempfile.tempdir = scratch  # the suite leaves files behind
        log = Path(scratch) / "log"
        results = os.fdopen(os.dup(1), "w", buffering=1)
        _write_to(log)
        os.register_at_fork(after_in_child=results.close)
        case = make_case(suite, backend)
        for test in tests:
            os.truncate(log, 0)
            result = run_test(case, test, backend, int(ranks), log)
            results.write(json.dumps(dataclasses.asdict(result)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
