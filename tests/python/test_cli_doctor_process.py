"""Checks of `tidegate doctor` that fail in a process of their own: limits, names, libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.python.cli import finding_after, write_tree


def test_shared_memory_no_file_may_grow(tmp_path: Path) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    finding = finding_after(limits, "shared-memory", Path("/"), tmp_path)
    assert finding["status"] == "fail"
    assert "File too large" in finding["summary"]
    assert "ulimit -f" in finding["remedy"]


def test_shared_memory_no_descriptor_is_left(tmp_path: Path) -> None:
    # The imports come before the limit: they need descriptors, too.
    limits = """
        import json, os, resource
        import tidegate.cli.checks
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), 64))
    """
    finding = finding_after(limits, "shared-memory", Path("/"), tmp_path)
    assert finding["status"] == "fail"
    assert "Too many open files" in finding["summary"]


def test_memlock_too_small_for_an_rdma_adapter(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "root", {"sys/class/infiniband/mlx5_0/node_type": "1: CA\n"})
    limits = "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
    finding = finding_after(limits, "memlock", root, tmp_path)
    assert finding["status"] == "warn"
    assert finding["details"] == {"soft_bytes": 65536, "rdma_adapters": ["mlx5_0"]}
    assert "ulimit -l" in finding["remedy"]
    assert finding_after(limits, "memlock", tmp_path, tmp_path)["status"] == "ok"


# Puts the process into namespaces of its own, where it may rename the host and replace files.
NAMESPACE = """
    import ctypes, os, socket
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result):
        if result != 0:
            raise SystemExit("NAMESPACE " + os.strerror(ctypes.get_errno()))

    def replace(path, text):
        source = os.path.abspath(path.replace("/", "_"))
        open(source, "w").write(text)
        must(libc.mount(source.encode(), path.encode(), None, 0x1000, None))  # MS_BIND

    must(libc.unshare(0x04000000 | 0x00020000))  # CLONE_NEWUTS | CLONE_NEWNS
    must(libc.mount(b"none", b"/", None, 0x44000, None))  # MS_REC | MS_PRIVATE
    socket.sethostname("no-such-host")
    replace("/etc/nsswitch.conf", "hosts: dns files\\n")
"""


def may_make_namespaces() -> bool:
    script = "import ctypes; exit(ctypes.CDLL(None).unshare(0x04020000) != 0)"
    return subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not may_make_namespaces(), reason="making namespaces is for root"
)


@needs_namespaces
@pytest.mark.parametrize(
    ("mib", "taken_mib", "status", "words"),
    [
        (64, 0, "warn", "/dev/shm has 64 MiB:"),  # docker's default
        (255, 0, "warn", "/dev/shm has 255 MiB:"),
        (300, 0, "ok", "has 0.3 GiB free"),
        (300, 100, "warn", "/dev/shm has 200 of 300 MiB free:"),
    ],
)
def test_shared_memory_mount_is_small_or_full(
    tmp_path: Path, mib: int, taken_mib: int, status: str, words: str
) -> None:
    """tidegate works all the same: its memfds are in no mount."""
    root = write_tree(tmp_path / "root", {"dev/shm/placeholder": ""})
    mount = root / "dev/shm"
    preparation = (
        NAMESPACE
        + f"""
    must(libc.mount(b"tmpfs", {bytes(mount)!r}, b"tmpfs", 0, b"size={mib}m"))
    if {taken_mib}:
        with open({str(mount / "left")!r}, "w") as left:
            os.posix_fallocate(left.fileno(), 0, {taken_mib} << 20)
    """
    )
    finding = finding_after(preparation, "shared-memory", root, tmp_path)
    assert finding["status"] == status, finding
    assert words in finding["summary"]
    assert ("--shm-size" in finding["remedy"]) == (mib < 256)
    assert finding["details"]["shm_bytes"] == mib << 20


def test_shared_memory_mount_is_absent(tmp_path: Path) -> None:
    finding = finding_after("", "shared-memory", tmp_path, tmp_path)
    assert finding["status"] == "warn"
    assert "/dev/shm is absent" in finding["summary"]
    assert "DataLoader" in finding["summary"]
    assert "--shm-size" in finding["remedy"]


@needs_namespaces
@pytest.mark.parametrize(
    ("hosts", "status", "words"),
    [
        ("127.0.0.1 localhost\n", "warn", "no-such-host, does not resolve"),
        ("127.0.0.1 no-such-host\n", "fail", "localhost does not resolve"),
        ("127.0.0.1 localhost no-such-host\n", "ok", "no-such-host is 127.0.0.1"),
    ],
)
def test_hostname_follows_the_hosts_file(
    tmp_path: Path, hosts: str, status: str, words: str
) -> None:
    preparation = (
        NAMESPACE
        + f"""
    replace("/etc/hosts", {hosts!r})
    replace("/etc/nsswitch.conf", "hosts: files\\n")
    """
    )
    finding = finding_after(preparation, "hostname", Path("/"), tmp_path)
    assert finding["status"] == status, finding
    assert words in finding["summary"]


@needs_namespaces
def test_hostname_behind_a_name_server_that_never_answers(tmp_path: Path) -> None:
    preparation = (
        NAMESPACE
        + """
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.77", 53))
    replace("/etc/resolv.conf", "nameserver 127.0.0.77\\noptions timeout:1 attempts:2\\n")
    replace("/etc/hosts", "127.0.0.1 localhost no-such-host\\n")
    """
    )
    finding = finding_after(preparation, "hostname", Path("/"), tmp_path)
    assert finding["status"] == "warn", finding
    assert "every start waits for that" in finding["summary"]


LIBRARIES = {
    "libcuda.so.1": """
        #include <stdlib.h>
        int cuInit(unsigned flags) { return atoi(getenv("CU_INIT")); }
        int cuDeviceGetCount(int* count) { *count = 4; return 0; }
        int cuDriverGetVersion(int* version) { *version = 12080; return 0; }
    """,
    "libnccl.so.2": "int ncclGetVersion(int* version) { *version = 22703; return 0; }",
    "libucp.so.0": 'const char* ucp_get_version_string(void) { return "1.18.0"; }',
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries with the names and functions that the checks look for."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a libcuda.so.1 with")
    folder = tmp_path_factory.mktemp("libraries")
    for name, source in LIBRARIES.items():
        (folder / "source.c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / name), str(folder / "source.c")]
        subprocess.run(command, check=True, timeout=60)
    return folder


def test_cuda_driver_that_does_not_start(tmp_path: Path, libraries: Path) -> None:
    finding = finding_after(
        "", "cuda", Path("/"), tmp_path, LD_LIBRARY_PATH=str(libraries), CU_INIT="100"
    )
    assert finding["status"] == "warn"
    assert "cuInit: 100" in finding["summary"]
    assert "nvidia-smi" in finding["remedy"]


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_cuda_devices_that_torch_was_not_built_for(tmp_path: Path, libraries: Path) -> None:
    finding = finding_after(
        "", "cuda", Path("/"), tmp_path, LD_LIBRARY_PATH=str(libraries), CU_INIT="0"
    )
    assert finding["status"] == "warn"
    assert "4 devices, but torch is built for CPUs" in finding["summary"]
    assert finding["details"]["driver_cuda"] == 12080


@pytest.mark.parametrize(("check", "version"), [("nccl", "2.27.3"), ("ucx", "1.18.0")])
def test_library_is_found_with_its_version(
    tmp_path: Path, libraries: Path, check: str, version: str
) -> None:
    if check == "nccl" and torch.version.cuda is not None:
        pytest.skip("this torch has loaded a libnccl.so.2 of its own")
    finding = finding_after("", check, Path("/"), tmp_path, LD_LIBRARY_PATH=str(libraries))
    assert finding["status"] == "ok"
    assert finding["summary"] == f"found, version {version}"
