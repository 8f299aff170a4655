"""Command line of `tidegate`: parses it, calls one subcommand, turns its errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from tidegate._version import __version__
from tidegate.cli import (
    bench,
    bench_optimizer,
    demo,
    doctor,
    env,
    estimate,
    measure,
    plan,
    sim,
    topo,
)
from tidegate.cli.errors import CommandError, UsageError
from tidegate.cli.output import Output

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_COMMANDS = (doctor, env, demo, topo, plan, sim, measure, bench, bench_optimizer, estimate)


def _name(command: ModuleType) -> str:
    name: str = getattr(command, "NAME", command.__name__.rpartition(".")[2])
    return name


def _joined(words: Sequence[str]) -> list[str]:
    """`words` with the name of a command of two words in one piece, as argparse knows it."""
    pairs = [name.split() for module in _COMMANDS if " " in (name := _name(module))]
    first = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    found = list(words[first : first + 2])
    return [*words[:first], " ".join(found), *words[first + 2 :]] if found in pairs else [*words]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidegate",
        description="tidegate: a c10d process-group backend for PyTorch.",
        epilog="Exit status: 0 for success, 1 for a failure, 2 for a wrong command line.",
    )
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    parser.add_argument(
        "--no-color", action="store_true", help="plain text; the variable NO_COLOR does the same"
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for module in _COMMANDS:
        subparser = commands.add_parser(
            _name(module), help=module.SUMMARY, description=module.DESCRIPTION
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A wrong command line raises SystemExit(2)."""
    parser = build_parser()
    options = parser.parse_args(_joined(sys.argv[1:] if arguments is None else arguments))
    if options.command is None:
        parser.error("say which command: " + ", ".join(map(_name, _COMMANDS)))
    try:
        status: int = options.run(options, Output(no_color=options.no_color))
        sys.stdout.flush()
    except CommandError as error:
        print(f"tidegate {options.command}: {error}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`tidegate env | head`); Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status
