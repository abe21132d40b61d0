"""Attention in integers: K and V kept as integers, rounded probabilities, onnxruntime's integer softmax.

In: a DequantizeLinear before an operand, or a pair of quantising ops around scores or probabilities. Out: the integer
tensor with its scales, or the rounding as a step of the match.
"""
