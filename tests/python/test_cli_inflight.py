"""`tidegate bench --inflight` shows throughput and what is in flight against the budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate.cli.benchmark.inflight import Answer, Question, lines, plot

from tests.python.cli_calls import complaint_of

QUESTION = Question(calls=4, sizes=[1 << 20], limits=[2 << 20], rounds=3)
COMMAND = [sys.executable, "-m", "tidegate", "bench", "all_gather"]


def answer(budget: dict[str, int], wait: str, *seconds: float) -> Answer:
    return Answer(1 << 20, budget, wait, list(seconds), [s / 4 for s in seconds], 2, 2 << 20, 0)


ANSWERS = [
    answer({"max_ops": 1}, "block", 2e-3, 4e-3, 3e-3),
    answer({"max_bytes": 2 << 20}, "queue", 1e-3, 1e-3, 2e-3),
    answer({}, "queue", 1e-3, 2e-3, 1e-3),
]


def test_budgets_are_operations_then_bytes_then_none() -> None:
    assert QUESTION.budgets() == [
        *({"max_ops": count} for count in (1, 2, 3)),
        {"max_bytes": 2 << 20},
        {},
    ]


def test_ratios_are_of_the_same_round() -> None:
    title, _, one, by_bytes, free, end = lines(ANSWERS, QUESTION, 2)
    assert title.startswith("# 4 all-gathers of 1 MiB in flight, 2 ranks")
    # 4 MiB in 3 ms; 0.5, 0.5 and 0.33 of the unlimited ones.
    assert one.split()[:5] == ["1", "ops", "block", "1.40", "0.50"]
    assert "(0.33..0.50)" in one
    assert "25%" in one
    assert by_bytes.split()[:6] == ["2", "MiB", "queue", "4.19", "1.00", "(0.50..2.00)"]
    assert free.split()[:3] == ["none", "-", "4.19"]
    assert end == "#"


def test_the_picture_has_a_curve_for_each_way_to_wait() -> None:
    picture = plot(ANSWERS, QUESTION, 2)
    assert picture.count("<polyline") == 2
    assert "4 all-gathers of 1 MiB" in picture


def test_it_measures_and_writes(tmp_path: Path) -> None:
    arguments = ["--sizes", "40K", "--inflight", "5", "--limit", "64K", "--ranks", "2"]
    outputs = ["--rounds", "2", "-J", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
    ran = subprocess.run([*COMMAND, *arguments, *outputs], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = [Answer(**one) for one in json.loads((tmp_path / "a.json").read_text())["answers"]]
    budgets = [(one.budget, one.wait) for one in found]
    assert len(budgets) == 2 * 5 + 1
    assert budgets[-1] == ({}, "queue")
    for one in found:
        assert len(one.seconds) == 2
        assert min(one.seconds) > 0
        if "max_ops" in one.budget:
            assert 0 < one.high_water_ops <= one.budget["max_ops"] + one.promotions
        if "max_bytes" in one.budget:
            assert 0 < one.high_water_bytes <= (64 << 10) + one.promotions * (40 << 10)
    assert "64 KiB" in ran.stdout
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_it_joins_a_job_of_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    arguments = ["-m", "tidegate", "bench", "all_gather", "--sizes", "8K", "--inflight", "3"]
    ran = subprocess.run(
        [*launcher, *arguments, "--rounds", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("in flight, 3 ranks") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_gather", "--inflight", "1"], "--inflight 1: at least 2"),
        (["all_gather", "--limit", "1M"], "--limit 1M: goes with --inflight N"),
        (["all_gather", "--inflight", "4", "--limit", "8K,0"], "--limit 0: at least 4K"),
        (["all_gather", "--inflight", "4", "--rounds", "0"], "--rounds 0: at least 1"),
        (["all_gather", "--inflight", "4", "-d", "int8"], "--datatype with --inflight"),
        (["all_gather", "--inflight", "4", "--markdown"], "--markdown with --inflight"),
        (["all_reduce", "--inflight", "4"], "is about the all_gather of tidegate"),
        (["all_gather", "--inflight", "4", "--ranks", "2,4"], "one number of ranks"),
        (["all_gather", "--inflight", "4", "--limit", "much"], "much"),
    ],
)
def test_bad_questions(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in complaint_of(capsys, 2, "bench", *arguments)
