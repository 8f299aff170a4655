"""Command line of `tidegate`: parses it, calls one subcommand, turns its errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from tidegate._version import __version__
from tidegate.cli import bench, demo, doctor, env, estimate, measure, plan, sim, topo
from tidegate.cli.errors import CommandError, UsageError
from tidegate.cli.output import Output

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_COMMANDS = (doctor, env, demo, topo, plan, sim, measure, bench, estimate)


def _name(command: ModuleType) -> str:
    return command.__name__.rpartition(".")[2]


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
    options = parser.parse_args(arguments)
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
