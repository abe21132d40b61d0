#!/usr/bin/env bash
# Times single attentions: stock IREE (best flags), onnx_fa, onnxruntime and torch SDPA, in one run.
# Writes benchmarks/attention.{csv,json,md,png}. Usage: scripts/bench_attention.sh [THREADS [ROUNDS]]
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z "${VIRTUAL_ENV:-}" && -x .venv/bin/python ]]; then
  export PATH="$PWD/.venv/bin:$PATH"
fi
mkdir -p benchmarks
exec python -m onnx_fa.benchmark "benchmarks/attention" "${1:-2}" "${2:-5}"
