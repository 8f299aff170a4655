"""The types of the shim, python/tidegate/_shim_types.pyi, name what the built shim has.

`make lint` compares every word (scripts/stubs.py --check); this needs no generator.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tidegate import _backend

from tests.python.tree import ROOT

STUB = (ROOT / "python/tidegate/_shim_types.pyi").read_text()
MADE_FOR = re.search(r"the shim for torch (\d+\.\d+)", STUB)
RUNNING = ".".join(str(torch.__version__).split(".")[:2])
assert MADE_FOR

pytestmark = pytest.mark.skipif(
    MADE_FOR[1] != RUNNING, reason=f"the stub is that of torch {MADE_FOR[1]}"
)

Names = dict[str, Any]


def documented(body: list[ast.stmt]) -> Names:
    """Names of a stub's body; a class maps to its own names, a function to its parameters."""
    found: Names = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = documented(node.body)
        elif isinstance(node, ast.FunctionDef):
            # Neither a property nor one of several overloads.
            plain = all(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list)
            names = [argument.arg for argument in node.args.args]
            found[node.name] = names if plain else None
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
    return found


def of_module(stub: str) -> Names:
    """What `Shim` says that the module has, of a class what its own entry says."""
    found = documented(ast.parse(stub).body)
    shim: Names = found.pop("Shim")
    assert shim.pop("__name__", "absent") is None
    for name, value in shim.items():
        if name in found:  # a class, which is a member of the protocol and described beside it
            assert value is None, name
        elif value is not None:
            assert value[0] == "self", name
            found[name] = value[1:]
        else:
            found[name] = None
    assert found.keys() == shim.keys()
    return found


def parameters(function: Any) -> list[str] | None:
    """Parameter names out of the first line of pybind11's docstring; None for overloads."""
    signature, *rest = (inspect.getdoc(function) or "").splitlines()
    if rest and rest[0] == "Overloaded function.":
        return None
    parsed = ast.parse(f"def {signature}: ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return [argument.arg for argument in parsed.args.args]


def present(owner: ModuleType | type) -> Names:
    """The same of the loaded shim. Of the special methods only those that pybind11 documents."""
    found: Names = {}
    for name, value in vars(owner).items():
        special = name.startswith("_")
        if isinstance(value, staticmethod):  # whose own documentation is that of its type
            value = value.__func__
        if inspect.isclass(value):
            found[name] = present(value)
        elif not special and not callable(value):
            found[name] = None
        elif callable(value) and (inspect.getdoc(value) or "").startswith(f"{name}("):
            found[name] = parameters(value)
    return found


def test_stub_names_what_the_shim_has() -> None:
    assert of_module(STUB) == present(_backend.load_shim())


USES = {
    "shim.settings()": "",
    "shim.ProcessGroupTidegate.Options()": "",
    "shim.setings()": 'has no attribute "setings"',
    "shim.machine(3)": "incompatible type",
    "shim.torch_version + 1": "Unsupported operand types",
}


def test_a_wrong_use_of_the_shim_is_an_error_of_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="only `make lint` installs mypy")
    lines = ["from tidegate import _backend", "shim = _backend.load_shim()", *USES]
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(script)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "python"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    errors = dict.fromkeys(USES, "")
    for number, text in re.findall(r"script\.py:(\d+): error: (.*)", done.stdout):
        errors[lines[int(number) - 1]] += text
    for use, words in USES.items():
        assert words in errors[use], done.stdout + done.stderr
        assert bool(words) == bool(errors[use]), done.stdout + done.stderr
