"""One run of the product: brings the fault about and checks what every rank saw of it."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from random import Random

from tests.faults.mismatches import DOUBLE, FLOAT
from tests.faults.operations import IN_MESSAGES
from tests.faults.outcome import (
    LOADED_LIMIT_MS,
    Context,
    Outcome,
    check_error,
    expect_exit,
    names_culprit,
    names_missing,
    watched_job,
)
from tests.faults.product import BETWEEN, EXCHANGE, FIRST, INSIDE, P2P, Case
from tests.faults.product_rank import EXIT_STATUS, GROUP_TIMEOUT, SHORT_TIMEOUT, other_lane
from tests.support.processes import ForkServer, Job, Message

TARGET = "tests.faults.product_rank:rank_main"
DETECTION_LIMIT = 15.0  # seconds; a rank that has not failed by then hangs
IDLE = (FIRST, BETWEEN)
FATAL_WORDS = ("terminate called", "Fatal Python error", "Segmentation", "core dumped")
ENV = {
    # The work in flight is to end because of the fault, not because destroy has waited enough.
    "TIDEGATE_SHUTDOWN_TIMEOUT": "12s",
}


def run(server: ForkServer, case: Case) -> Outcome:
    outcome = Outcome(case.fault, str(case))
    context = Context(server, Random(0), case.index)
    args = {"case": case, "store": case.store}
    with watched_job(context, outcome, TARGET, case.ranks, args=args, env=ENV) as job:
        _Run(case, outcome, job).go()
    return outcome


class _Run:
    def __init__(self, case: Case, outcome: Outcome, job: Job) -> None:
        self.case = case
        self.outcome = outcome
        self.job = job
        self.survivors = job.ranks(case.victim)
        self.pid = job.pids[case.victim]
        self.fault_at = 0.0

    def go(self) -> None:
        case, job = self.case, self.job
        job.expect("ready")
        alive_victim = case.fault in ("abort", "timeout", "stop")
        if case.fault == "mismatch":
            job.send("go", job.ranks())
            if case.phase not in IDLE:
                job.expect("working")
            self.check(job.ranks())
        else:
            if case.phase in IDLE:
                job.send("go", [case.victim])
                job.expect("working", [case.victim])
                self.bring_about()
                job.send("go", self.survivors)
            else:
                job.send("go", job.ranks())
                job.expect("working")
                time.sleep(case.delay)  # the stimulus: how deep in their work all are
                self.bring_about()
            self.check(self.survivors)
            if alive_victim and not (case.fault == "stop" and case.way == "kill"):
                self.check_victim()
        if case.store == "tcp":
            job.send("all have failed", [0])
        rest = job.ranks() if alive_victim or case.fault == "mismatch" else self.survivors
        if case.fault == "stop" and case.way == "kill":
            job.kill(case.victim)
            job.wait_exit([case.victim])
            rest = self.survivors
        for rank, report in job.expect("done", rest, 20).items():
            self.outcome.leaks += [f"rank {rank} holds {what}" for what in report["held"]]
        expect_exit(self.outcome, job, rest, warns=True)
        self.check_leaver()

    def bring_about(self) -> None:
        """The fault; returns when it has happened, in phases in which the others only come then."""
        case, job, victim = self.case, self.job, self.case.victim
        self.fault_at = time.monotonic()
        if case.fault == "kill":
            job.kill(victim)
            job.wait_exit([victim])
        elif case.fault == "stop":
            job.signal(victim, signal.SIGSTOP)
            _wait_stopped(self.pid)
        elif case.fault == "abort":
            job.send("abort", [victim])
            aborted = job.expect("aborted", [victim], 10)[victim]["result"]
            self.fault_at = aborted["began"]
            self.outcome.require(aborted["error"] is None, f"abort() raised {aborted['message']!r}")
            took = (aborted["ended"] - aborted["began"]) * 1e3
            self.outcome.require(took <= LOADED_LIMIT_MS, f"abort() took {took:.0f} ms")
        elif case.fault in ("exception", "exit"):
            if case.phase == INSIDE:
                self.fault_at = job.signal(victim, signal.SIGUSR2)
            else:
                job.send("leave", [victim])
                self.fault_at = job.expect("leaving", [victim], 10)[victim]["at"]
            status = job.wait_exit([victim], GROUP_TIMEOUT)[victim]
            expected = EXIT_STATUS[case.way]
            self.outcome.require(status == expected, f"the victim exited with {status}")
        elif case.phase == INSIDE:
            self.fault_at = job.expect("absent", [victim], 10)[victim]["at"]

    def check(self, ranks: list[int]) -> None:
        """What every rank in `ranks` has to have seen of the fault."""
        case, outcome = self.case, self.outcome
        failed = self.job.expect("failed", ranks, DETECTION_LIMIT)
        results = {rank: report["result"] for rank, report in failed.items()}
        since = self._due(failed)
        for rank, result in results.items():
            mine = max(since, result["began"]) if case.phase in IDLE else since
            if case.fault in ("stop", "timeout"):
                mine = since
            outcome.noticed(rank, min(mine, result["ended"]), result["ended"])
            if case.fault in ("stop", "timeout"):
                early = (since - result["ended"]) * 1e3
                outcome.require(early <= 10, f"rank {rank} failed {early:.0f} ms early")
            name = None if case.fault == "mismatch" else IN_MESSAGES[case.operation]
            check_error(outcome, rank, result, name)
            if result["error"] is not None:
                self.check_culprit(rank, result["message"])
            report = failed[rank]
            if (destroyed := report["destroyed"]) is not None:
                said = destroyed["message"]
                outcome.require(destroyed["error"] is None, f"rank {rank}: destroy raised {said!r}")
            if (again := report["again"]) is not None:
                check_error(outcome, rank, again, None)
                took = (again["ended"] - again["began"]) * 1e3
                outcome.require(
                    took <= LOADED_LIMIT_MS,
                    f"rank {rank}: the next call failed after {took:.0f} ms",
                )

    def _due(self, failed: dict[int, Message]) -> float:
        """When ranks could know: the fault, the deadline, or the last of contradicting calls."""
        case = self.case
        if case.fault == "mismatch":
            return max(report["submitted"] for report in failed.values())
        if case.fault in ("stop", "timeout"):
            return min(report["result"]["began"] for report in failed.values()) + SHORT_TIMEOUT
        return self.fault_at

    def check_culprit(self, rank: int, message: str) -> None:
        case, outcome = self.case, self.outcome
        victim = case.victim
        if case.fault in ("stop", "timeout"):
            truth = names_missing(message, [victim])
        elif case.fault == "abort":
            truth = re.search(rf"\brank {victim}\b[^;\n]{{0,60}}\baborted\b", message) is not None
        elif case.fault == "mismatch":
            truth = self.shows_mismatch(message)
        else:
            truth = names_culprit(message, victim, self.pid)
        outcome.named = truth if outcome.named is None else outcome.named and truth
        outcome.require(truth, f"rank {rank} does not name rank {victim}: {message!r}")

    def shows_mismatch(self, message: str) -> bool:
        """Both ranks, the victim one of them, and both calls, after what the call's own rank is."""
        case = self.case
        _, _, said = message.partition(": ")
        ranks = {int(number) for number in re.findall(r"\brank (\d+)", said)}
        patterns = [IN_MESSAGES[case.operation]]
        if case.phase == P2P or case.operation == EXCHANGE:
            patterns = [r"\bsend\(", r"\brecv\("]
        elif case.way == "other_lane" or case.operation == "barrier":
            patterns.append(IN_MESSAGES[other_lane(case.operation)])
        elif case.way == "dtype":
            patterns += [FLOAT, DOUBLE]
        shown = all(re.search(pattern, said) for pattern in patterns)
        return shown and case.victim in ranks and len(ranks) >= 2

    def check_victim(self) -> None:
        """A victim that is still there fails at once when it comes back."""
        case, job = self.case, self.job
        since = time.monotonic()
        if case.fault == "stop":
            job.signal(case.victim, signal.SIGCONT)
        if case.fault != "abort" and (case.fault != "stop" or case.phase != INSIDE):
            job.send("late", [case.victim])
        report = job.expect("late", [case.victim], DETECTION_LIMIT)[case.victim]
        result = report["result"]
        check_error(self.outcome, case.victim, result, None)
        began = max(since, result["began"]) if case.fault != "abort" else result["began"]
        took = (result["ended"] - began) * 1e3
        # A rank that never met the others may have to wait for one that is still there.
        limit = LOADED_LIMIT_MS + (SHORT_TIMEOUT * 1e3 if case.phase == FIRST else 0)
        if case.fault != "abort" or case.phase != INSIDE:
            self.outcome.require(
                took <= limit, f"rank {case.victim}, late: its call failed after {took:.0f} ms"
            )

    def check_leaver(self) -> None:
        case = self.case
        if case.fault not in ("exception", "exit"):
            return
        log = self.job.log(case.victim)
        for words in FATAL_WORDS:
            self.outcome.require(words not in log, f"the victim printed {log!r}")
        if case.fault == "exception":
            raised = "Failure: this rank has had enough" in log
            self.outcome.require(raised, f"no traceback in {log!r}")


def _wait_stopped(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        time.sleep(0.0005)  # nothing tells a process that another one's child has stopped
