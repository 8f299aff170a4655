"""What torchrun starts as each rank of a command: a module, whose exception reaches the command.

    python -m tidegate.cli.rank MODULE [ARGUMENT ..]

What ends a rank stands somewhere within the tracebacks of all ranks and torchrun's report of them;
a line that begins with FAILURE has it alone, for :func:`tidegate.cli.job.failure`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from tidegate.cli.job import FAILURE


def main(module: str) -> None:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        text = ": ".join(filter(None, (type(error).__name__, said.strip())))
        line = FAILURE + json.dumps([int(os.environ["RANK"]), text]) + "\n"
        os.write(2, line.encode())  # In one piece, for all ranks write to the same file.
        raise


if __name__ == "__main__":
    del sys.argv[0]
    main(sys.argv[0])
