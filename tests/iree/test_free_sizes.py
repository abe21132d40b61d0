"""What IREE refuses or computes wrongly where sizes are free: the same results in onnxruntime as written out, and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

SHUFFLES = """<ir_version: 9, opset_import: ["": 18]>
shuffles (float[N, 12, H, W] x, float[2, 18, 2, 4] y) => (float[N, 3, P, Q] a, float[2, 2, 6, 12] b, float[N, 3, P, Q] c) {
  a = DepthToSpace<blocksize = 2, mode = "CRD">(x)
  b = DepthToSpace<blocksize = 3, mode = "CRD">(y)
  c = DepthToSpace<blocksize = 2, mode = "DCR">(x)
}"""
NORMS = """<ir_version: 10, opset_import: ["": 21]>
norms (float[N, 6, T] x, float[N, 6, H, W] y, float[6] s, float[6] b) => (float[N, 6, T] a, float[N, 6, H, W] c, float[N, 6, T] d) {
  a = InstanceNormalization<epsilon = 0.001>(x, s, b)
  c = InstanceNormalization(y, s, b)
  d = Softsign(x)
}"""
EXPANDS = """<ir_version: 9, opset_import: ["": 18]>
expands (float[M, K] x, float[2, M, K] y, int64[1] n, int64[2] s, int64[3] t)
    => (float[P, Q] a, float[2, M, R] b, float[U, V, Z] c) {
  a = Expand(x, s)
  b = Expand(y, n)
  c = Expand(x, t)
}"""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_instance_normalization(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NORMS)
    compile_model(model, tmp_path / "a.vmfb")
    module = load_module(tmp_path / "a.vmfb")
    for n, t, h, w in ((2, 37, 5, 3), (1, 1, 16, 16), (3, 400, 1, 1)):
        inputs = {"x": normal(n, 6, t), "y": normal(n, 6, h, w), "s": normal(6), "b": normal(6)}
        for got, want in zip(module(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_allclose(
                got, want, rtol=1e-5, atol=1e-4
            )  # one element is 0 / sqrt(epsilon), up to rounding


def test_pixel_shuffle(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SHUFFLES)
    compile_model(model, tmp_path / "a.vmfb")
    inputs = {"x": normal(2, 12, 3, 5), "y": normal(2, 18, 2, 4)}
    for got, want in zip(load_module(tmp_path / "a.vmfb")(*inputs.values()), run(model, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ModelError, match="static number of channels"):
        import_model(onnx.parser.parse_model(SHUFFLES.replace("[N, 12,", "[N, C,").replace("[N, 3,", "[N, D,")))


def test_known_sizes_stay_one_node() -> None:
    model = onnx.parser.parse_model(NORMS.replace("T]", "37]").replace("H, W", "5, 5"))
    infer_types(model, {})
    assert [n.op_type for n in legalize(model).graph.node].count("InstanceNormalization") == 2


def test_expand(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(EXPANDS)
    compile_model(model, tmp_path / "a.vmfb")
    module = load_module(tmp_path / "a.vmfb")
    for (m, k), n, s, t in (
        ((1, 1), 4, (3, 4), (2, 3, 4)),
        ((3, 1), 1, (1, 5), (1, 3, 1)),
        ((3, 5), 5, (1, 1), (2, 1, 5)),
        ((1, 5), 1, (0, 1), (1, 0, 5)),
    ):
        x = normal(m, k)
        inputs = {"x": x, "y": normal(2, m, k), "n": np.array([n]), "s": np.array(s), "t": np.array(t)}
        for got, want in zip(module(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("coordinates", "nearest"), [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "ceil")]
)
@pytest.mark.parametrize("scales", ["1, 1, 2, 3", "1, 1, 1, 4", "1, 1, 1.5, 2"])
def test_resize(coordinates: str, nearest: str, scales: str) -> None:
    """Repeated rows are gathered, others stay; both as onnxruntime has them."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
g (float[N, 2, H, W] x) => (float[N, 2, P, Q] y) <float[4] s = {{{scales}}}> {{
  y = Resize<mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}">(x, , s)
}}""")
    infer_types(model, {})
    written = legalize(model)
    assert ("Resize" in {n.op_type for n in written.graph.node}) == (nearest == "ceil" or "1.5" in scales)
    for h, w in ((5, 3), (1, 8)):
        np.testing.assert_array_equal(
            run(written, {"x": normal(2, 2, h, w)})[0], run(model, {"x": normal(2, 2, h, w)})[0]
        )


@pytest.mark.parametrize(
    ("shape", "asked", "marked"),
    [
        ("float[1, K] x", "int64[2] s = {3, 1}", False),  # sizes of 1 are known, and a 1 asks for nothing
        ("float[1, K] x", "int64[2] s = {3, 4}", True),
        ("float[2, K] x", "int64[2] s = {2, 1}", False),
    ],
)
def test_what_needs_no_rows_keeps_its_expand(shape: str, asked: str, marked: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({shape}) => (float[P, Q] y) <{asked}> {{ y = Expand(x, s) }}'
    written = import_model(onnx.parser.parse_model(text)).text
    assert ("onnx.Range" in written) == marked


PLACES = """<ir_version: 9, opset_import: ["": 18]>
places (float[N, T] x) => (int64[N] a, int64[1, T] b, int64[N, 1] c) {
  a = ArgMax<axis = -1, keepdims = 0, select_last_index = 1>(x)
  b = ArgMin<axis = 0, select_last_index = 1>(x)
  c = ArgMax<axis = 1, select_last_index = 0>(x)
}"""
CROPS = """<ir_version: 9, opset_import: ["": 18]>
crops (float[C, H, W] x) => (float[3, 4, 9] y) <int64[3] size = {3, 4, 9}> { y = CenterCropPad(x, size) }"""


def test_last_places(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(PLACES)
    compile_model(model, tmp_path / "a.vmfb")
    module = load_module(str(tmp_path / "a.vmfb"))
    for n, t in ((3, 5), (1, 1), (4, 16)):
        x = np.random.default_rng(n).integers(0, 2, (n, t)).astype(np.float32)
        for got, want in zip(module(x), run(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, want)


def test_function_bodies_are_written_for_iree_too(tmp_path: Path) -> None:
    """The body of a CenterCropPad has Pads by fewer than none, which IREE does not take."""
    model = onnx.parser.parse_model(CROPS)
    compile_model(model, tmp_path / "a.vmfb")
    for shape in ((3, 4, 9), (5, 7, 4), (2, 4, 12)):
        x = normal(*shape)
        np.testing.assert_array_equal(load_module(tmp_path / "a.vmfb")(x)[0], run(model, {"x": x})[0])


def test_a_last_window_behind_the_input_is_refused() -> None:
    """Of sizes that are free; ONNX leaves it out, which IREE would not."""
    pool = "AveragePool<kernel_shape = [3], strides = [3], pads = [1, 1], ceil_mode = 1, count_include_pad = 1>"
    text = '<ir_version: 9, opset_import: ["": 19]> g (float[1, 2, T] x) => (float[1, 2, U] y) { y = ' + pool + "(x) }"
    with pytest.raises(ModelError, match=r"AveragePool with ceil_mode over a free size.*\(--dim\)"):
        import_model(onnx.parser.parse_model(text))
    import_model(
        onnx.parser.parse_model(
            text.replace("strides = [3]", "strides = [2]").replace("pads = [1, 1]", "pads = [0, 0]")
        )
    )


def test_an_attention_of_free_width_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[B, S, W] q, float[B, S, W] k, float[B, S, W] v) => (float[B, S, W] y) {
      y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)
    }"""
    with pytest.raises(ModelError, match="have a width that is not static"):
        import_model(onnx.parser.parse_model(text))


NUMBERS = """<ir_version: 9, opset_import: ["": 18]>
numbers (float[A, B, C] x, float[N, 6] y) => (float[4, 2, 3] a, float[2, 3, 4] b) <int64[3] s = {4, 2, 3}, int64[3] t = {2, 3, 4}> {
  a = Reshape(x, s)
  b = Reshape(y, t)
}"""
STEPS = """<ir_version: 9, opset_import: ["": 18]>
steps (float s, float[T] x) => (float last, float[T] sums) {
  last, sums = Scan<num_scan_inputs = 1, body = step (float s0, float x0) => (float s1, float s2) {
    s1 = Add(s0, x0)
    s2 = Identity(s1)
  }>(s, x)
}"""


def test_reshapes_to_numbers(tmp_path: Path) -> None:
    """Whatever the free dims of the input are that have as many elements."""
    model = onnx.parser.parse_model(NUMBERS)
    compile_model(model, tmp_path / "a.vmfb")
    for shape in ((2, 3, 4), (4, 2, 3), (1, 24, 1)):
        inputs = {"x": normal(*shape), "y": normal(4, 6)}
        for got, want in zip(load_module(tmp_path / "a.vmfb")(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_scan_of_free_steps(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(STEPS)
    compile_model(model, tmp_path / "a.vmfb")
    call = load_module(tmp_path / "a.vmfb")
    for shape in ((3,), (1,), (17,)):
        inputs = {"s": normal(), "x": normal(*shape)}
        for got, want in zip(call(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


REFLECTED = """<ir_version: 9, opset_import: ["": 18]>
reflected (float[N, 2, H, W] x) => (float[N, 2, P, Q] y) <int64[8] pads = {0, 0, 1, 2, 0, 0, 2, 1}> {
  y = Pad<mode = "reflect">(x, pads)
}"""
GRAMS = """<ir_version: 9, opset_import: ["": 18]>
grams (int32[T] x) => (float[3] y) {
  y = TfIdfVectorizer<max_gram_length = 2, max_skip_count = 0, min_gram_length = 2, mode = "TF", ngram_counts = [0, 0],
    ngram_indexes = [0, 1, 2], pool_int64s = [5, 6, 7, 8, 6, 7]>(x)
}"""


def test_reflections_along_two_free_axes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(REFLECTED)
    compile_model(model, tmp_path / "a.vmfb")
    for h, w in ((5, 6), (3, 17)):
        x = normal(2, 2, h, w)
        np.testing.assert_array_equal(load_module(tmp_path / "a.vmfb")(x)[0], run(model, {"x": x})[0])


def test_n_grams_of_free_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="TfIdfVectorizer over a size that is not static"):
        import_model(onnx.parser.parse_model(GRAMS))
    import_model(onnx.parser.parse_model(GRAMS.replace("int32[T]", "int32[6]")))


@pytest.mark.parametrize("opset", [17, 18])
def test_places_of_integers_for_gpus(opset: int) -> None:
    """Where CLIP's text ends, which the compiler refuses for CUDA: equal in onnxruntime."""
    text = (
        f'<ir_version: 9, opset_import: ["": {opset}]>'
        + """
    g (int64[N, T] x) => (int64[N, 1] a, int64[N] b, int64[1, T] c, int64[T] d) {
      a = ArgMax<axis = 1, select_last_index = 1>(x)
      b = ArgMax<axis = -1, keepdims = 0>(x)
      c = ArgMin<axis = 0>(x)
      d = ArgMin<axis = 0, keepdims = 0, select_last_index = 1>(x)
    }"""
    )
    model = onnx.parser.parse_model(text)
    infer_types(model, {})
    legal = legalize(model, target=parse_target("cuda"))
    assert not {op_of(n) for n in legal.graph.node} & {"ArgMax", "ArgMin"}
    for n, t in ((3, 7), (1, 1), (5, 2)):
        inputs = {"x": np.random.default_rng(n).integers(0, 3, (n, t))}
        for got, want in zip(run(legal, inputs), run(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("kind", "cast", "target"), [("float", "", "cuda"), ("float16", "c = Cast<to=1>(x)", "cpu-host")]
)
def test_places_among_floats(kind: str, cast: str, target: str) -> None:
    """As onnxruntime compares: with the best so far, beginning with the first, which a NaN stays. For GPUs, and of what a Cast made
    wider."""
    x = "c" if cast else "x"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g ({kind}[N, T] x) => (int64[N] a, int64[1, T] b, int64[N, 1] c1, int64[T] d) {{
          {cast}
          a = ArgMax<axis = -1, keepdims = 0>({x})
          b = ArgMin<axis = 0>({x})
          c1 = ArgMin<axis = 1, select_last_index = 1>({x})
          d = ArgMax<axis = 0, keepdims = 0, select_last_index = 1>({x})
        }}"""
    )
    infer_types(model, {})
    legal = legalize(model, target=parse_target(target))
    assert not {op_of(n) for n in legal.graph.node} & {"ArgMax", "ArgMin"}
    rng = np.random.default_rng(0)
    for shape in ((3, 7), (1, 1), (40, 33)):
        numbers = rng.integers(-3, 4, shape).astype(np.float32)
        for odd, part in ((np.nan, 0.3), (-np.inf, 0.1), (np.inf, 0.1)):
            numbers[rng.random(shape) < part] = odd
        numbers[0] = -np.inf
        inputs = {"x": numbers.astype(np.float16 if kind == "float16" else np.float32)}
        for got, want in zip(run(legal, inputs), run(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)
