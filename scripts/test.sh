#!/usr/bin/env bash
# Sets up, then runs every check: ruff, mypy --strict, all tests (arguments go to pytest).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" PYTHONUNBUFFERED=1
# Hundreds of processes load the package: each would compile it anew.
unset PYTHONDONTWRITEBYTECODE
ruff check .
ruff format --check .
mypy
python -m pytest -q -n auto --dist loadfile "$@"
