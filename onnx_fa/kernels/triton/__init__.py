"""Attention for CUDA as a generated Triton kernel: a spec becomes Triton source, that becomes PTX for several architectures, ahead
of time and without a GPU, and the PTX becomes executables of the IREE module."""

from onnx_fa.kernels.triton.module import emit_exactly, emit_triton, missing

__all__ = ["emit_exactly", "emit_triton", "missing"]
