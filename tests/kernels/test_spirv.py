"""Kernels for Vulkan and Metal: their text, what they refuse, what the compiler makes of them, and their numbers on lavapipe."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import plain_model
from onnx_fa.iree.alone import entry_text
from onnx_fa.iree.compile import compile_model
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.spirv.spirv import emit_spirv
from onnx_fa.spec.cases import packed
from onnx_fa.spec.expr import SCORE, SKV, Apply, Float, K, Q, Tensor
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import (
    AddMask,
    BoolMask,
    Causal,
    Elementwise,
    Gathered,
    Quantized,
    Rounding,
    SlidingWindow,
    Softcap,
    TensorArg,
    Weighting,
)
from tests.support.cases import BY_NAME, FLOAT_MIN, Case, case, draw_operands
from tests.support.kernel_harness import asked_for, mismatch, run_iree_compile
from tests.support.lavapipe import require_lavapipe, run_on_lavapipe

VULKAN, METAL = parse_target("vulkan"), parse_target("metal")


def tiny(name: str, **changes: object) -> Case:
    base: dict[str, object] = {"batch": (2,), "Hq": 2, "Sq": 37, "Skv": 42, "D": 8, "Dv": 8, "scale": 0.4}
    return case(name, **base | changes)


_SIZES = {"Sq": "s", "Skv": "t", "batch": ("b",)}
CASES = [
    tiny("plain"),
    tiny("f16", dtype="f16", masks=(Causal(),), Skv=37),
    tiny("causal_gqa", Hq=4, masks=(Causal("end"),), Dv=12),
    tiny("causal_empty", masks=(Causal(-3),), empty_row="zero"),
    tiny("causal_nan", masks=(Causal(-3),)),
    tiny("causal_mean", masks=(Causal(-3, FLOAT_MIN),), empty_row="mean"),
    tiny("window_cap", masks=(SlidingWindow(9, 4),), mods=(Softcap(3.0),)),
    tiny("padding", masks=(BoolMask((2, 1, 1, 42)),), empty_row="guarded"),
    tiny("added", masks=(AddMask((2, 37, 42)),), sink=TensorArg((2, 1, 1))),
    tiny(
        "lengths",
        masks=(
            Elementwise(
                Apply("Where", Apply("Less", K, Tensor(0)), SCORE, Float(-np.inf)), (TensorArg((2, 1, 1, 1), "i64"),)
            ),
        ),
    ),
    tiny(
        "alibi",
        masks=(
            Elementwise(
                Apply("Add", SCORE, Apply("Mul", Tensor(0), Apply("ToFloat", Apply("Sub", K, Q)))),
                (TensorArg((2, 1, 1)),),
            ),
        ),
    ),
    tiny("dims_odd", D=5, Dv=3, scale=1.5),
    tiny("layouts", k_layout=(0, 1, 3, 2), q_layout=(0, 2, 1, 3), o_layout=(0, 2, 1, 3)),
    tiny("decode", Sq=1, Hq=8, Skv=131, masks=(BoolMask((2, 1, 1, 131)),)),
    tiny("decode_f16", dtype="f16", Sq=1, Hq=8, Skv=131, Dv=16, sink=TensorArg((8, 1, 1))),
    tiny("few_causal", Sq=5, Skv=70, masks=(Causal("end"),)),
    tiny("sigmoid", weighting=Weighting(Apply("Sigmoid", SCORE)), masks=(Causal(),)),
    tiny(
        "dynamic",
        **_SIZES,
        masks=(Causal("end"),),
        empty_row="zero",
        sizes=((("s", 3), ("t", 70), ("b", 2)), (("s", 66), ("t", 5), ("b", 1))),
    ),
    tiny("dynamic_decode", Sq=1, Hq=4, Skv="t", sizes=((("t", 1),), (("t", 77),))),
]


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases that are tried as one module."""
    require_lavapipe()
    output = tmp_path_factory.mktemp("spirv") / "cases.vmfb"
    tried = asked_for(request, "item", CASES[:1]) or CASES
    kernels = [emit_spirv(c.spec, VULKAN, f"fa_{c.name}") for c in tried]
    text = "".join(k.text for k in kernels) + "".join(entry_text(k, f"call_{k.name}") for k in kernels)
    run_iree_compile(text, output, ("--mlir-disable-threading",), VULKAN)
    return output


@pytest.mark.parametrize("item", CASES, ids=[c.name for c in CASES])
def test_numbers_on_lavapipe(item: Case, module: Path, tmp_path: Path) -> None:
    for seed, sizes in enumerate(item.sizes or ((),)):
        spec = item.spec.bind(dict(sizes))
        operands = draw_operands(spec, seed, adversarial=bool(seed % 2 == 0))
        inputs = [np.ascontiguousarray(packed(x)) for x in operands]
        found = run_on_lavapipe(module, f"call_fa_{item.name}", inputs, 1, tmp_path)
        assert mismatch(spec, operands, found) is None


def test_nan_and_infinities_on_lavapipe(module: Path, tmp_path: Path) -> None:
    spec = next(c.spec for c in CASES if c.name == "plain")
    q, k, v = draw_operands(spec, 3)
    q[0, 0, 5, 2], k[1, 1, 7, 3], v[1, 0, 3, 4] = np.nan, np.inf, -np.inf
    found = run_on_lavapipe(module, "call_fa_plain", [q, k, v], 1, tmp_path)
    assert np.isnan(found[0][0, 0, 5]).all() and not np.isnan(found[0][0, 0, 4]).any()
    assert np.isneginf(found[0][1, 0, :, 4]).all()
    assert mismatch(spec, [q, k, v], found) is None


def test_one_dispatch_of_one_loop() -> None:
    """The text: one executable that is dispatched once, the recurrence in registers, no tensor of scores."""
    kernel = emit_spirv(tiny("x", Sq=64, Skv=96).spec, VULKAN, "fa_0")
    assert kernel.body == "spirv" and kernel.text.count("flow.executable private") == 1
    assert kernel.text.count("flow.dispatch @") == 1 and kernel.text.count("scf.for") == 1
    carried = re.search(r"scf\.for .* iter_args\(.*\) -> \((.*)\) \{", kernel.text)
    assert carried and carried[1] == "vector<4xf32>, vector<4xf32>, f32, f32"
    assert "spirv_pipeline<BaseLowering> workgroup_size = [64, 1, 1]" in kernel.text
    assert "64x96" not in kernel.text and "memref.alloc" not in kernel.text and "gpu.barrier" not in kernel.text


def test_masked_keys_are_left_out() -> None:
    masks = (Causal(),)
    kernel = emit_spirv(tiny("x", Sq=128, Skv=128, masks=masks).spec, VULKAN, "fa_0")
    limit = re.search(r"(%\w+) = arith\.maxsi (%\w+), %c\d+ : index\n", kernel.text)
    assert kernel.config["skips"] == 1 and limit and f"to {limit[1]} step" in kernel.text
    finite = emit_spirv(
        tiny("x", Sq=128, Skv=128, masks=(Causal(-3, FLOAT_MIN),), empty_row="mean").spec, VULKAN, "fa_0"
    )
    assert finite.text.count("scf.for") == 2  # the second one is for rows that see nothing else
    shared = emit_spirv(tiny("x", Sq=8, Skv=128, masks=(Causal(-3, FLOAT_MIN),), empty_row="mean").spec, VULKAN, "fa_0")
    assert shared.config["skips"] == 0


def test_lanes_share_the_keys_of_few_queries() -> None:
    kernel = emit_spirv(tiny("x", Sq=1, Hq=8).spec, VULKAN, "fa_0")
    assert (kernel.config["rows"], kernel.config["lanes"]) == (4, 16)
    assert "#gpu.address_space<workgroup>" in kernel.text and "gpu.barrier" in kernel.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"D": 264}, "head dims above 256"),
        ({"Dv": 264}, "head dims above 256"),
        ({"dtype": "bf16"}, "bf16"),
        ({"masks": (AddMask((42,), "bf16"),)}, "bf16"),
        ({"stats": ("lse",)}, "row statistics"),
        ({"rounding": Rounding(1 / 255)}, "rounded"),
        ({"weights": TensorArg((37, 42))}, "multiplied by a tensor"),
        ({"k_quant": Quantized("i8", (), False)}, "kept as integers"),
        ({"gathered": Gathered(64, "i64")}, "gathered"),
        ({"batch": (4096,), "Hq": 32}, "65535 workgroups"),
    ],
)
def test_refused_with_a_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        emit_kernel(tiny("x", **changes).spec, VULKAN)


def test_other_targets_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="cuda takes no SPIR-V"):
        emit_spirv(tiny("x").spec, parse_target("cuda"), "fa_0")


@pytest.mark.parametrize("target", ["vulkan", "metal"])
def test_a_model_has_one_dispatch_per_site(target: str, tmp_path: Path) -> None:
    spec = tiny("x", Sq=70, Skv=70, masks=(Causal(),)).spec
    report = compile_model(ir.to_proto(plain_model(spec)), tmp_path / "m.vmfb", target)
    (site,) = report.sites
    assert site.fused and site.dispatches == 1 and not report.misses and not report.inspection.buffers
    assert site.tiles is not None and site.tiles["body"] == "spirv"


def test_metal_text(tmp_path: Path) -> None:
    """Metal's own language, which needs no Apple machine: one kernel, and nothing in memory beside operands and result."""
    kernel = emit_spirv(tiny("x", Sq=70, Skv=90, dtype="f16", masks=(Causal(),)).spec, METAL, "fa_0")
    flags = (f"--iree-hal-dump-executable-binaries-to={tmp_path}",)
    run_iree_compile(kernel.text + entry_text(kernel, "site"), tmp_path / "k.vmfb", flags, METAL)
    (source,) = tmp_path.glob("*.metal")
    text = source.read_text()
    assert text.count("kernel void") == 1 and text.count("_resource_var_0_") >= 4
    assert "threadgroup " not in text and "half4" in text


def test_names_of_sizes_do_not_matter() -> None:
    spec = BY_NAME["dyn_lengths"].spec
    assert emit_spirv(spec, VULKAN, "fa_0").text.count("tensor.dim") == len(spec.symbols)


def test_expressions_read_lengths() -> None:
    keep = Apply("GreaterOrEqual", K, Apply("Sub", SKV, Apply("Add", Q, Q)))
    spec = tiny("x", Skv="t", masks=(Elementwise(Apply("Where", keep, SCORE, Float(-1e9))),)).spec
    assert "arith.index_cast %dim0 : index to i32" in emit_spirv(dataclasses.replace(spec), VULKAN, "fa_0").text
