"""Operators of ONNX by what they do to shapes."""

from __future__ import annotations

SAME = frozenset(
    "Identity Cast CastLike Softmax LogSoftmax LayerNormalization RMSNormalization SimplifiedLayerNormalization Neg Abs Sqrt Exp "
    "Reciprocal ScatterND ScatterElements TensorScatter Sign Round BatchNormalization InstanceNormalization GroupNormalization Elu "
    "Swish Log Erf Tanh Sigmoid Relu Gelu LeakyRelu Dropout IsNaN Not Clip Softplus HardSwish Floor Ceil Cos Sin CumSum Trilu "
    "QuantizeLinear DequantizeLinear RandomUniformLike RandomNormalLike Bernoulli Selu Celu Mish HardSigmoid ThresholdedRelu "
    "IsInf LpNormalization LRN Hardmax ReverseSequence Shrink Softsign Erfc DynamicQuantizeLinear EyeLike".split()
)
"""Of the first input and the first output. Erfc is no operator of ONNX: tf2onnx leaves TensorFlow's, which is elementwise, under
its name."""
MULTIPLIES = {"MatMul": 1, "MatMulInteger": 1, "QLinearMatMul": 3}
CONVOLVES = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Which input is the second factor, or the weights."""
BROADCASTS = frozenset(
    "Add Sub Mul Div Pow Where And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Max Min Mod PRelu".split()
)
REDUCE = frozenset(
    "ReduceMax ReduceSum ReduceMin ReduceMean ReduceProd ReduceLogSumExp ReduceSumSquare ReduceL2".split()
)
