#!/usr/bin/env bash
# Makes .venv (or takes the one there), with the package in editable form and all extras at the versions of constraints.txt.
# Does nothing when pyproject.toml and constraints.txt have not changed since. What is imported is compiled to bytecode when it is
# first imported: pip would compile all that it installs.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/.onnx_fa-setup
want=$(cat pyproject.toml constraints.txt | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
  exit 0
fi
echo "setting up .venv (first time: a few minutes)"
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[test]'
printf '%s\n' "$want" > "$stamp"
