"""Kernels for llvm-cpu.

In: an `AttentionSpec` and the width of the vectors. Out: a dispatch written at the vector level, for many queries (`vector`) or
few (`few`).
"""
