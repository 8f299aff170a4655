"""The stub of the shim, python/tidegate/_c10d.pyi, names what the built shim has.

`make lint` compares every word (scripts/stubs.py --check); this needs no generator.
"""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from tidegate import _backend

from tests.python.tree import ROOT

STUB = (ROOT / "python/tidegate/_c10d.pyi").read_text()
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
            plain = not node.decorator_list  # neither a property nor one of several overloads
            found[node.name] = [a.arg for a in node.args.args] if plain else None
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
    found.pop("__all__", None)
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
        if inspect.isclass(value):
            found[name] = present(value)
        elif not special and not callable(value):
            found[name] = None
        elif callable(value) and (inspect.getdoc(value) or "").startswith(f"{name}("):
            found[name] = parameters(value)
    return found


def test_stub_names_what_the_shim_has() -> None:
    assert documented(ast.parse(STUB).body) == present(_backend.load_shim())
