"""Kernels: one dispatch of MLIR for one site.

In: an `AttentionSpec` and a target. Out: a `Kernel` (MLIR text, compiler flags, tiles), or `UnsupportedError` with the reason.
"""
