"""ONNX for IREE.

In: a model. Out: the same model without what IREE refuses, computes wrongly or makes slow code of.
"""
