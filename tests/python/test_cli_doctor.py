"""Each check of `tidegate doctor` is made to fail by a file tree, a variable or an environment."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import tidegate as package
import torch
from tidegate import _backend
from tidegate.cli import checks, doctor, main
from tidegate.cli.checks import CHECKS, memory
from tidegate.cli.checks.finding import Finding, ok
from tidegate.cli.checks.machine_view import MachineView

from tests.python.cli import doctor as run_doctor
from tests.python.cli import tidegate, write_tree
from tests.python.jobs import run_job
from tests.python.tree import ROOT

# Absence of these is in order, so they cannot fail.
INFORMATIVE = {"nccl", "ucx"}


def examine(check: str, root: Path = Path("/"), **environment: str) -> Finding:
    return CHECKS[check](MachineView(root=root, environment=environment))


def test_page_explains_each_check_in_order() -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    assert re.findall(r"^### `([\w-]+)`$", page, re.MULTILINE) == list(CHECKS)
    shown = re.findall(r"^(?:ok|warn|fail)\s+([\w-]+)\s", page, re.MULTILINE)
    assert shown == list(CHECKS)


def test_each_check_is_made_to_fail_somewhere() -> None:
    files = sorted(Path(__file__).parent.glob("test_cli_doctor*.py"))
    texts = "".join(path.read_text() for path in files)
    for check in set(CHECKS) - INFORMATIVE:
        assert f"def test_{check.replace('-', '_')}_" in texts, check


def test_this_environment_passes_with_everything_reported(tmp_path: Path) -> None:
    # The machine may be busy; a hang is what the deadline is for.
    done = tidegate("doctor", "--json", "--self-test-seconds", "180", cwd=tmp_path)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    failures = {n: f for n, f in report["checks"].items() if f["status"] == "fail"}
    assert failures == {}
    assert done.returncode == 0
    assert list(report["checks"]) == list(CHECKS)
    assert report["status"] in ("ok", "warn")
    assert "PyTorch version" in report["collect_env"]


def test_text_has_a_line_and_a_remedy_for_each_finding(tmp_path: Path) -> None:
    names = "threads,hugepages"
    done = tidegate("doctor", "--only", names, cwd=tmp_path, LOCAL_WORLD_SIZE="none")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1].startswith("fail")
    assert lines[2].split()[0] == "fix:"
    assert re.fullmatch(r"\d ok, \d warn, 1 fail", lines[-1])


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: MachineView) -> Finding:
        raise KeyError("oops")

    monkeypatch.setitem(checks.CHECKS, "numa", broken)
    finding = doctor._examine("numa", MachineView())
    assert finding["status"] == "fail"
    assert "oops" in finding["summary"]


def test_a_remedy_belongs_to_what_is_not_ok() -> None:
    with pytest.raises(ValueError, match="a remedy"):
        Finding("warn", "no remedy")
    with pytest.raises(ValueError, match="a remedy"):
        Finding("ok", "fine", "but do this")
    assert ok("fine", number=1).details == {"number": 1}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with the package as it is without an installation, and without a shim."""
    copy = tmp_path / "bare" / "tidegate"
    installed = Path(package.__path__[0])
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return copy.parent


def test_torch_absent_is_said_by_all_that_need_it(tmp_path: Path, bare: Path) -> None:
    # The ranks of the self-test are plain Pythons again, with torch.
    names = [name for name in CHECKS if name not in ("cuda", "nccl", "ucx", "self-test")]
    findings = run_doctor(*names, python=(sys.executable, "-S"), cwd=tmp_path, PYTHONPATH=str(bare))
    assert "torch cannot be imported" in findings["torch"]["summary"]
    assert "install torch" in findings["torch"]["remedy"]
    for name in ("shim", "autoload", "default", "threads", "matmul"):
        assert findings[name]["status"] == "fail", name
    for name in ("settings", "memory", "cpus", "numa"):
        assert findings[name]["status"] == "warn", name
        assert findings[name]["remedy"] == "see the check shim"


def test_autoload_fails_where_the_package_is_only_on_the_path(tmp_path: Path, bare: Path) -> None:
    """The environment with all its packages but ours, and ours beside it without a shim."""
    site = tmp_path / "site"
    site.mkdir()
    for entry in Path(torch.__file__).parent.parent.iterdir():
        if not entry.name.startswith("tidegate"):
            (site / entry.name).symlink_to(entry)
    findings = run_doctor(
        "torch",
        "shim",
        "autoload",
        python=(sys.executable, "-S"),
        cwd=tmp_path,
        PYTHONPATH=f"{bare}{os.pathsep}{site}",
    )
    assert findings["torch"]["status"] == "ok"
    assert "has no shim for the running torch" in findings["shim"]["summary"]
    assert "not installed" in findings["autoload"]["summary"]
    assert "pip install" in findings["autoload"]["remedy"]


def test_autoload_and_default_fail_where_torch_is_told_not_to(tmp_path: Path) -> None:
    findings = run_doctor(
        "autoload",
        "default",
        cwd=tmp_path,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TIDEGATE_DEFAULT="cpu",
    )
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in findings["autoload"]["summary"]
    assert findings["default"]["status"] == "fail"
    assert "cpu: gloo" in findings["default"]["summary"]
    assert "autoload" in findings["default"]["remedy"]


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [("2.10.3", "fail", "older than 2.11"), ("2.99.0", "warn", "newer than 2.15")],
)
def test_torch_outside_the_range_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str, words: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    finding = examine("torch")
    assert finding.status == status
    assert f"torch {version} is {words}" in finding.summary


def test_shim_of_another_patch_version_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    minor = ".".join(str(torch.__version__).split(".")[:2])
    monkeypatch.setattr(torch, "__version__", f"{minor}.99")
    finding = examine("shim")
    assert finding.status == "warn"
    assert f"torch {minor}.99 is running" in finding.summary


def test_shim_for_another_torch_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(_backend, "_shim", None)
    finding = examine("shim")
    assert finding.status == "fail"
    assert "no shim for the running torch 2.99.0" in finding.summary


def test_default_names_a_bad_value() -> None:
    finding = examine("default", TIDEGATE_DEFAULT="gpu")
    assert finding.status == "fail"
    assert "TIDEGATE_DEFAULT=gpu is not accepted" in finding.summary


def test_settings_bad_value_and_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_STAGE_BYTE", "1M")
    finding = examine("settings")
    assert finding.status == "warn"
    assert "TIDEGATE_STAGE_BYTE (is no setting)" in finding.summary
    assert "TIDEGATE_STAGE_BYTES" in finding.remedy
    monkeypatch.setenv("TIDEGATE_STAGE_BYTES", "1")
    finding = examine("settings")
    assert finding.status == "fail"
    assert "TIDEGATE_STAGE_BYTES=1 is not accepted" in finding.summary


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALGO", "ag:foo", 'there is no algorithm "foo" for all_gather; there are direct'),
        ("TOPO_FILE", "missing.json", "cannot read missing.json: No such file"),
        ("TOPO_FILE", "binary.json", r"binary.json: line 1, column 1: "),
    ],
)
def test_settings_that_are_read_when_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"TIDEGATE_{name}", value)
    finding = examine("settings")
    assert finding.status == "fail"
    assert f"TIDEGATE_{name}: {words}" in finding.summary


@pytest.mark.parametrize(("limit", "status"), [(10 << 20, "fail"), (500 << 20, "warn")])
def test_memory_of_a_small_container(tmp_path: Path, limit: int, status: str) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 64000000 kB\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": f"{limit}\n",
            "sys/fs/cgroup/job/memory.current": "0\n",
        },
    )
    finding = examine("memory", root)
    assert finding.status == status
    assert finding.details["available_bytes"] == finding.details["limit_bytes"] == limit
    assert "--memory" in finding.remedy
    assert "STAGE_BYTES" not in finding.remedy


@pytest.mark.parametrize(
    ("ranks", "stage", "limit_mib", "status"),
    [
        # 128 MiB of stages, 1040 MiB of channels.
        ("64", "1 MiB", 1100, "fail"),
        ("64", "1 MiB", 2000, "warn"),
        ("64", "1 MiB", 5000, "ok"),
        ("2", "0.75g", 3000, "fail"),
        ("2", "1024k", 5000, "ok"),
        ("none", "1B", 5000, "ok"),  # what other checks report is 8 ranks and 2 MiB here
    ],
)
def test_memory_of_a_container_too_small_for_its_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    stage: str,
    limit_mib: int,
    status: str,
) -> None:
    monkeypatch.setenv("TIDEGATE_STAGE_BYTES", stage)
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 64000000 kB\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": f"{limit_mib << 20}\n",
            "sys/fs/cgroup/job/memory.current": "0\n",
        },
    )
    finding = examine("memory", root, LOCAL_WORLD_SIZE=ranks)
    assert finding.status == status, finding
    assert ("lower TIDEGATE_STAGE_BYTES" in finding.remedy) == (stage == "0.75g")


MAPPED = """
import os
import torch.distributed
torch.distributed.init_process_group("tidegate")
torch.distributed.barrier()
lines = open("/proc/self/maps").read().splitlines()
ranges = [line.split()[0].split("-") for line in lines if "/memfd:tidegate" in line]
mapped = sum(int(end, 16) - int(start, 16) for start, end in ranges)
os.write(1, f"{mapped}\\n".encode())  # Lines of ranks must not tear.
torch.distributed.destroy_process_group()
"""


def test_memory_of_a_group_is_what_a_group_maps(tmp_path: Path) -> None:
    # Heaps are address space alone until there are tensors.
    done = run_job(MAPPED, tmp_path, 4, {"TIDEGATE_HEAP_BYTES": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    for mapped in map(int, done.stdout.split()):
        assert 0 <= mapped - memory.group_bytes(4, 2 << 20) <= 64 << 10  # words and records


@pytest.mark.parametrize(
    ("scope", "capabilities", "status"),
    [("0", 0, "ok"), ("1", 0, "warn"), ("1", 1 << 19, "ok"), ("3", 1 << 19, "warn")],
)
def test_single_copy_under_yama(tmp_path: Path, scope: str, capabilities: int, status: str) -> None:
    files = {
        "proc/sys/kernel/yama/ptrace_scope": f"{scope}\n",
        "proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities:016x}\n",
    }
    finding = examine("single-copy", write_tree(tmp_path, files))
    assert finding.status == status
    if status == "warn":
        assert f"ptrace_scope is {scope}" in finding.summary
        assert "sysctl" in finding.remedy


def test_single_copy_without_the_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_read_own_memory", lambda: errno.ENOSYS)
    finding = examine("single-copy")
    assert finding.status == "warn"
    assert "process_vm_readv" in finding.remedy


def test_hugepages_switched_off(tmp_path: Path) -> None:
    enabled = "sys/kernel/mm/transparent_hugepage/enabled"
    root = write_tree(
        tmp_path,
        {enabled: "always madvise [never]\n", "proc/meminfo": "HugePages_Total:      12\n"},
    )
    finding = examine("hugepages", root)
    assert finding.status == "warn"
    assert finding.details["reserved"] == 12
    assert "echo madvise" in finding.remedy
    write_tree(tmp_path, {enabled: "always [madvise] never\n"})
    assert examine("hugepages", root).status == "ok"


@pytest.mark.parametrize("version", [1, 2])
def test_cpus_quota_below_the_mask(tmp_path: Path, version: int) -> None:
    files = {
        1: {
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        2: {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "50000 100000\n"},
    }
    finding = examine("cpus", write_tree(tmp_path, files[version]))
    assert finding.status == "warn"
    assert finding.details["quota"] == 0.5
    assert finding.details["usable"] == 1
    assert "raise the quota" in finding.remedy


def test_numa_rank_bound_to_no_node(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    everything = "0-4095\n"
    root = write_tree(
        tmp_path,
        {
            f"{nodes}/has_memory": "0-1\n",
            f"{nodes}/node0/cpulist": everything,
            f"{nodes}/node1/cpulist": everything,
        },
    )
    finding = examine("numa", root)
    assert finding.status == "warn"
    assert finding.details == {"nodes": 2}
    assert "numactl" in finding.remedy
    write_tree(root, {f"{nodes}/node1/cpulist": "\n"})
    assert examine("numa", root).status == "ok"


def test_threads_more_than_processors() -> None:
    finding = examine("threads", OMP_NUM_THREADS="2", LOCAL_WORLD_SIZE="5000")
    assert finding.status == "warn"
    assert finding.details["threads"] == 2
    assert finding.details["ranks"] == 5000
    assert "OMP_NUM_THREADS=1" in finding.remedy
    for bad in ("0", "-1", "two", "0,2"):
        finding = examine("threads", OMP_NUM_THREADS=bad, LOCAL_WORLD_SIZE="1")
        assert finding.status == "warn"
        assert f"OMP_NUM_THREADS={bad} is no number of threads" in finding.summary
    assert examine("threads", OMP_NUM_THREADS="1,3", LOCAL_WORLD_SIZE="1").status == "ok"
    finding = examine("threads", LOCAL_WORLD_SIZE="two")
    assert finding.status == "fail"
    assert "LOCAL_WORLD_SIZE=two" in finding.summary


def test_matmul_far_below_the_machine(tmp_path: Path) -> None:
    """The tree tells of a clock that no processor has."""
    root = write_tree(tmp_path, {"proc/cpuinfo": "cpu MHz : 1000000000\nflags : fpu sse2 avx2\n"})
    finding = examine("matmul", root)
    assert finding.status == "warn"
    assert "32 a cycle (avx2)" in finding.summary
    assert "OMP_NUM_THREADS" in finding.remedy
    slow = write_tree(tmp_path / "slow", {"proc/cpuinfo": "cpu MHz : 0.001\nFeatures : asimd\n"})
    assert examine("matmul", slow).status == "ok"


def test_hostname_of_the_master_does_not_resolve() -> None:
    finding = examine("hostname", MASTER_ADDR="no-such-host.invalid")
    assert finding.status == "fail"
    assert "MASTER_ADDR=no-such-host.invalid" in finding.summary
    assert "127.0.0.1" in finding.remedy


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_self_test_limit_must_be_a_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["doctor", "--only", "torch", f"--self-test-seconds={seconds}"])
    assert ended.value.code == 2
    assert f"{seconds} is no number of seconds above 0" in capsys.readouterr().err


def test_self_test_shows_the_error_of_a_rank() -> None:
    """A setting that no group accepts: both ranks end with the backend's own message."""
    view = MachineView(environment={**os.environ, "TIDEGATE_STAGE_BYTES": "1"})
    finding = CHECKS["self-test"](view)
    assert finding.status == "fail"
    assert "TIDEGATE_STAGE_BYTES=1 is not accepted" in finding.summary
    assert finding.details["statuses"] == [1, 1]


def test_self_test_ends_at_its_deadline() -> None:
    finding = CHECKS["self-test"](MachineView(self_test_seconds=0.0))
    assert finding.status == "fail"
    assert "did not end within 0 s" in finding.summary
    assert "--self-test-seconds" in finding.remedy
