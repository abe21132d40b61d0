#!/usr/bin/env bash
# Sets up, then builds the documentation as a site in build/site; warnings (a dead link, an unknown name) are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export NO_MKDOCS_2_WARNING=1 # of mkdocs-material, which works with mkdocs 1
exec .venv/bin/python -m mkdocs build --quiet --strict "$@"
