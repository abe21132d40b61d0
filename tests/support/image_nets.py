"""Networks of convolutions, written step by step and drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx import helper as h

SINGLE: dict[str, dict[str, Any]] = {
    "Relu": {},
    "Sigmoid": {},
    "HardSwish": {},
    "LeakyRelu": {"alpha": 0.2},
    "Elu": {},
    "Neg": {},
    "Identity": {},
}


class Net:
    """A graph whose nodes are added one after the other. Values are names; `shapes` has theirs, of an image without the batch."""

    def __init__(self, *image: int, batch: int | str = "N", opset: int = 17, seed: int = 0) -> None:
        self.rng, self.opset, self.batch = np.random.default_rng(seed), opset, batch
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs = [h.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *image])]
        self.shapes: dict[str, tuple[int, ...]] = {"x": image}

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The name of a node's result, or the names of several."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op, inputs, names, f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, *shape: int) -> str:
        return self.const((self.rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.const(np.array(numbers, np.int64))

    def conv(
        self,
        x: str,
        channels: int,
        columns: int,
        kernel: int = 1,
        *,
        group: int = 1,
        bias: bool = True,
        **attributes: Any,
    ) -> str:
        """A Conv whose pads keep the size where its stride is 1."""
        w = self.weight(columns, channels // group, kernel, kernel)
        pads = attributes.pop("pads", [kernel // 2] * 4)
        return str(self.add("Conv", x, w, *[self.weight(columns)] * bias, group=group, pads=pads, **attributes))

    def silu(self, x: str) -> str:
        return str(self.add("Mul", x, self.add("Sigmoid", x)))

    def norm(self, x: str, channels: int) -> str:
        """A BatchNormalization as trained networks have it."""
        numbers = [self.weight(channels) for _ in range(3)]
        variance = self.const(self.rng.uniform(0.5, 2, channels).astype(np.float32))
        return str(self.add("BatchNormalization", x, *numbers, variance))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The model with the shapes of its values."""
        results = [h.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = h.make_graph(self.nodes, "g", self.inputs, results, self.weights)
        made = h.make_model(graph, opset_imports=[h.make_opsetid("", self.opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def bottleneck() -> onnx.ModelProto:
    """ResNet's block between its stem and its head."""
    n = Net(3, 31, 29)
    x = n.add(
        "MaxPool",
        n.add("Relu", n.conv("x", 3, 16, 7, strides=[2, 2])),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    )
    a = n.add("Relu", n.conv(x, 16, 24))
    a = n.add("Relu", n.conv(a, 24, 24, 3, strides=[2, 2]))
    a, b = n.conv(a, 24, 48), n.conv(x, 16, 48, strides=[2, 2])
    y = n.add("Relu", n.add("Add", a, b))
    return n.model(n.add("Flatten", n.add("GlobalAveragePool", y)))


def inverted_residual() -> onnx.ModelProto:
    """MobileNet's block with its gates of a whole image."""
    n = Net(16, 12, 10, opset=18)
    a = n.add("HardSwish", n.conv("x", 16, 40))
    a = n.add("HardSwish", n.conv(a, 40, 40, 5, group=40, strides=[2, 1]))
    gate = n.add("ReduceMean", a, n.ints(2, 3), keepdims=1)
    gate = n.add("HardSigmoid", n.conv(n.add("Relu", n.conv(gate, 40, 8)), 8, 40))
    a = n.conv(n.add("Mul", a, gate), 40, 24)
    b = n.conv(n.add("Clip", n.conv(a, 24, 24), n.const(np.float32(0)), n.const(np.float32(6))), 24, 24, bias=False)
    y = n.add("Add", n.add("PRelu", a, n.weight(24, 1, 1)), b)
    return n.model(n.add("ReduceMean", y, n.ints(-1, -2), keepdims=0))


def dense_block() -> onnx.ModelProto:
    """DenseNet's: norms in front of convolutions, and all that came before side by side."""
    n = Net(16, 14, 14)
    values, channels = ["x"], 16
    for _ in range(3):
        joined = n.add("Concat", *values, axis=1) if len(values) > 1 else "x"
        a = n.conv(n.add("Relu", n.norm(joined, channels)), channels, 32, bias=False)
        values.append(n.conv(n.add("Relu", n.norm(a, 32)), 32, 8, 3, bias=False))
        channels += 8
    a = n.conv(n.add("Concat", *values, axis=1), channels, 20)
    return n.model(n.add("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2]))


def stages() -> onnx.ModelProto:
    """YOLO's: halves of the channels, pools behind each other, and a smaller image made as large as another."""
    n = Net(8, 16, 24)
    a = n.silu(n.conv("x", 8, 32))
    low, high = n.add("Split", a, outputs=2, axis=1)
    b = n.add("Add", n.silu(n.conv(low, 16, 16, 3)), low)
    a = n.silu(n.conv(n.add("Concat", low, high, b, axis=1), 48, 32))
    small = n.silu(n.conv(a, 32, 24, 3, strides=[2, 2]))
    c = n.silu(n.conv(small, 24, 16))
    pools = [c]
    for _ in range(3):
        pools.append(n.add("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    c = n.silu(n.conv(n.add("Concat", *pools, axis=1), 64, 24))
    scales = n.const(np.array([1, 1, 2, 2], np.float32))
    large = n.add(
        "Resize", c, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
    kept = n.add("Slice", a, n.ints(-20), n.ints(1 << 40), n.ints(1), n.ints(1))
    y = n.silu(n.conv(n.add("Concat", large, kept, axis=-3), 44, 20))
    return n.model(y, small)


def with_tokens() -> onnx.ModelProto:
    """Rows of a transformer made an image and back, with channels last and with places in one row."""
    n = Net(10, 12, 24)
    rows = n.add("LayerNormalization", "x", n.weight(24), n.weight(24))
    a = n.conv(n.add("Transpose", rows, perm=[0, 3, 1, 2]), 24, 40)
    a = n.conv(n.add("Relu", n.conv(a, 40, 40, 3, group=40)), 40, 24)
    rows = n.add("Transpose", n.add("Reshape", a, n.ints(0, 24, 120)), perm=[0, 2, 1])
    rows = n.add("LayerNormalization", rows, n.weight(24), n.weight(24))
    a = n.conv(n.add("Reshape", n.add("Transpose", rows, perm=[0, 2, 1]), n.ints(0, 24, 10, 12)), 24, 16)
    a = n.add("Pad", n.conv(a, 16, 32), n.ints(0, 0, 1, 0, 0, 0, 0, 2), n.const(np.float32(0.5)))
    return n.model(n.add("Transpose", n.conv(a, 32, 16, 3, pads=[0, 1, 1, 0]), perm=[0, 2, 3, 1]))


def read_elsewhere() -> onnx.ModelProto:
    """Images that something else reads too: the outside, a body, and what needs no more than a shape."""
    n = Net(16, 9, 7, batch=2)
    a = n.add("Relu", n.conv("x", 16, 32))
    body = h.make_graph(
        [h.make_node("Neg", [a], ["negative"])], "yes", [], [h.make_tensor_value_info("negative", 1, None)]
    )
    other = h.make_graph(
        [h.make_node("Abs", [a], ["positive"])], "no", [], [h.make_tensor_value_info("positive", 1, None)]
    )
    chosen = n.add("If", n.const(np.array(True)), then_branch=body, else_branch=other)
    b = n.conv(a, 32, 24)
    c = n.add("InstanceNormalization", b, n.weight(24), n.weight(24))
    size = n.add("Cast", n.add("Slice", n.add("Shape", b), n.ints(1), n.ints(2)), to=TensorProto.FLOAT)
    y = n.conv(n.add("Div", n.add("Add", n.conv(b, 24, 24), c), size), 24, 16)
    return n.model(y, chosen, b)


def grouped() -> onnx.ModelProto:
    """ResNeXt's and RegNet's: groups of as many columns as vectors have lanes, and some that share a vector."""
    n = Net(16, 11, 13)
    a = n.add("Relu", n.conv("x", 16, 48))
    a = n.add("Relu", n.conv(a, 48, 48, 3, group=2, strides=[2, 2]))
    b = n.silu(n.conv(n.conv(a, 48, 32), 32, 32, 3, group=8))
    c = n.add("Relu", n.add("Add", n.conv(b, 32, 32, 1, group=2, bias=False), b))
    return n.model(n.conv(n.conv(c, 32, 40, 3, group=2), 40, 16))


NETS = {
    f.__name__: f for f in (bottleneck, inverted_residual, dense_block, stages, grouped, with_tokens, read_elsewhere)
}
