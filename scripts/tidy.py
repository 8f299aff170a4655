"""Runs clang-tidy over every source of a compile database, and again only over what changed.

A source that was clean leaves a stamp whose name is the hash of all that the answer hangs on: the
rules, the compile command, the source and those of our headers that it includes, however far down.
Prints the findings; exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
RULES = (".clang-tidy", "tests/unit/.clang-tidy")


@cache
def read(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """The text of a file and those of its includes that are ours; they are named from ROOT."""
    text = path.read_bytes()
    named = (ROOT / name.decode() for name in INCLUDE.findall(text))
    return text, tuple(header for header in named if header.is_file())


def closure(source: Path) -> list[Path]:
    """`source` and the headers of ours that it includes, directly or not, sorted."""
    seen = {source}
    left = [source]
    while left:
        for header in read(left.pop())[1]:
            if header not in seen:
                seen.add(header)
                left.append(header)
    return sorted(seen)


def stamp_name(source: Path, command: str, version: bytes) -> str:
    """Changes with whatever may change the findings in `source`."""
    digest = hashlib.sha256(version + command.encode())
    for path in [*(ROOT / rules for rules in RULES), *closure(source)]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main() -> int:
    """The command line: see scripts/lint.sh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tidy", help="the clang-tidy to run")
    parser.add_argument("build", type=Path, help="folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()

    database = json.loads((arguments.build / "compile_commands.json").read_text())
    version = subprocess.run([arguments.tidy, "--version"], capture_output=True, check=True).stdout
    stamps = arguments.build / "clean"
    stamps.mkdir(exist_ok=True)
    sources = {Path(entry["file"]): entry["command"] for entry in database}
    names = {
        source: stamp_name(source, command, version)
        for source, command in sources.items()
        if source.is_relative_to(ROOT) and not source.is_relative_to(arguments.build.resolve())
    }
    for old in stamps.iterdir():
        if old.name not in names.values():
            old.unlink()
    left = [source for source, name in names.items() if not (stamps / name).exists()]

    def check(source: Path) -> str:
        """The findings in `source`; empty if there are none."""
        # Some of the warning flags in the database are gcc's own.
        options = ["--quiet", f"-p={arguments.build}", "--extra-arg=-Wno-unknown-warning-option"]
        # std::stable_sort of gcc 12 calls a function that its own library has deprecated.
        options += ["--extra-arg=-Wno-deprecated-declarations"]
        ran = subprocess.run(
            [arguments.tidy, *options, str(source)], capture_output=True, text=True, check=False
        )
        if ran.returncode == 0:
            (stamps / names[source]).touch()
            return ""
        # stderr only counts what was suppressed, unless clang-tidy itself failed.
        return ran.stdout or ran.stderr or f"{source}: clang-tidy exits with {ran.returncode}\n"

    failed = 0
    shown: set[str] = set()  # a finding in a header comes with every source that includes it
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for findings in pool.map(check, left):
            failed += findings != ""
            if findings not in shown:
                print(findings, end="", flush=True)
            shown.add(findings)
    print(f"clang-tidy: {len(left)} of {len(names)} files checked, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
