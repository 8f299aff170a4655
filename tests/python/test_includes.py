"""Includes point one way: down the layers of docs/architecture.md, and torch stays in the shim."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.tree import ROOT, files

COMMON = (
    "common",
    "common/machine",
    "common/ipc",
    "common/json",
    "common/simd",
    "common/drivers/nvml",
    "common/drivers/sysfs",
)

# Folder to the folders that it may include, itself apart. Lowest layer first: a folder may name
# only folders above its own line, so the table has no cycle.
ALLOWED: dict[str, tuple[str, ...]] = {
    "common": (),
    "common/machine": ("common",),
    "common/ipc": ("common", "common/machine"),
    "common/json": ("common",),
    "common/simd": ("common",),
    "common/drivers/nvml": ("common",),
    "common/drivers/sysfs": ("common",),
    "collectives/admission": COMMON,
    "collectives/topology": COMMON,
    "collectives/schedule": COMMON,
    "collectives/verifier": (*COMMON, "collectives/topology", "collectives/schedule"),
    "collectives/algorithms": (*COMMON, "collectives/topology", "collectives/schedule"),
    # Takes schedules from whoever asks, so that it knows no algorithm.
    "collectives/simulator": (*COMMON, "collectives/topology", "collectives/schedule"),
    "collectives/planner": (
        *COMMON,
        "collectives/topology",
        "collectives/schedule",
        "collectives/algorithms",
        "collectives/simulator",
    ),
    "collectives/kernels": COMMON,
    "collectives/calibration": (*COMMON, "collectives/topology", "collectives/kernels"),
    # Fingerprints name an operation and a dtype, whose types live in schedule and kernels.
    "collectives/transport": (*COMMON, "collectives/schedule", "collectives/kernels"),
}
for transport in ("loopback", "shm"):
    ALLOWED[f"collectives/transport/{transport}"] = (
        *ALLOWED["collectives/transport"],
        "collectives/transport",
    )
ALLOWED["collectives/executor"] = (
    *COMMON,
    "collectives/schedule",
    "collectives/kernels",
    "collectives/transport",
)
ALLOWED["collectives"] = tuple(ALLOWED)
# Beside collectives: neither includes the other.
ALLOWED["offload/memory"] = COMMON
ALLOWED["offload/optim"] = COMMON
ALLOWED["offload/threads"] = COMMON
ALLOWED["offload/transfer"] = COMMON
ALLOWED["offload"] = (
    *COMMON,
    "offload/memory",
    "offload/optim",
    "offload/threads",
    "offload/transfer",
)
ALLOWED["backend"] = tuple(ALLOWED)
ALLOWED["python/bindings"] = tuple(ALLOWED)
ALLOWED["bench/collectives"] = ALLOWED["backend"]

# Programs of their own, which nothing includes and which declare no library.
PROGRAMS = {"bench/instructions", "bench/micro", "bench/offload", "bench/scale"}

TORCH_FOLDERS = ("backend", "python/bindings")
TORCH_HEADER = re.compile(r"(torch|c10|ATen|pybind11)/|(Python|caffe2.*)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
LIBRARY = re.compile(r"tidegate_add_(library|shim)\s*\(([^)]*)\)")


def owner(path: Path) -> str | None:
    """The folder of the table that a file belongs to: the longest that contains it."""
    parents = [str(parent) for parent in path.parents]
    return next((parent for parent in parents if parent in ALLOWED), None)


def includes() -> Iterator[tuple[Path, str, str]]:
    """Every include of the layered folders: file, kind of quote, header."""
    for path in files(".h", ".cc"):
        if owner(path):
            for quote, header in INCLUDE.findall((ROOT / path).read_text()):
                yield path, quote, header


def target_name(folder: str) -> str:
    return folder.replace("/", "_")


def declared_dependencies() -> dict[str, set[str]]:
    """Folder to the folders that its CMake target names in DEPS."""
    by_target = {target_name(folder): folder for folder in ALLOWED}
    found: dict[str, set[str]] = {}
    for folder in ALLOWED:
        listing = ROOT / folder / "CMakeLists.txt"
        if listing.exists():
            text = re.sub(r"#.*", "", listing.read_text())
            match = LIBRARY.search(text)
            assert match, f"{folder}/CMakeLists.txt declares no target"
            words = match[2].split()
            names = words[words.index("DEPS") + 1 :] if "DEPS" in words else []
            unknown = [name for name in names if name not in by_target]
            assert not unknown, f"{folder}/CMakeLists.txt depends on {unknown}"
            found[folder] = {by_target[name] for name in names}
    return found


def test_the_table_points_down_only() -> None:
    order = list(ALLOWED)
    for folder, allowed in ALLOWED.items():
        assert all(order.index(lower) < order.index(folder) for lower in allowed), folder


def test_every_source_folder_is_in_the_table() -> None:
    tops = {folder.split("/")[0] for folder in ALLOWED}
    strays = {
        str(path.parent)
        for path in files(".h", ".cc")
        if path.parts[0] in tops and str(path.parent) not in {*ALLOWED, *PROGRAMS}
    }
    assert strays == set()


def test_includes_point_down() -> None:
    wrong = []
    for path, quote, header in includes():
        here, there = owner(path), owner(Path(header))
        if quote == '"' and here != there and (there is None or there not in ALLOWED[here or ""]):
            wrong.append(f"{path} includes {header}")
    assert wrong == []


def test_quoted_includes_name_files_from_the_root() -> None:
    wrong = [
        f"{path} includes {header}"
        for path, quote, header in includes()
        if quote == '"' and not (ROOT / header).is_file()
    ]
    assert wrong == []


def test_torch_and_python_headers_stay_in_the_shim() -> None:
    wrong = [
        f"{path} includes {header}"
        for path, _, header in includes()
        if TORCH_HEADER.match(header) and owner(path) not in TORCH_FOLDERS
    ]
    assert wrong == []


def test_cmake_dependencies_are_allowed() -> None:
    for folder, dependencies in declared_dependencies().items():
        assert dependencies <= set(ALLOWED[folder]), folder


def test_includes_are_covered_by_cmake_dependencies() -> None:
    declared = declared_dependencies()

    def closure(folder: str) -> set[str]:
        direct = declared.get(folder, set())
        return direct.union(*(closure(lower) for lower in direct))

    reachable = {folder: closure(folder) for folder in declared}
    wrong = []
    for path, quote, header in includes():
        here, there = owner(path), owner(Path(header))
        if quote == '"' and here in reachable and there not in {here, *reachable[here]}:
            wrong.append(f"{path} includes {header}, but {here} does not depend on {there}")
    assert wrong == []


@pytest.mark.parametrize("folder", TORCH_FOLDERS)
def test_torch_is_included_in_few_translation_units(folder: str) -> None:
    # Each costs about ten seconds and 1 GB to compile.
    units = {
        path.name
        for path, _, header in includes()
        if owner(path) == folder and path.suffix == ".cc" and TORCH_HEADER.match(header)
    }
    cmake = (ROOT / folder / "CMakeLists.txt").read_text()
    batch = re.search(r"UNITY_BUILD_BATCH_SIZE (\d+)", cmake)
    compiled = math.ceil(len(units) / int(batch[1])) if batch else len(units)
    assert compiled <= 4, units


def test_no_two_headers_define_a_type_of_one_name() -> None:
    """Linked into one library, two types of one name are one to the linker: memory is lost."""
    definition = re.compile(r"^(?:struct|class|enum class|union) (\w+)\b[^;(]*\{", re.MULTILINE)
    defined: dict[str, str] = {}
    for path in files(".h"):
        if owner(path) is None or str(path).endswith("_inl.h"):
            continue
        # Namespaces of one folder, such as tidegate::lowering, keep their names apart.
        text = (ROOT / path).read_text()
        inner = re.search(r"^namespace tidegate::(\w+)", text, re.MULTILINE)
        for name in definition.findall(text):
            qualified = f"{inner[1]}::{name}" if inner else name
            assert qualified not in defined, f"{qualified}: {path} and {defined[qualified]}"
            defined[qualified] = str(path)
    assert len(defined) > 100
