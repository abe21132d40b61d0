#!/usr/bin/env bash
# Sets up, then runs every check: ruff, the layers of imports, mypy --strict, all tests (arguments go to pytest).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/lavapipe.sh &
lavapipe=$!
bash scripts/setup.sh
wait "$lavapipe"
export PATH="$PWD/.venv/bin:$PATH" PYTHONUNBUFFERED=1
# Hundreds of processes load the package: each would compile it anew.
unset PYTHONDONTWRITEBYTECODE
# Each of the tests' processes imports all tests when it begins, in a fresh clone at the same time as the others: all of them would
# compile the same files to bytecode. One does, on the other core meanwhile.
said=$(mktemp)
typed='' imported=''
trap 'kill $typed $imported 2>/dev/null || true; rm -f "$said"' EXIT
if [ ! -d tests/__pycache__ ]; then
  python -m pytest -q -p no:xdist --collect-only tests >/dev/null 2>&1 &
  imported=$!
fi
ruff check .
ruff format --check .
python scripts/lint_imports.py
# mypy has one thread and takes a minute: the tests begin meanwhile.
mypy >"$said" 2>&1 &
typed=$!
# What cannot be collected is said below.
[ -z "$imported" ] || wait "$imported" || true
status=0
# Files keep the order of tests/conftest.py: the long ones first. One process more than cores: some wait now and then.
workers=$(python -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')
python -m pytest -q -n "$workers" --dist loadfile --no-loadscope-reorder "$@" || status=$?
wait "$typed" || status=1
cat "$said"
exit "$status"
