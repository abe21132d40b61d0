"""Ops that are a whole attention: ONNX Attention, onnxruntime's, FlexAttention, and the Loop that `blocked` writes.

In: such a node. Out: a match without a walk: its operands, its terms and what stands for each of its outputs. Where an option
has no equal term, NoMatch says which.
"""
