"""Rewrites the name tests of torch's distributed suite, so that they admit tidegate.

The suite (`torch.testing._internal.distributed.distributed_test`) asks in many places which backend
it runs on, and asks by name. A backend of another name is skipped where gloo or MPI would run, and
is not held to what they are held to. The rules below admit `NAME` wherever gloo or MPI is admitted.
They work on the syntax tree of the installed source and change nothing else:

gate      The condition of a skipping decorator (`skip_but_pass_in_sandcastle_if(C, ...)`,
          `unittest.skipIf(C, ...)`) that mentions the backend's name. C becomes
          `C for gloo and C for mpi`: skipped only if both would be.
function  The same for the `if` conditions of the functions that make such decorators:
          `require_backend_is_available`, `skip_if_small_worldsize`, `skip_if_odd_worldsize` (the
          last two belong to `common_distributed`; MPI is exempt from them).
body      A comparison in the body of a test or helper, `BACKEND == "gloo"` or `"mpi"` (`!=`):
          becomes `BACKEND in ("gloo", NAME)` (`not in`).
list      A list of names that holds `dist.Backend.GLOO` or `dist.Backend.MPI`, assigned at the top
          of the module: NAME is appended. These lists decide whether profiler events are checked,
          so this rule adds assertions.

Not touched: comparisons with other backends (NCCL, UCC), which keep meaning "not that one"; groups
that a test itself makes with gloo; and `ddp_logging_data.get("backend_name") == "gloo"`, behind
which the suite reads gloo's own settings.
"""

from __future__ import annotations

import ast
import copy
import dataclasses

NAME = "tidegate"
ADMITTED = ("gloo", "mpi")

SKIPPING_DECORATORS = {"skip_but_pass_in_sandcastle_if", "skipIf"}
SKIPPING_FUNCTIONS = {
    "require_backend_is_available",
    "skip_if_small_worldsize",
    "skip_if_odd_worldsize",
}


@dataclasses.dataclass(frozen=True)
class Change:
    """One rewritten expression: the rule that did it, its first line, its text before and after."""

    rule: str
    line: int
    before: str
    after: str


def rewrite(tree: ast.Module) -> tuple[ast.Module, list[Change]]:
    """A copy of `tree` that admits NAME, and what was changed. `tree` stays as it is."""
    rewriter = _Rewriter()
    changed = rewriter.visit(copy.deepcopy(tree))
    return ast.fix_missing_locations(changed), rewriter.changes


def names_backend(node: ast.AST) -> bool:
    """Whether `node` is the name under test: `BACKEND` or `os.environ["BACKEND"]`."""
    if isinstance(node, ast.Name):
        return node.id == "BACKEND"
    return (
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "os.environ"
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "BACKEND"
    )


def mentions_backend(node: ast.AST) -> bool:
    return any(names_backend(child) for child in ast.walk(node))


class _Substitute(ast.NodeTransformer):
    """Replaces the backend's name by a constant."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit(self, node: ast.AST) -> ast.AST:
        if names_backend(node):
            return ast.copy_location(ast.Constant(self.name), node)
        return self.generic_visit(node)


def _skipped_by_all(condition: ast.expr) -> ast.expr:
    cases = [_Substitute(name).visit(copy.deepcopy(condition)) for name in ADMITTED]
    return ast.copy_location(ast.BoolOp(ast.And(), cases), condition)


class _Rewriter(ast.NodeTransformer):
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._functions: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [self._decorator(each) for each in node.decorator_list]
        self._functions.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        self._functions.pop()
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if SKIPPING_FUNCTIONS.intersection(self._functions) and mentions_backend(node.test):
            node.test = self._record("function", node.test, _skipped_by_all(node.test))
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if not self._functions or SKIPPING_FUNCTIONS.intersection(self._functions):
            return node
        name = _compared_name(node)
        if name is None:
            return self.generic_visit(node)
        admitted = ast.Tuple([ast.Constant(name), ast.Constant(NAME)], ast.Load())
        is_equal = isinstance(node.ops[0], ast.Eq)
        after = ast.Compare(node.left, [ast.In() if is_equal else ast.NotIn()], [admitted])
        return self._record("body", node, ast.copy_location(after, node))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not self._functions and isinstance(node.value, ast.List):
            elements = {ast.unparse(each) for each in node.value.elts}
            if elements & {f"dist.Backend.{name.upper()}" for name in ADMITTED}:
                after = ast.List([*node.value.elts, ast.Constant(NAME)], ast.Load())
                node.value = self._record("list", node.value, ast.copy_location(after, node.value))
                return node
        return self.generic_visit(node)

    def _decorator(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            condition = node.args[0]
            if called in SKIPPING_DECORATORS and mentions_backend(condition):
                node.args[0] = self._record("gate", condition, _skipped_by_all(condition))
        return node

    def _record(self, rule: str, before: ast.expr, after: ast.expr) -> ast.expr:
        self.changes.append(Change(rule, before.lineno, ast.unparse(before), ast.unparse(after)))
        return after


def _compared_name(node: ast.Compare) -> str | None:
    """The admitted name that `node` compares the backend's name with, by `==` or `!=`."""
    if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return None
    other = node.comparators[0]
    if names_backend(node.left) and isinstance(other, ast.Constant) and other.value in ADMITTED:
        return str(other.value)
    return None
