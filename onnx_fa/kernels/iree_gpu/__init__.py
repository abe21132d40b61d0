"""Kernels for IREE's own GPU code generation.

In: an `AttentionSpec` and a GPU target. Out: tensor ops on tiles with the lowering configs of the VectorDistribute pipeline.
"""
