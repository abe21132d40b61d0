"""Kernels for Vulkan and Metal, by IREE's conversion to SPIR-V.

In: an `AttentionSpec`. Out: code of one invocation, written out, which IREE's BaseLowering pipeline converts as it is.
"""
