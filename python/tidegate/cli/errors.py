"""The errors of a subcommand: one line on stderr each."""


class CommandError(Exception):
    """What went wrong and what to do about it; exit status 1."""


class UsageError(CommandError):
    """A wrong command line that argparse cannot see; exit status 2."""
