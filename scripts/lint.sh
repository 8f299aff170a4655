#!/usr/bin/env bash
# The checks of style and types that no compiler makes.
. "$(dirname "$0")/common.sh"

scripts/build_tools.sh
linters=('ruff==0.17.*' 'mypy==2.4.*')
once linters "${linters[*]}" "linters: ${linters[*]}" "$VENV_PYTHON" -m pip install "${linters[@]}"

"$VENV_PYTHON" -m ruff check .
"$VENV_PYTHON" -m ruff format --check .
"$VENV_PYTHON" -m mypy
