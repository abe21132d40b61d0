"""ONNX models in memory.

In: a file, an `onnx.ModelProto` or an `onnx_ir.Model`. Out: a checked `onnx_ir.Model` with shapes, questions about its graph
(`view`), new nodes (`builder`), and a file again.
"""
