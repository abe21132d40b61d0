"""Measurements.

In: a model, or heads and lengths. Out: times of stock IREE, onnx_fa, onnxruntime and torch from one interleaved run, as CSV, PNG
and Markdown.
"""
