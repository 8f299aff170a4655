"""Makes the suite's module out of the installed source, rewritten or as it is.

The compiled module takes the place of the installed one in `sys.modules`: the suite pickles objects
of its own classes, which is by module name. Lines and file name stay those of the installed source,
so that tracebacks can be followed. A process can load the suite once: backend and world size are
constants of the module (and arguments of its decorators).
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.upstream.rewrite import NAME, SKIPPING_FUNCTIONS, Change, rewrite

SUITE = "torch.testing._internal.distributed.distributed_test"
HELPERS = "torch.testing._internal.common_distributed"


def source_of(module: str) -> Path:
    """The file of a module of torch, found without importing torch."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise ImportError(f"no source of {module}")
    return Path(spec.origin).parent.joinpath(*rest).with_suffix(".py")


def parse(module: str) -> ast.Module:
    path = source_of(module)
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_names() -> list[str]:
    """The tests of the suite, in the order of its source."""
    return [
        node.name
        for base in ast.walk(parse(SUITE))
        if isinstance(base, ast.ClassDef) and base.name == "_DistTestBase"
        for node in base.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def load(backend: str, world_size: int) -> tuple[types.ModuleType, list[Change]]:
    """The suite for one backend and world size, and what was rewritten (nothing unless NAME)."""
    if SUITE in sys.modules:
        raise RuntimeError(f"{SUITE} is loaded already, with its own constants")
    os.environ["BACKEND"] = backend
    os.environ["WORLD_SIZE"] = str(world_size)
    # Read while the suite is imported, to gate one test on it. The file is named before each test.
    os.environ["INIT_METHOD"] = "file:///dev/null"
    tree = parse(SUITE)
    changes: list[Change] = []
    skipping: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if backend == NAME:
        tree, changes = rewrite(tree)
        skipping = _rewritten_skips(changes)
    path = source_of(SUITE)
    module = types.ModuleType(SUITE)
    module.__file__ = str(path)
    module.__package__ = SUITE.rpartition(".")[0]
    sys.modules[SUITE] = module
    with skipping:
        exec(compile(tree, str(path), "exec", dont_inherit=True), module.__dict__)
    return module, changes


@contextlib.contextmanager
def _rewritten_skips(changes: list[Change]) -> Iterator[None]:
    """While the suite is imported, the decorators that it takes from HELPERS are rewritten ones."""
    helpers = importlib.import_module(HELPERS)
    tree, rewritten = rewrite(parse(HELPERS))
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in SKIPPING_FUNCTIONS
    ]
    namespace = dict(vars(helpers))
    exec(compile(tree, str(source_of(HELPERS)), "exec", dont_inherit=True), namespace)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    changes.extend(rewritten)
    with mock.patch.multiple(helpers, **{name: namespace[name] for name in names}):
        yield
