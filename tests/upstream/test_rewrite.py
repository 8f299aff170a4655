"""The rewriting admits tidegate where gloo or MPI is admitted, and changes nothing else."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.upstream.loader import HELPERS, SUITE, parse
from tests.upstream.rewrite import ADMITTED, Change, mentions_backend, rewrite


def rewritten(text: str) -> str:
    tree, _ = rewrite(ast.parse(textwrap.dedent(text)))
    return ast.unparse(tree)


def skipped(condition: str, **names: object) -> bool:
    """Whether the rewritten decorator `skip_but_pass_in_sandcastle_if(condition)` skips."""
    text = f"@skip_but_pass_in_sandcastle_if({condition}, 'why')\ndef test(): pass"
    verdicts: list[bool] = []

    def decorator(condition: bool, _reason: str):
        verdicts.append(condition)
        return lambda function: function

    names = {"skip_but_pass_in_sandcastle_if": decorator, "BACKEND": "tidegate", **names}
    exec(rewritten(text), names)
    return verdicts[0]


@pytest.mark.parametrize(
    ("condition", "skips"),
    [
        ("BACKEND != 'gloo'", False),
        ("BACKEND != 'mpi'", False),
        ("BACKEND != 'nccl'", True),
        ("BACKEND == 'nccl'", False),
        ("BACKEND == 'nccl' or BACKEND == 'ucc'", False),
        ("BACKEND == 'mpi'", False),
        ("BACKEND == 'gloo' or BACKEND == 'mpi'", True),
        ("BACKEND != 'gloo' and BACKEND != 'nccl'", False),
        ("BACKEND != 'nccl' or ON_SOME_MACHINE", True),
        ("BACKEND != 'gloo' or ON_SOME_MACHINE", True),
        ("BACKEND not in FEATURE['ddp']", False),
        ("BACKEND not in FEATURE['plugin']", True),
        ("BACKEND in LACKS['all'] ", True),
        ("BACKEND in LACKS['mpi only']", False),
        ("ON_SOME_MACHINE", True),
    ],
)
def test_gate(condition: str, skips: bool) -> None:
    feature = {"ddp": {"nccl", "gloo"}, "plugin": set()}
    lacks = {"all": {"gloo", "mpi"}, "mpi only": {"mpi"}}
    assert skipped(condition, FEATURE=feature, LACKS=lacks, ON_SOME_MACHINE=True) is skips


def test_conditions_without_the_name_stay() -> None:
    text = """
    @unittest.skipIf(IS_LINUX, 'why')
    @skip_but_pass_in_sandcastle_if(not HAS_IT, 'why')
    def test():
        if backend == 'gloo':
            pass
        if ddp_logging_data.get('backend_name') == 'gloo':
            pass
        if BACKEND == 'nccl':
            pass
    """
    assert rewritten(text) == ast.unparse(ast.parse(textwrap.dedent(text)))


def test_body_comparisons() -> None:
    text = "def test():\n    if BACKEND == 'mpi' or BACKEND != 'gloo':\n        pass"
    names = {"mpi": "('mpi', 'tidegate')", "gloo": "('gloo', 'tidegate')"}
    expected = f"if BACKEND in {names['mpi']} or BACKEND not in {names['gloo']}:"
    assert rewritten(text).splitlines()[1].strip() == expected


def test_lists_of_names() -> None:
    assert rewritten("SUPPORTED = [dist.Backend.NCCL, dist.Backend.GLOO]") == (
        "SUPPORTED = [dist.Backend.NCCL, dist.Backend.GLOO, 'tidegate']"
    )
    assert rewritten("SUPPORTED = [dist.Backend.NCCL]") == "SUPPORTED = [dist.Backend.NCCL]"


def test_the_tree_given_stays_as_it_is() -> None:
    tree = ast.parse("@skipIf(BACKEND != 'gloo', 'why')\ndef test(): pass")
    before = ast.dump(tree, include_attributes=True)
    rewrite(tree)
    assert ast.dump(tree, include_attributes=True) == before


# Of the installed source.


@pytest.fixture(scope="module", params=[SUITE, HELPERS], ids=["suite", "helpers"])
def installed(request: pytest.FixtureRequest) -> tuple[ast.Module, ast.Module, list[Change]]:
    tree = parse(request.param)
    return tree, *rewrite(tree)


def test_every_rule_finds_something() -> None:
    rules = {change.rule for change in rewrite(parse(SUITE))[1]}
    assert rules == {"gate", "function", "body", "list"}
    assert {change.rule for change in rewrite(parse(HELPERS))[1]} == {"function"}


def test_no_admission_by_name_is_left(installed) -> None:
    """Each comparison of the name under test with an admitted one has been rewritten."""
    _, tree, _ = installed
    left = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and mentions_backend(node)
        and not any(
            isinstance(child, ast.Constant) and child.value == "tidegate"
            for child in ast.walk(node)
        )
        and any(
            isinstance(child, ast.Constant) and child.value in ADMITTED for child in ast.walk(node)
        )
    ]
    assert left == []


def test_only_recorded_expressions_change(installed) -> None:
    """Putting the old expressions back gives the installed source: no other node was touched."""
    before, after, changes = installed
    by_text = {(change.line, change.after): change.before for change in changes}

    class PutBack(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr):
                old = by_text.get((node.lineno, ast.unparse(node)))
                if old is not None:
                    return ast.parse(old, mode="eval").body
            return self.generic_visit(node)

    assert ast.unparse(PutBack().visit(after)) == ast.unparse(before)


def test_no_assertion_changes(installed) -> None:
    def assertions(tree: ast.Module) -> list[str]:
        return [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert)
            or (isinstance(node, ast.Call) and ".assert" in ast.unparse(node.func))
        ]

    before, after, _ = installed
    assert assertions(before) == assertions(after)
