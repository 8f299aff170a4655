"""How results are compared, and what a run does about drivers that die and tests that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.upstream import suite
from tests.upstream.verdict import (
    LOG_MARK,
    MAX_REFUSALS,
    Class,
    Refusal,
    Result,
    classify,
    refusals,
    refused_at,
)

TORCH = Path("/somewhere/torch/distributed/distributed_c10d.py")
KNOWN = [
    Refusal(TORCH, 5419, "raises if get_backend(group) != Backend.GLOO"),
    Refusal(TORCH, 115, "is a name", "'custom' != 'tidegate'"),
]


def report(*ranks: str) -> str:
    """The text of a failure as torch's harness words it."""
    parts = [
        f"Process {i} exited with error code 10 and exception:\n{t}" for i, t in enumerate(ranks)
    ]
    return "Traceback\nRuntimeError: " + "\n".join(parts)


def traceback(line: int, path: Path = TORCH) -> str:
    return (
        f'  File "/suite.py", line 7, in test\n  File "{path}", line {line}, in f\nValueError: no'
    )


def result(backend: str, outcome: str, detail: str = "") -> Result:
    return Result("test_it", backend, 3, outcome, 0.1, detail)


@pytest.mark.parametrize(
    ("detail", "line"),
    [
        (report(traceback(5419)), 5419),
        (report(traceback(5419), traceback(5419)), 5419),
        (report("AssertionError: 'custom' != 'tidegate'"), 115),
        (report(traceback(5420)), None),
        (report(traceback(5419, Path("/other.py"))), None),
        (report(traceback(5419), "AssertionError: 1 != 2"), None),
        (report("AssertionError: 1 != 2") + f"\n{LOG_MARK}\n" + traceback(5419), None),
        ("exit codes of the ranks", None),
        ("", None),
    ],
)
def test_a_refusal_is_the_last_word_of_every_rank_that_failed(detail: str, line: int) -> None:
    found = refused_at(detail, KNOWN)
    assert (None if found is None else found.line) == line


@pytest.mark.parametrize(
    ("gloo", "ours", "detail", "expected"),
    [
        ("passed", "passed", "", Class.BOTH),
        ("failed", "passed", "", Class.TIDEGATE_ONLY),
        ("skipped", "passed", "", Class.TIDEGATE_ONLY),
        ("passed", "failed", report("AssertionError: 1 != 2"), Class.WORSE),
        ("passed", "failed", report(traceback(5419)), Class.REFUSED),
        ("skipped", "failed", report(traceback(5419)), Class.REFUSED),
        ("skipped", "failed", "", Class.NEITHER_PASSES),
        ("failed", "failed", "", Class.NEITHER_PASSES),
        ("passed", "skipped", "", Class.SKIPPED),
        ("failed", "skipped", "", Class.SKIPPED),
        ("skipped", "skipped", "", Class.NEITHER_RUNS),
    ],
)
def test_classes(gloo: str, ours: str, detail: str, expected: Class) -> None:
    assert classify(result("gloo", gloo), result("tidegate", ours, detail), KNOWN) is expected


def test_what_falls_short() -> None:
    none: dict[Class, list[str]] = {each: [] for each in Class}
    refused = [f"test_{i}" for i in range(MAX_REFUSALS)]
    assert suite.falls_short({3: none, 4: none | {Class.REFUSED: refused}}) == []
    # The same test at two world sizes is one refusal.
    assert suite.falls_short({n: none | {Class.REFUSED: refused} for n in (3, 4)}) == []
    assert suite.falls_short({3: none | {Class.REFUSED: [*refused, "test_one_more"]}})
    assert suite.falls_short({3: none, 4: none | {Class.WORSE: ["test_it"]}})
    assert suite.falls_short({3: none | {Class.SKIPPED: ["test_it"]}})


def test_refusals_point_at_what_the_installed_torch_says() -> None:
    for each in refusals():
        line = each.path.read_text(encoding="utf-8").splitlines()[each.line - 1]
        assert "raise " in line or "custom" in line, each


# Prints a result for each test, fails what is called so the first time, dies at "test_dies".
DRIVER = """
import json, pathlib, sys
backend, ranks, *tests = sys.argv[2:]
for test in tests:
    if test == "test_dies":
        sys.exit("gone")
    seen = pathlib.Path(sys.argv[1], f"{backend}.{test}")
    outcome = "failed" if test == "test_fails_once" and not seen.exists() else "passed"
    seen.open("a").write("x")
    result = dict(test=test, backend=backend, ranks=int(ranks), outcome=outcome, seconds=0.1)
    print(json.dumps(result), flush=True)
"""


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "DRIVER", (sys.executable, "-c", DRIVER, str(tmp_path)))
    tests = ["test_a", "test_dies", "test_fails_once", "test_z"]
    file = tmp_path / "results"

    first = suite.Run(file)
    first.run(["gloo"], [3], tests[:1])
    run = suite.Run(file)
    run.run(["gloo", "tidegate"], [3], tests)

    outcomes = {key: result.outcome for key, result in run.results.items()}
    died = {("gloo", 3, "test_dies"): "failed", ("tidegate", 3, "test_dies"): "failed"}
    assert (
        outcomes
        == {(backend, 3, test): "passed" for backend in ("gloo", "tidegate") for test in tests}
        | died
    )
    assert "the driver ended with status 1\ngone" in run.results[("gloo", 3, "test_dies")].detail
    assert run.retried == {
        (b, 3, t) for b in ("gloo", "tidegate") for t in ("test_dies", "test_fails_once")
    }
    # What the file held was not run again, what failed was run twice.
    assert (tmp_path / "gloo.test_a").read_text() == "x"
    assert (tmp_path / "gloo.test_fails_once").read_text() == "xx"
    again = suite.Run(file)
    assert {key: each.outcome for key, each in again.results.items()} == outcomes
    assert again.retried == run.retried
