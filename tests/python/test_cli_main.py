"""The front of the `tidegate` command: quick, readable, one line for an error."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tidegate as package

from tests.python.cli import environment, tidegate
from tests.support.interpreter import run_script

COMMANDS = (
    "doctor",
    "env",
    "demo",
    "topo",
    "plan",
    "sim",
    "measure",
    "bench",
    "bench optimizer",
    "estimate",
)


def in_terminal(*command: str, cwd: Path, **extra: str) -> str:
    """What a command writes to a terminal, of 120 columns unless `extra` says otherwise."""
    master, slave = pty.openpty()
    variables = environment(**{"COLUMNS": "120", "TERM": "xterm", **extra})
    process = subprocess.Popen(
        [sys.executable, *command], stdout=slave, stderr=slave, cwd=cwd, env=variables
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 1 << 16)
        except OSError:  # Linux says EIO when the last writer is gone
            break
        chunks.append(chunk)
    os.close(master)
    assert process.wait() == 0, b"".join(chunks)
    return b"".join(chunks).decode()


def test_help_names_the_commands_and_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from tidegate.cli.main import main\n"
        "main(['--help'])"
    )
    done = run_script(script, tmp_path, env=environment())
    for command in COMMANDS:
        assert re.search(rf"\n    {command}\s", done.stdout), command


def test_console_script_is_the_same_command(tmp_path: Path) -> None:
    points = importlib.metadata.distribution("tidegate").entry_points
    scripts = {point.name: point.value for point in points if point.group == "console_scripts"}
    assert scripts == {"tidegate": "tidegate.cli.main:main"}
    # `pip install --target` makes a bin of its own beside the package.
    folders = (Path(sys.executable).parent, Path(package.__file__).parents[1] / "bin")
    script = next(path for folder in folders if (path := folder / "tidegate").exists())
    done = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout == f"tidegate {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "say which command: doctor, env, demo, topo, plan, sim"),
        (("cure",), "invalid choice: 'cure'"),
        (("env", "--jsn"), "unrecognized arguments: --jsn"),
        (("doctor", "--only", "torch,shin"), "no check is called shin"),
        (("demo", "--steps", "0"), "--steps must be at least 1"),
    ],
)
def test_wrong_command_line_ends_with_two(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    done = tidegate(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "doctor", "--only", "hugepages"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


ESCAPE = "\x1b["
HUGEPAGES = ("-m", "tidegate", "doctor", "--only", "hugepages")


@pytest.mark.skipif(
    importlib.util.find_spec("rich") is None, reason="the extra tidegate[cli] is not installed"
)
def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    assert ESCAPE in in_terminal(*HUGEPAGES, cwd=tmp_path)
    assert ESCAPE not in in_terminal(*HUGEPAGES, cwd=tmp_path, NO_COLOR="1")
    without = ("-m", "tidegate", "--no-color", *HUGEPAGES[2:])
    assert ESCAPE not in in_terminal(*without, cwd=tmp_path)
    assert ESCAPE not in tidegate(*HUGEPAGES[2:], cwd=tmp_path).stdout


def test_everything_works_without_rich(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['rich'] = None\n"
        "from tidegate.cli.main import main\n"
        "sys.exit(main(['doctor', '--only', 'hugepages']))"
    )
    shown = in_terminal("-c", script, cwd=tmp_path)
    assert ESCAPE not in shown
    assert "hugepages" in shown
