#!/usr/bin/env bash
# Times single attentions: stock IREE (best flags), onnx_fa, onnxruntime and torch, in one run, interleaved.
# Writes benchmarks/attention.{csv,json,md,png}. An interrupted run goes on where it stopped.
# Usage: scripts/bench_attention.sh [--quick] [--case NAME ...] [--threads N] [--rounds N] [--out PREFIX] [--fresh]
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z "${VIRTUAL_ENV:-}" && -x .venv/bin/python ]]; then
  export PATH="$PWD/.venv/bin:$PATH"
fi
mkdir -p benchmarks
exec python -m onnx_fa.benchmark.attention "$@"
