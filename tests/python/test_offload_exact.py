"""An offloaded run has the same bits whatever the threads and wherever it was interrupted.

`make test-all` compares a thousand steps.
"""

from __future__ import annotations

from pathlib import Path

from tests.conformance.cases import run_all
from tests.python.jobs import run_job
from tests.support.processes import ROOT

STEPS = 1000 if run_all() else 60

RUN = """
import hashlib, os
import torch
from tidegate import offload

begin, end, folder = int(os.environ["BEGIN"]), int(os.environ["END"]), os.environ["FOLDER"]
shapes = [(3,), (70_001,), (0,), (64, 65), (4096,), (1,), (9000,)]
sizes = [torch.Size(shape).numel() for shape in shapes]
# A step's gradients are rows of one table, so that they cost little beside the step.
table = torch.randn(sum(sizes) + 1000, generator=torch.Generator().manual_seed(1))

def run(name, rule, dtype, **arguments):
    torch.manual_seed(0)
    parameters = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    optimizer = rule(parameters, lr=1e-3, **arguments)
    if begin:
        saved = torch.load(f"{folder}/{name}")
        optimizer.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for parameter, value in zip(parameters, saved["parameters"]): parameter.copy_(value)
    gradients = table.to(dtype)
    for step in range(begin, end):
        parts = gradients[step : step + sum(sizes)].split(sizes)
        for parameter, part in zip(parameters, parts): parameter.grad = part.view(parameter.shape)
        optimizer.step()
    if not begin:
        state = {"optimizer": optimizer.state_dict(), "parameters": parameters}
        torch.save(state, f"{folder}/{name}")
    digest = hashlib.sha256()
    for parameter, state in zip(parameters, optimizer.state_dict()["state"].values()):
        for value in [parameter, *state.values()]:
            digest.update(value.detach().float().numpy().tobytes())
    print(name, digest.hexdigest())

for limit in (None, 1.0):
    how = {} if limit is None else {"max_grad_norm": limit}
    run(f"AdamW-{limit}", offload.AdamW, torch.float32, **how)
    run(f"AdamW-bf16-{limit}", offload.AdamW, torch.bfloat16, **how)
    run(f"SGD-{limit}", offload.SGD, torch.float32, momentum=0.9, **how)
print("threads", len(offload.stats()["threads"]))
"""


def digests(folder: Path, threads: int, begin: int = 0, end: int = STEPS) -> dict[str, str]:
    """By case, of its parameters and states after the steps from `begin` to `end`.

    Those that begin at 0 leave them in `folder`, where those that go on find them.
    """
    steps = {"BEGIN": str(begin), "END": str(end), "FOLDER": str(folder)}
    done = run_job(RUN, folder, 1, {"TIDEGATE_OFFLOAD_THREADS": str(threads), **steps})
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.pop("threads") == str(threads)
    assert len(found) == 6
    return found


def test_neither_the_number_of_threads_nor_an_interruption_shows(tmp_path: Path) -> None:
    expected = digests(tmp_path, 1)
    assert len(set(expected.values())) == len(expected)
    assert digests(tmp_path, 2) == expected
    assert digests(tmp_path, 3) == expected
    half = digests(tmp_path, 2, end=STEPS // 2)
    assert all(half[name] != expected[name] for name in half)
    assert digests(tmp_path, 1, begin=STEPS // 2) == expected


ALLOCATIONS = """
import torch
from tidegate import offload
from torch.profiler import ProfilerActivity, profile

parameters = [torch.randn(5000).requires_grad_() for _ in range(20)]
for parameter in parameters: parameter.grad = torch.randn(5000)
optimizer = offload.AdamW(parameters)
for _ in range(3): optimizer.step()
before = offload.stats()["arena"]
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
    for _ in range(10): optimizer.step()
assert offload.stats()["arena"] == before
bytes_of = sum(max(event.self_cpu_memory_usage, 0) for event in seen.events())
print(bytes_of)
"""


def test_a_step_allocates_no_tensor_memory_once_it_is_warm(tmp_path: Path) -> None:
    done = run_job(ALLOCATIONS, tmp_path, 1, {})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]


def test_the_example_trains_on_two_ranks(tmp_path: Path) -> None:
    script = (ROOT / "examples/offload_adamw.py").read_text()
    folder = repr(str(ROOT / "examples"))
    begin = f"sys.argv += ['--steps', '10', '--bf16']; sys.path.insert(0, {folder})"
    script = script.replace("sys.path.insert(0, str(Path(__file__).parent))", begin)
    done = run_job(script, tmp_path, 2, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("MiB of states") == 2, done.stdout
    assert done.stdout.count("loss") == 1, done.stdout
