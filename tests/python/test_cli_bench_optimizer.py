"""`tidegate bench optimizer` compares results, then times within rounds, and judges what holds."""

from __future__ import annotations

import argparse
import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import torch
from tidegate.cli import bench_optimizer
from tidegate.cli.optimizer_benchmark import agreement, aims, contenders, launch, table
from tidegate.cli.optimizer_benchmark.contenders import Contender
from tidegate.cli.optimizer_benchmark.request import (
    Found,
    Measured,
    Request,
    elements,
    gpt2_shapes,
    shapes,
)

from tests.python.cli import tidegate, write_tree
from tests.python.cli_calls import complaint_of
from tests.python.tree import ROOT
from tests.support.interpreter import run_command

Capture = pytest.CaptureFixture[str]


def request(scenario: str = "one", **changes: object) -> Request:
    asked = {
        **{"scenario": scenario, "threads": 2, "size": 1 << 16, "dtype": "fp32"},
        **{"optimizer": "adamw", "master": "auto", "states": "fp32"},
        **{"rivals": ["torch", "deepspeed"], "rounds": 3, "cpus": [0, 1]},
    }
    return Request(**(asked | changes))  # type: ignore[arg-type]


def found(scenario: str = "one", **seconds: list[float]) -> Found:
    """Names with a blank are written with an underscore."""
    measured = {name.replace("_", " "): Measured(times) for name, times in seconds.items()}
    return Found(request(scenario, size=64 << 20), measured, {"torch": "2.13"}, 1 << 30, 1)


def test_the_parameters_of_gpt2_are_those_of_the_model() -> None:
    tensors = gpt2_shapes()
    assert (len(tensors), elements(tensors)) == (148, 124_439_808)


def test_many_tensors_are_parts_of_the_size() -> None:
    assert shapes("many", 64 << 20) == [(16 << 10,)] * 2000
    assert shapes("mixed", 100) == [(100,)]


def test_a_process_answers_in_the_words_of_its_question() -> None:
    answer = found(torch=[1.0, 2.0], tidegate=[1.0, 1.0])
    assert Found.loads(answer.dumps()) == answer
    assert Request.loads(answer.request.dumps()) == answer.request


def test_ratios_are_within_rounds() -> None:
    answer = found(torch=[2.0, 9.0, 3.0], tidegate=[1.0, 3.0, 2.0])
    assert answer.ratios("torch", "tidegate") == [2.0, 3.0, 1.5]
    assert table.spread(answer.ratios("torch", "tidegate")) == ("2.000", "1.500", "1.750..2.500")


def test_what_computes_something_else_has_no_time() -> None:
    answer = found(torch=[2.0], tidegate=[1.0])
    answer.contenders["tidegate"].wrong = "differs from torch"
    assert answer.ratios("torch", "tidegate") == []
    assert answer.why_not("torch", "tidegate") == "tidegate: differs from torch"
    (torch_row, own_row) = table.rows(answer)
    assert own_row[-1] == "WRONG: differs from torch"
    assert torch_row[3:6] == ["", "", ""]


def test_an_aim_is_held_missed_or_skipped() -> None:
    answers = [
        found("many", torch=[3.2, 3.2, 2.0], tidegate=[2.0, 2.0, 2.0], deepspeed=[2.6, 2.8, 2.7]),
        found(
            *("clip",),
            torch=[3.0],
            tidegate=[1.1],
            tidegate_unclipped=[0.9],
            tidegate_fused=[1.0],
        ),
    ]
    answers[0].contenders["deepspeed"] = Measured(skipped="no DeepSpeed")
    verdicts = {
        (one.aim.scenario, one.aim.above, one.aim.below): one for one in aims.judge(answers)
    }
    assert {key: one.holds for key, one in verdicts.items()} == {
        ("many", "torch", "tidegate"): True,
        ("many", "deepspeed", "tidegate"): None,
        ("clip", "torch", "tidegate"): True,
        ("clip", "tidegate fused", "tidegate unclipped"): False,
    }
    assert verdicts["many", "torch", "tidegate"].median == 1.6
    rows = {tuple(row[:3]): row[3:] for row in aims.rows(list(verdicts.values()))}
    assert rows["many", "2", "deepspeed / tidegate"] == [">= 1.40", "-", "SKIP", "no DeepSpeed"]
    assert rows["clip", "2", "tidegate fused / tidegate unclipped"][:3] == [
        "<= 1.03",
        "1.111",
        "missed",
    ]


def verdict(scenario: str, ratio: float, share: float) -> aims.Verdict:
    """Of tidegate beside torch, where the one that the aim names reaches `share` of the ceiling."""
    times = {"torch": [ratio], "tidegate": [1.0]}
    near = ratio if scenario == "one" else 1.0
    answer = found(scenario, **times, ceiling=[share * near], ceiling_prefetched=[9.0])
    return next(one for one in aims.judge([answer]) if one.aim.above == "torch")


def test_near_the_ceiling_less_is_enough() -> None:
    assert verdict("one", 0.995, 0.96).holds is False
    near = verdict("one", 0.995, 0.975)
    assert near.holds is True
    assert aims.rows([near])[0][-1] == "torch at 0.975 of the ceiling, so 0.99 is enough"
    assert verdict("one", 0.98, 0.98).holds is False
    assert verdict("gpt2", 0.9, 0.96).holds is False
    assert verdict("gpt2", 0.9, 0.98).holds is True
    without = found("one", torch=[1.0], tidegate=[1.0])
    assert [row[-1] for row in aims.rows(list(aims.judge([without])))] == [
        *("ceiling not measured", "deepspeed was not asked for"),
    ]


def test_the_ceiling_is_the_faster_of_its_variants() -> None:
    answer = found(torch=[2.0, 4.0], ceiling=[1.0, 3.0], ceiling_prefetched=[1.5, 2.0])
    assert answer.shares_of_ceiling("torch") == [0.5, 0.5]
    assert found(torch=[2.0], ceiling=[1.0]).shares_of_ceiling("torch") == []


@pytest.mark.skipif(which("c++") is None, reason="no compiler here")
def test_the_ceiling_takes_turns_with_the_optimizers(tmp_path: Path) -> None:
    from tidegate.cli.optimizer_benchmark import measure

    library = tmp_path / "ceiling.so"
    flags = ("-O2", "-fopenmp", "-shared", "-fPIC", "-o", str(library))
    run_command(["c++", *flags, str(ROOT / "bench/offload/ceiling.cc")], tmp_path)
    asked = request(rivals=[], size=1001, ceiling=str(library))
    answer = measure.measure(asked)
    assert len(answer.shares_of_ceiling("torch")) == 3
    made = contenders.make("ceiling prefetched", [torch.zeros(7, 143)], asked)
    made.gradients[0].fill_(1.0)
    made.step()
    parameters, gradients, first, second = made.parameters
    assert gradients.eq(1).all()
    assert first.eq(1).all()
    assert second.eq(1).all()
    assert parameters.eq(torch.tensor(2e-6)).all()


def test_aims_are_those_of_adamw_with_states_of_fp32() -> None:
    answer = found("many", torch=[3.2], tidegate=[2.0])
    answer.request = request("many", states="bf16", size=64 << 20)
    assert list(aims.judge([answer])) == []


def test_no_aim_is_held_at_another_size() -> None:
    answer = found("clip", torch=[3.2], tidegate=[2.0])
    answer.request = request("clip", size=32 << 20)
    assert {(one.holds, one.skipped) for one in aims.judge([answer])} == {
        (None, "the aim is of --size 64M")
    }


def contender(values: torch.Tensor, **how: object) -> Contender:
    return Contender(lambda: None, [values], [], **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("factor", "steps", "wrong"),
    [(1.0, 3, False), (1 + 6e-7, 3, False), (1 + 3e-6, 3, True), (1 + 3e-6, 40, False)],
)
def test_parameters_may_differ_by_rounding(factor: float, steps: int, wrong: bool) -> None:
    start = torch.linspace(0.25, 0.75, 1000, dtype=torch.float64)
    theirs = contender(start.float())
    measured = Measured()
    ours = contender((start * factor).float())
    agreement.compare("tidegate", ours, theirs, [start.float()], steps, measured)
    assert bool(measured.wrong) is wrong, measured


def test_not_a_number_agrees_with_nothing() -> None:
    values = torch.full((10,), 0.5)
    broken = values.clone()
    broken[3] = float("nan")
    for how in ({}, {"exact": False}):
        measured = Measured()
        one = contender(broken, **how)
        agreement.compare("tidegate", one, contender(values), [values - 0.1], 3, measured)
        assert "differs from torch by nan" in measured.wrong


def test_deepspeed_is_compared_in_units_of_the_last_place() -> None:
    values = torch.full((10,), 0.5)
    for units, wrong in ((6, False), (7, True)):
        measured = Measured()
        other = (values.view(torch.int32) + units).view(torch.float32)
        agreement.compare("deepspeed", contender(other), contender(values), [values], 3, measured)
        assert (measured.difference, measured.unit) == (units, "ulp")
        assert bool(measured.wrong) is wrong


def test_sixteen_bit_images_may_differ_where_masters_tie() -> None:
    values = torch.full((10_000,), 0.5, dtype=torch.bfloat16)
    for differing, units, wrong in ((10, 1, False), (11, 1, True), (1, 2, True)):
        other = values.clone()
        bits = other.view(torch.int16)
        bits[:differing] += units
        measured = Measured()
        agreement.compare("tidegate", contender(other), contender(values), [values], 3, measured)
        assert bool(measured.wrong) is wrong, (differing, units)


def test_compressed_states_need_only_go_the_same_way() -> None:
    start, theirs = torch.zeros(1000), torch.full((1000,), 1e-3)
    for error, wrong in ((0.09, False), (0.11, True)):
        measured = Measured()
        one = contender(theirs * (1 + error), exact=False)
        agreement.compare("tidegate", one, contender(theirs), [start], 3, measured)
        assert measured.difference == pytest.approx(error, rel=1e-3)
        assert bool(measured.wrong) is wrong


@pytest.mark.parametrize(
    ("master", "states"),
    [("fp32", "bf16"), ("fp32", "8bit"), ("split", "bf16"), ("split", "8bit"), ("none", "fp32")],
)
def test_compressed_states_are_compared_by_their_masters(master: str, states: str) -> None:
    from tidegate.cli.optimizer_benchmark import measure

    asked = request(dtype="bf16", master=master, states=states, rivals=[], size=1 << 16)
    one = measure.measure(asked).contenders["tidegate"]
    assert (one.skipped, one.wrong, one.unit) == ("", "", "of the way")
    assert one.difference < (1.0 if master == "none" else 0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "adagrad"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_what_torch_computes_in_other_ways_agrees(optimizer: str, dtype: str) -> None:
    from tidegate.cli.optimizer_benchmark import measure

    asked = request(optimizer=optimizer, dtype=dtype, rivals=["torch-foreach"], size=1 << 12)
    answer = measure.measure(asked)
    one = answer.contenders["torch-foreach"]
    assert one.wrong == ""
    assert len(one.seconds) == 3
    assert one.unit == ("relative" if dtype == "fp32" else "of elements")


def test_what_cannot_make_its_first_step_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.cli.optimizer_benchmark import measure

    make = contenders.make

    def refuse() -> None:
        raise NotImplementedError("not offered")

    def make_all_but_one(name: str, start: list[torch.Tensor], asked: Request) -> Contender:
        made = make(name, start, asked)
        return dataclasses.replace(made, step=refuse) if name == "torch-foreach" else made

    monkeypatch.setattr(contenders, "make", make_all_but_one)
    answer = measure.measure(request(rivals=["torch-foreach"], size=1 << 12))
    one = answer.contenders["torch-foreach"]
    assert (one.skipped, one.seconds) == ("not offered", [])
    assert len(answer.contenders["torch"].seconds) == 3


def test_masters_are_compared_with_a_twin_in_fp32() -> None:
    theirs = torch.full((10,), 0.5)
    reference = contender(theirs.bfloat16(), masters=[theirs])
    measured = Measured()
    twin = contender(theirs.clone(), with_masters=True)
    agreement.compare("tidegate fp32", twin, reference, [theirs], 3, measured)
    assert (measured.difference, measured.unit, measured.wrong) == (0.0, "relative", "")


def test_contenders_of_the_scenarios() -> None:
    assert contenders.names(request()) == ["torch", "deepspeed", "tidegate"]
    twins = ["torch exact norm", "torch unclipped", "tidegate unclipped", "tidegate fused"]
    assert contenders.names(request("clip", rivals=[])) == ["torch", "tidegate", *twins]
    assert contenders.names(request("mixed"))[-1] == "tidegate fp32"


def test_mixed_has_16_bits_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    bench_optimizer.add_arguments(parser)
    asked = parser.parse_args(["--scenario", "one,mixed", "--size", "64K", "--threads", "1"])
    assert [one.dtype for one in bench_optimizer._requests(asked)] == ["fp32", "bf16"]
    asked.dtype = "fp16"
    assert [one.dtype for one in bench_optimizer._requests(asked)] == ["fp16", "fp16"]


def test_an_exact_norm_is_that_of_torch_where_torch_is_exact() -> None:
    values = torch.linspace(-1, 1, 1000)
    made = [
        contenders.make(name, [values], request("clip"))
        for name in ("torch", "torch exact norm", "torch unclipped")
    ]
    for one in made:
        one.gradients[0].copy_(values)
        one.step()
    clipped, exactly, unclipped = (one.gradients[0] for one in made)
    torch.testing.assert_close(clipped, exactly, rtol=1e-6, atol=0)
    assert float(clipped.norm()) == pytest.approx(contenders.MAX_NORM, rel=1e-5)
    assert unclipped.equal(values)


def test_threads_have_cores_of_their_own_first(tmp_path: Path) -> None:
    from tidegate.cli.checks.machine_view import MachineView

    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    folder = "sys/devices/system/cpu"
    view = MachineView(
        root=write_tree(
            tmp_path,
            {
                **{
                    f"{folder}/cpu{n}/topology/thread_siblings_list": s for n, s in siblings.items()
                },
                f"{folder}/cpu0/cache/index0/size": "32K\n",
                f"{folder}/cpu0/cache/index3/size": "32768K\n",
            },
        )
    )
    assert launch.processors({0, 2, 3, 1}, view) == [0, 1, 2, 3]
    assert launch.processors({2, 0, 3}, view) == [0, 3, 2]
    assert launch.last_level_cache(view) == 32 << 20


def test_a_small_working_set_is_told() -> None:
    answer = found(torch=[1.0], tidegate=[1.0])
    assert table.working_set(answer, 32 << 20).endswith("32 x the last-level cache of 32 MiB")
    assert "TOO SMALL" in table.working_set(answer, 1 << 28)


def test_all_of_it_runs_and_what_is_missing_is_skipped(tmp_path: Path) -> None:
    scenarios = ("one", "clip", "clip-many", "mixed")
    options = ("--scenario", ",".join(scenarios), "--size", "64K", "--rounds", "3")
    done = tidegate(
        *("bench", "optimizer", *options, "--threads", "1", "--vs", "torch,deepspeed", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    answers = {one["request"]["scenario"]: one for one in report["answers"]}
    assert tuple(answers) == scenarios
    for one in answers.values():
        assert len(one["contenders"]["torch"]["seconds"]) == 3
        assert one["environment"]["OMP_NUM_THREADS"] == "1"
        if find_spec("deepspeed") is None:
            assert "deepspeed.sh" in one["contenders"]["deepspeed"]["skipped"]
            assert one["contenders"]["deepspeed"]["seconds"] == []
    for aim in report["aims"]:
        skipped = aim["median"] is None
        assert (aim["holds"] is None) is skipped
        assert bool(aim["skipped"]) is skipped
    assert len(report["aims"]) == 7


def test_tables_name_the_rounds_reference(tmp_path: Path) -> None:
    options = ("--size", "64K", "--rounds", "3", "--threads", "1", "--vs", "torch-foreach")
    done = tidegate("--no-color", "bench", "optimizer", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one: one tensor; 1 x 65,536 = 65,536 parameters, adamw, 1 thread\n" in done.stdout
    assert "TOO SMALL" in done.stdout or "cache not known" in done.stdout
    (head,) = [line for line in done.stdout.splitlines() if line.startswith("contender")]
    assert head.split("/")[-1].split()[0] in ("tidegate", "torch")
    assert "\nAims (medians of ratios of times):\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--scenario tow", "--scenario tow: none of one, many, gpt2, clip, clip-many, mixed"),
        ("--vs jax", "--vs jax: none of torch, torch-foreach, deepspeed"),
        ("--size 64X", "--size 64X: parameters such as 64M"),
        ("--size 1K", "--size 1K: 64K to 64G parameters"),
        ("--size \u00b2M", "--size \u00b2M: parameters such as 64M"),
        ("--dtype fp8", "--dtype fp8: none of fp32, bf16, fp16"),
        ("--optimizer lamb", "--optimizer lamb: none of adamw, adam, sgd, adagrad"),
        ("--master both", "--master both: none of auto, none, fp32, split"),
        ("--states int4", "--states int4: none of fp32, bf16, 8bit"),
        ("--optimizer sgd --states 8bit", "--states 8bit with --optimizer sgd: "),
        ("--dtype fp32 --master split", "--master split with --dtype fp32: "),
        ("--scenario mixed --dtype fp32", "--dtype fp32 with --scenario mixed: "),
        ("--threads 0", "--threads 0: 1 to"),
        ("--threads two", "--threads two: numbers such as 1,2"),
        ("--ceiling no.so", "--ceiling no.so: no such file"),
        ("--rounds 1", "--rounds 1: at least 3"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: str, complaint: str) -> None:
    from tidegate.cli.main import main

    assert main(["bench", "optimizer", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tidegate bench optimizer: ")
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_more_than_there_is_memory_for_is_refused(capsys: Capture) -> None:
    complaint = "needs 10 TiB of memory"
    from tidegate.cli.main import main

    assert main(["bench", "optimizer", "--size", "64G", "--threads", "1"]) == 1
    captured = capsys.readouterr()
    assert "of memory" in captured.err, complaint
    assert "smaller --size" in captured.err


def test_the_other_bench_is_still_there(capsys: Capture) -> None:
    assert "--ranks 1" in complaint_of(capsys, 2, "bench", "all_gather", "--ranks", "1")
