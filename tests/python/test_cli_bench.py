"""`tidegate bench` prints what nccl-tests prints, checks what it times, and compares backends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tidegate.cli.benchmark import comparison, table
from tidegate.cli.benchmark.case import Case
from tidegate.cli.benchmark.launch import lines_of_rank_0
from tidegate.cli.benchmark.object_case import ObjectCase
from tidegate.cli.benchmark.request import (
    COLLECTIVES,
    OPS,
    TYPE_BYTES,
    Cell,
    Request,
    Row,
    Timing,
    bus_factor,
    dump_rows,
    load_rows,
)
from tidegate.cli.benchmark.values import PERIOD, Values, count_wrong, tile
from tidegate.cli.errors import CommandError
from tidegate.cli.job import FAILURE, failure

from tests.python.cli import environment, tidegate
from tests.python.cli_calls import complaint_of, titles

Capture = pytest.CaptureFixture[str]

REQUEST = Request(
    *(["all_gather"], [64], ["float"], ["sum"], 0, ["tidegate", "gloo"]),
    *(2, 1, 1, 3, False),
)
CELL = Cell("all_gather", 4, "float", "none", -1, 250_000)


def row(backend: str, *seconds: float, wrong: int | None = 0) -> Row:
    return Row(CELL, backend, Timing(2, list(seconds), wrong, []))


# Conventions of nccl-tests


def test_bus_bandwidth_factors() -> None:
    factors = {name: bus_factor(name, 4) for name in COLLECTIVES}
    parts = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
    objects = ("all_gather_object", "gather_object", "scatter_object_list")
    assert factors == {
        "all_reduce": 1.5,
        **dict.fromkeys((*parts, *objects), 0.75),
        **dict.fromkeys(("broadcast", "reduce", "barrier", "broadcast_object_list"), 1.0),
    }
    assert table.bandwidths(row("gloo", 4e-3), Timing(2, [4e-3], 0, [])) == (1.0, 0.75)


@pytest.mark.parametrize(
    ("collective", "size", "type_name", "count", "total"),
    [
        ("all_gather", 1000, "float", 80, 960),  # 83 elements a rank, cut to 16 bytes
        ("reduce_scatter", 1000, "double", 40, 960),
        ("all_to_all", 1000, "int8", 320, 960),
        ("gather", 40, "half", 0, 0),
        ("all_reduce", 1002, "float", 250, 1000),
        ("broadcast", 7, "bfloat16", 3, 6),
    ],
)
def test_sizes_are_those_of_nccl_tests(
    collective: str, size: int, type_name: str, count: int, total: int
) -> None:
    found = COLLECTIVES[collective].count(size, 3, TYPE_BYTES[type_name])
    assert found == count
    assert Cell(collective, 3, type_name, "none", -1, count).bytes == total


def test_a_memcpy_moves_what_a_rank_must() -> None:
    assert CELL.copied_bytes == 4_000_000
    # 4,000,000 read and 1,000,000 written.
    assert Cell("reduce_scatter", 4, "float", "sum", -1, 250_000).copied_bytes == 2_500_000


def test_figures_fit_into_their_columns() -> None:
    shown = [table.fit(value, 7) for value in (0.0, 1.234, 12345.67, 1234567.8, 123456789.0)]
    assert shown == ["0.00", "1.23", "12345.7", "1234568", "1.2e+08"]
    assert table.fit(1234567.0, 6) == "1e+06"


def test_spread_is_by_nearest_rank() -> None:
    found = table.spread([float(number) for number in range(1, 201)])
    assert (found["min"], found["max"], found["p95"], found["p99"]) == (1, 200, 190, 198)
    assert table.spread([3.0] * 5)["cv_pct"] == 0


def test_a_wrong_element_fails_its_section() -> None:
    lines = list(table.section([row("gloo", 1e-3, wrong=3), row("gloo", 1e-3)], REQUEST))
    assert "# Out of bounds values : 1 FAILED" in lines
    assert lines[5].split()[8] == "3"
    lines = list(table.section([row("gloo", 1e-3)], REQUEST))
    assert "# Out of bounds values : 0 OK" in lines
    assert "# Avg bus bandwidth    : 3 " in lines


# The check


@pytest.mark.parametrize("type_name", TYPE_BYTES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_reductions_are_exact_in_any_order(type_name: str, op: str, ranks: int) -> None:
    values = Values(type_name, op, ranks)
    expected = values.reduced()
    for order in (range(ranks), reversed(range(ranks))):
        total: Any = None
        for rank in order:
            term = values.of(rank)
            if total is None:
                total = term
            elif op in ("sum", "avg"):
                total = total + term
            elif op == "prod":
                total = total * term
            else:
                total = torch.maximum(total, term) if op == "max" else torch.minimum(total, term)
        if op == "avg":
            exact = type_name in ("float", "double", "half", "bfloat16")
            total = total / ranks if exact else total // ranks
        assert count_wrong(total, expected, 0, values.tolerance) == 0
    assert (values.tolerance > 0) == (op == "avg" and ranks == 3 and expected.is_floating_point())


def test_ranks_have_data_of_their_own() -> None:
    for op in (*OPS, "none"):
        data = [Values("int8", op, 4).of(rank) for rank in range(4)]
        for left in range(4):
            assert all((data[left] != data[right]).sum() > PERIOD // 5 for right in range(left))


def test_each_wrong_element_counts() -> None:
    period = Values("float", "none", 2).of(1)
    vector = torch.zeros(3 * PERIOD + 17)
    tile(vector, period, start=5)
    assert count_wrong(vector, period, 5) == 0
    assert vector[0] == period[5]
    vector[[0, PERIOD, 3 * PERIOD + 16]] += 1
    assert count_wrong(vector, period, 5) == 3
    vector[7] = float("nan")
    assert count_wrong(vector, period, 5) == 4
    assert count_wrong(vector[4:], period, 5) > 2 * PERIOD  # a block that is out of place


PLACES = [
    *((name, False) for name, kind in COLLECTIVES.items() if kind.out_of_place),
    *((name, True) for name, kind in COLLECTIVES.items() if kind.in_place),
]


TENSORS = [one for one in PLACES if one[0] != "barrier" and not COLLECTIVES[one[0]].objects]
OBJECTS = [name for name, kind in COLLECTIVES.items() if kind.objects]


@pytest.mark.parametrize(("name", "in_place"), TENSORS)
def test_what_is_not_communicated_is_wrong(name: str, in_place: bool) -> None:
    kind = COLLECTIVES[name]
    root = {"reduce": 1, "gather": 1, "broadcast": 0, "scatter": 0}.get(name, -1)
    cell = Cell(name, 2, "bfloat16", "sum" if kind.reduces else "none", root, 5000)
    case = Case(cell, 1, in_place)
    case.fill()
    wrong = case.wrong()
    assert wrong is not None
    assert wrong > 3000


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_that_is_not_communicated_is_wrong(name: str) -> None:
    rank = 1 if name == "gather_object" else 0
    cell = Cell(name, 2, "uint8", "none", -1 if name == "all_gather_object" else 1, 5000)
    case = ObjectCase(cell, rank)
    case.fill()
    results = 2 if "gather" in name else 1
    assert case.wrong() == results * 5000


def test_each_wrong_byte_of_an_object_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("all_gather_object", 2, "uint8", "none", -1, 5000)
    cases = [ObjectCase(cell, rank) for rank in range(2)]
    objects: list[bytes] = []

    def take(results: list[Any], own: bytes, group: Any) -> None:
        objects.append(own)

    def give(results: list[Any], own: bytes, group: Any) -> None:
        results[:] = objects

    monkeypatch.setattr("torch.distributed.all_gather_object", take)
    for case in cases:
        case.call(None)
    monkeypatch.setattr("torch.distributed.all_gather_object", give)
    cases[0].call(None)
    assert cases[0].wrong() == 0
    objects[1] = objects[1][:100] + bytes([objects[1][100] + 1]) + objects[1][101:]
    cases[0].call(None)
    assert cases[0].wrong() == 1
    objects.reverse()
    cases[0].call(None)
    assert cases[0].wrong() > 2 * 3000


# Comparison


def test_ratios_are_medians_within_rounds() -> None:
    rows = [row("tidegate", 1e-3, 2e-3, 4e-3), row("gloo", 3e-3, 2e-3, 8e-3)]
    (line,) = [line for line in comparison.lines(rows) if "gloo / tidegate" in line]
    assert line.endswith("gloo / tidegate: out-of-place 2.00x (1.00..3.00)")
    (line,) = [
        line
        for line in comparison.lines([rows[0], row("null", 0.5e-3, 1e-3, 1e-3, wrong=None)])
        if "null" in line
    ]
    assert line.endswith("tidegate above null: out-of-place +1000.0 us (+500.0..+3000.0)")
    (line,) = [
        line
        for line in comparison.lines([rows[0], row("memcpy", 1e-3, 1e-3, 1e-3, wrong=None)])
        if "memcpy" in line
    ]
    assert "memcpy of 4000000 B: out-of-place 50% of its speed (25%..100%; " in line
    *_, last = comparison.markdown(rows)
    assert last == ("| all_gather | 4 | 3.81 MiB | 2 ms | 3 ms | - | 2.00 | 2.00x (1.00..3.00) |")


def test_rows_travel_between_processes() -> None:
    rows = [row("tidegate", 1e-3), Row(CELL, "gloo", error="no")]
    assert load_rows(dump_rows(rows)) == rows
    assert Request.loads(REQUEST.dumps()) == REQUEST


# Whole runs


@dataclass
class Run:
    lines: list[str]
    report: dict[str, Any]
    plot: Path


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("bench")
    done = tidegate(
        *("bench", "all_gather", "all_reduce", "-b", "1K", "-e", "4K", "-f", "4", "-n", "3"),
        *("--ranks", "2", "--backends", "gloo,tidegate,null", "--rounds", "2", "-I", "1"),
        *("-J", "out.json", "--plot", "out.svg"),
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((folder / "out.json").read_text())
    return Run(done.stdout.splitlines(), report, folder / "out.svg")


def test_lines_are_those_of_nccl_tests(small_run: Run) -> None:
    figures = [line.split() for line in small_run.lines if line and not line.startswith("#")]
    assert [words[:5] for words in figures] == [
        *([["1024", "128", "float", "none", "-1"], ["4096", "512", "float", "none", "-1"]] * 3),
        *([["1024", "256", "float", "sum", "-1"], ["4096", "1024", "float", "sum", "-1"]] * 3),
    ]
    assert {len(words) for words in figures} == {5 + 2 * 8}
    checked, null = figures[0], figures[4]
    assert (checked[8], checked[16], null[8], null[16]) == ("0", "0", "N/A", "N/A")
    all_reduce = figures[6]
    assert all_reduce[5:13] == ["N/A"] * 8
    assert all_reduce[16] == "0"
    names = next(line for line in small_run.lines if " algbw " in line).split()
    place = ["time", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"]
    assert names == ["#", "size", "count", "type", "redop", "root", *place, *place]
    assert small_run.lines.count("# Out of bounds values : 0 OK") == 6
    assert sum(line.startswith("# Avg bus bandwidth    : ") for line in small_run.lines) == 6


def test_the_host_and_the_ratios_are_in_comments(small_run: Run) -> None:
    first = small_run.lines[0]
    assert first.startswith("# tidegate bench cpu ")
    for name in ("cores", "kernel", f"torch {torch.__version__}", "load"):
        assert name in first
    assert sum("  gloo / tidegate: " in line for line in small_run.lines) == 4
    assert sum("  tidegate above null: " in line for line in small_run.lines) == 4
    assert sum("  tidegate beside a memcpy of " in line for line in small_run.lines) == 2


def test_the_file_has_the_layout_of_nccl_tests(small_run: Run) -> None:
    report = small_run.report
    assert report["version"] == 2
    assert {"start_time", "end_time", "args", "env", "errors", "host"} < set(report)
    assert report["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert report["average_bus_bandwidth"]["bandwidth"] > 0
    config = report["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"], config["iterations"]) == (
        1024,
        4096,
        3,
    )
    assert [device["rank"] for device in config["devices"]] == [0, 1]
    assert len({device["pid"] for device in config["devices"]}) == 2
    results = report["results"]
    assert len(results) == 2 * 4 + 2 * 3
    for result in results:
        factor = 1.0 if result["collective"] == "all_reduce" else 0.5
        for place in ("out_of_place", "in_place"):
            figures = result[place]
            if figures is None:
                continue
            rate = result["size"] / figures["time"] / 1e3
            assert figures["alg_bw"] == pytest.approx(rate)
            assert figures["bus_bw"] == pytest.approx(factor * rate)
            assert len(figures["rounds_us"]) == 2
            checked = result["backend"] in ("tidegate", "gloo")
            assert figures["nwrong"] == (0 if checked else None)
            each = result[f"{place}_per_iter"]
            assert len(each["times_us"]) == 2 * 3
            assert each["min_us"] <= each["p50_us"] <= each["p99_us"] <= each["max_us"]
    assert results[-1]["out_of_place"] is None


def test_the_plot_has_a_curve_for_each_backend(small_run: Run) -> None:
    found = titles(small_run.plot, "polyline")
    both = [name + place for name in ("gloo", "tidegate", "null") for place in ("", " in place")]
    assert found == [*both, "memcpy", "gloo", "tidegate", "null"]


def test_every_collective_type_and_operation_is_right(tmp_path: Path) -> None:
    done = tidegate(
        *("bench", *COLLECTIVES, "--sizes", "40,20K", "--ranks", "3", "--rounds", "1", "-n", "1"),
        *("-d", "all", "-o", "all", "-r", "-1", "-J", "out.json"),
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["errors"] == []
    own = [result for result in report["results"] if result["backend"] == "tidegate"]
    assert {result["collective"] for result in own} == set(COLLECTIVES)
    # 2 sizes of 8 types: 2 x 5 operations without a root and 1 x 5 with one of 3, 3 x 3, 2 x 1;
    # objects of one type, 3 of the functions with a root; a barrier.
    assert len(own) == 2 * 8 * (2 * 5 + 5 * 3 + 3 * 3 + 2) + 2 * (3 * 3 + 1) + 1
    for result in own:
        places = [result[place] for place in ("out_of_place", "in_place") if result[place]]
        expected = None if result["collective"] == "barrier" else 0
        assert [place["nwrong"] for place in places] == [expected] * len(places)


def test_torchrun_may_start_the_ranks(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "tidegate", "bench", "reduce_scatter", "barrier"),
            *("--sizes", "4K", "--rounds", "1", "-n", "2", "--markdown"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    tabled = [line.split(" | ")[:3] for line in done.stdout.splitlines() if line.startswith("|")]
    assert tabled[0] == ["| op", "ranks", "size"]
    assert tabled[2:] == [
        ["| reduce_scatter", "2", "4 KiB"],
        ["| reduce_scatter in place", "2", "4 KiB"],
        ["| barrier", "2", "0 B"],
    ]


def test_a_backend_that_cannot_serve_is_named(tmp_path: Path) -> None:
    # c10d divides by the ranks after gloo has summed, which integers do not take.
    done = tidegate(
        *("bench", "all_reduce", "--sizes", "4K", "--ranks", "2", "--rounds", "1", "-n", "1"),
        *("-d", "int32", "-o", "avg", "--backends", "gloo"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "# 4096 B, int32, avg: " in done.stdout
    assert "# Avg bus bandwidth    : 0 " in done.stdout


def test_no_rank_outlives_an_interrupted_run(tmp_path: Path) -> None:
    size = 123_392  # of no other process
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tidegate", "bench", "barrier", "all_gather"),
            *("--sizes", str(size), "--ranks", "2", "--rounds", "1000000"),
            *("-n", "1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
        # A shell that starts this in its background has it ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    ranks: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ranks) < 2:
        with pytest.raises(subprocess.TimeoutExpired):  # it runs on
            process.wait(timeout=0.2)
        assert time.monotonic() < deadline
        ranks = processes_with(f'"sizes": [{size}]', "tidegate.cli.benchmark.ranks")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert processes_with(f'"sizes": [{size}]', "") == set()


def processes_with(*words: str) -> set[int]:
    """Processes whose command line has all the words and that are no launchers."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if all(word in text for word in words) and "torch.distributed.run" not in text:
            found.add(int(entry.parent.name))
    return found


def test_the_exceptions_of_ranks_are_what_a_failure_says(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import sys\nraise RuntimeError(f'no {sys.argv[1]} is left\\nframe #0')"
    )
    with pytest.raises(CommandError) as failed:
        list(lines_of_rank_0("broken", "ink", 2, tmp_path))
    assert re.fullmatch(
        r"2 ranks failed: rank [01]: RuntimeError: no ink is left", str(failed.value)
    )


def test_of_ranks_that_fail_the_first_is_named_first() -> None:
    lines = [
        *("Traceback", "half a line" + FAILURE + '[1, "KeyError: 5"]'),
        *(FAILURE + '[0, "RuntimeError: rank 1 left"]', FAILURE + '[2, "KeyError: 5"]', "E1124"),
    ]
    found = failure("\n".join(lines))
    assert found == "rank 1: KeyError: 5; rank 0: RuntimeError: rank 1 left"
    # Of ranks that a signal ended, what torchrun says of them.
    assert failure("x" * 5000 + "exitcode: -9\n").endswith("xxexitcode: -9")


def test_settings_are_checked_before_ranks_are_started(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_ALGO", "ag:foo")
    for more in ((), ("--inflight", "4")):
        complaint = complaint_of(capsys, 2, "bench", "all_gather", "--ranks", "2", *more)
        assert 'TIDEGATE_ALGO: there is no algorithm "foo"' in complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--backends", "nccl"), "--backends nccl: it serves CUDA tensors"),
        (("--backends", "tidegate,glue"), "--backends 'glue': torch knows none; choose from"),
        (("-b", "64M"), "sizes from 64M to 32M: none"),
        (("--sizes", "4X"), "4X"),
        (("--ranks", "1"), "--ranks 1: there must be 2 to 64"),
        (("--ranks", "two"), "--ranks two: numbers such as 2,4"),
        (("--ranks", "2,4", "-r", "2"), "--root 2: 0 to 1, or -1"),
        (("-n", "0"), "--iters 0: at least 1"),
        (("--rounds", "0"), "--rounds 0: at least 1"),
        (("-d", "complex"), "--datatype complex: none of int8"),
    ],
)
def test_wrong_options_are_one_line(
    capsys: Capture, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in complaint_of(capsys, 2, "bench", "all_reduce", *arguments)


@pytest.mark.skipif(torch.distributed.is_mpi_available(), reason="this torch has MPI")
def test_a_backend_that_torch_lacks_is_refused(capsys: Capture) -> None:
    assert "built without MPI" in complaint_of(capsys, 2, "bench", "reduce", "--backends", "mpi")


def test_a_job_has_its_number_of_ranks(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    complaint = complaint_of(capsys, 2, "bench", "reduce", "--ranks", "2")
    assert "--ranks 2, but this job has 4 ranks; leave it out" in complaint
