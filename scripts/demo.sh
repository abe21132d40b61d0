#!/usr/bin/env bash
# Sets up, then does the main job on real exports of four models and prints what came out (see demo.py).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/python scripts/demo.py "$@"
