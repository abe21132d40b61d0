"""Triton kernels: their numbers in Triton's interpreter, their PTX, and the modules that hold it (no GPU needed)."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnx_fa.benchmark.models import stock_import
from onnx_fa.cli.command import main
from onnx_fa.errors import TargetError, UnsupportedError
from onnx_fa.forms.plain import plain_model
from onnx_fa.forms.report import SiteReport
from onnx_fa.graph.site_op import DOMAIN, OP_TYPE
from onnx_fa.iree.alone import module_text
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.inspect import inspect_phases
from onnx_fa.iree.kernels import PlannedSite
from onnx_fa.kernels import triton
from onnx_fa.kernels.choose import emit_kernel, kernel_name
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.columns import columns_computed, parts_of
from onnx_fa.kernels.triton.config import TritonConfig, padded
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.overlapped import can_overlap
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.kernels.triton.specialised import can_specialise
from onnx_fa.kernels.triton.tiles import default_config, leaves_idle, smaller, splits, tf32_tiles, tuned
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, document, prefix
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import AddMask, Causal, Quantized, Rounding, SlidingWindow, Softcap, TensorArg
from tests.support.cases import BY_NAME, CASES
from tests.support.sampled import kinds_of, sampled

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")

INTERPRETED = (
    "cross dv_wider head_dim_24 head_dim_odd_dv head_dim_two_tiles_causal head_dim_two_tiles_decode many_split_keys "
    "odd_lengths_causal one_key scale_negative no_batch "
    "causal_end_empty_rows causal_finite_fill window_end window_empty_zero bool_mask_1 bool_mask_row add_mask_4 "
    "add_mask_f16 causal_then_add two_finite_fills softcap_window_gqa gqa_mask_per_head mqa_b1 empty_zero_padding "
    "empty_guarded_add empty_mean_causal bshd_gqa k_transposed_odd batch_5d_masks f16_causal_gqa f16_decode "
    "prefix_finite chunked document lengths_causal_finite positions_finite band lengths_added dilated alibi_gqa "
    "alibi_f16 alibi_both_sides_f16 alibi_past_f16 evoformer trigonometric softplus erf cap_after_mask signed_root "
    "powers rounding guarded_score tensor_i64_0 integers division several sink_1 sink_finite decode_gqa_lengths "
    "decode_alibi_gqa decode_sink_window few_window few_masks dyn_all dyn_gqa dyn_odd_head_dim dyn_decode_gqa "
    "dyn_lengths_rows dyn_document dyn_sink lse lse_alibi_f16 lse_max_causal lse_ragged_rows lse_decode_gqa lse_finite "
    "sum_causal sum_decode_gqa dyn_stats "
    "rounded_u8 rounded_saturated rounded_symmetric_gqa rounded_i16_odd rounded_sink_stats rounded_empty_rows "
    "rounded_mean rounded_steps rounded_f16 rounded_decode rounded_dynamic weighed_sigmoid_causal weighed_sigmoid_decode "
    "weighed_relu_per_key weighed_relu2_window weighed_relu2_guarded weighed_floored weighed_one_more "
    "weighed_softplus_by_sum weighed_f16 weighed_weights weighed_dynamic weighed_silu weighed_silu_causal "
    "weighed_silu_dynamic weighed_l1 weighed_l1_decode "
).split()
"""Cases of everything that a kernel computes, with K and V as numbers in the order of their keys."""
STORED = [
    c.name
    for c in CASES
    if c.tags.intersection(("quantized", "gathered", "wide", "head_dim")) or c.spec.quantized
    if (c.spec != c.spec.plain or max(c.spec.D, c.spec.Dv) > 256) and "bench" not in c.tags and c.spec.dtype != "bf16"
]
"""Cases of K and V kept as integers or gathered from pools, and of head dims of several tiles; NumPy knows no bf16."""


def _blocks(name: str) -> float:
    """How long the interpreter takes: blocks of keys, of all blocks of queries of all heads, and what each case takes besides."""
    specs = BY_NAME[name].bound()
    return 4 + sum(math.prod((*s.batch, s.Hq, -(-s.Sq // 32), -(-s.Skv // 32))) for s in specs)


def _in_parts(names: list[str], known: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Those of every run, and the others: the interpreter takes a second or two for each. `known`: cases that are tried too."""
    of_known = frozenset[str]().union(*(kinds_of(BY_NAME[name]) for name in known))
    kept = set(sampled([kinds_of(BY_NAME[name]) for name in names], None, of_known, costs=list(map(_blocks, names))))
    now = [names[i] for i in sorted(kept)]
    return now, [name for i, name in enumerate(names) if i not in kept]


COMPUTED_NOW, COMPUTED_WHOLE = _in_parts(INTERPRETED)
STORED_NOW, STORED_WHOLE = _in_parts(STORED, COMPUTED_NOW)


def half(name: str = "x", **changes: Any) -> AttentionSpec:
    return case(name, **{"dtype": "f16", "Sq": 256, "Skv": 256, "D": 64, "Dv": 64} | changes).spec


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*COMPUTED_NOW, *STORED_NOW], id="every_run"),
        pytest.param(COMPUTED_WHOLE, id="computed-others", marks=pytest.mark.whole),
        pytest.param(STORED_WHOLE, id="stored-others", marks=pytest.mark.whole),
    ],
)
def test_numbers(names: list[str], pytestconfig: pytest.Config) -> None:
    """The generated source, run in the interpreter, is within the tolerance of the float64 reference."""
    assert set(names) <= set(BY_NAME)
    part = [] if pytestconfig.getoption("whole") else ["--part"]
    command = [sys.executable, "-m", "tests.support.triton_interpreter", *part, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(names) and {n: p for n, p in found.items() if p} == {}


def test_every_case_has_source(pytestconfig: pytest.Config) -> None:
    """Cases are Python that parses, each fourth, of every kind, and all with --whole; what is refused is refused by name."""
    kept = range(len(CASES)) if pytestconfig.getoption("whole") else sampled([kinds_of(c) for c in CASES], 4)
    for item in (CASES[i] for i in kept):
        spec = fold_queries(item.spec)
        if "f64" in spec.operand_dtypes:
            continue
        for arch in (90, 80):
            config = default_config(spec, arch)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                compile(program_of(spec, config, "fa_0", arch).text, item.name, "exec")
        if can_overlap(spec):
            overlapped = program_of(spec, TritonConfig(64, 64, 4, 2, overlap=1), "fa_0", 90)
            compile(overlapped.text, item.name, "exec")
            assert "@gluon.jit" in overlapped.text
        if can_specialise(spec):
            specialised = program_of(spec, TritonConfig(128, 64, 4, 2, overlap=2), "fa_0", 90)
            compile(specialised.text, item.name, "exec")
            assert specialised.text.count("@gluon.jit") == 5
    for bad, reason in (
        (half(D=1040), "head dims above 1024"),
        (half(k_quant=Quantized("i4", ()), k_layout=(0, 1, 3, 2)), "i4 in bytes that hold two rows"),
        (half(v_quant=Quantized("u4", ()), Dv=33), "u4 in bytes that hold two rows"),
        (half(masks=(Causal(fill=float("inf")),)), "fills with inf"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            triton.emit_triton(bad, CUDA, "fa_0000000000")


def _causal_text(length: int, order: int) -> str:
    spec = half(Sq=length, Skv=length, masks=(Causal(),))
    return AttentionSource(spec, TritonConfig(64, 64, 4, 2, order=order), "f").program().text


def test_blocks() -> None:
    """Blocks that a mask leaves no key are not visited, those that it does not touch run without it."""
    plain = AttentionSource(half(), TritonConfig(64, 64, 4, 2), "f").program().text
    assert "tl.where" not in plain and plain.count("for ") == 1 and "mask=" not in plain
    causal = AttentionSource(half(masks=(Causal(),)), TritonConfig(64, 64, 4, 2), "f").program().text
    assert causal.count("for ") == 2 and causal.count("tl.where") == 1
    orders = [[_causal_text(n, order) for order in (0, 1)] for n in (64, 128)]
    assert orders[0][0] == orders[0][1] and orders[1][0] != orders[1][1]  # one block is the first in any order
    for mask in (prefix(100), document(2, 256)):
        text = AttentionSource(half(masks=(mask,)), TritonConfig(64, 64, 4, 2), "f").program().text
        loops = text.split("for ")
        assert len(loops) == 3 and "tl.where" not in loops[1] and "tl.where" in loops[2] and "full_first" in loops[0]
    again = AttentionSource(BY_NAME["prefix_finite"].spec, TritonConfig(64, 64, 4, 2), "f").program().text
    assert "again" in again


@pytest.fixture(scope="module")
def kernels() -> dict[str, Any]:
    bshd = (0, 2, 1, 3)
    layouts = {f"{x}_layout": bshd for x in "qkvo"}
    gqa = half(Hq=4, masks=(Causal(),), mods=(Softcap(20.0),), **layouts)
    dynamic = half(Sq="s", Skv="t", batch=("b",), dtype="bf16", masks=(SlidingWindow(64, 0, "end"),), empty_row="zero")
    decode = half(Sq=1, Skv=4096, Hq=8, sink=TensorArg((8, 1, 1), "f16"))
    small = TritonConfig(32, 32, 4, 1)
    given = {
        "overlapped": (gqa, TritonConfig(64, 64, 4, 2, overlap=1)),
        # Also with statistics, and with columns of two tiles.
        "specialised": (
            dataclasses.replace(gqa, D=80, Dv=96, stats=("lse", "max")),
            TritonConfig(128, 64, 4, 2, overlap=2),
        ),
        "persistent": (half(Hq=4, D=80, masks=(Causal(),)), TritonConfig(192, 64, 4, 2, order=2, overlap=3)),
        "dynamic": (dynamic, TritonConfig(64, 64, 4, 2)),
        "decode": (decode, None),
        "decode_dynamic": (dataclasses.replace(decode, batch=("b",), stats=("max",)), None),
        "rounded": (half(rounding=Rounding(1 / 255), dtype="f32", Sq=100, D=32, Dv=32, stats=("lse",)), small),
    }
    return {
        name: triton.emit_triton(spec, CUDA, f"fa_{i:010x}", config)
        for i, (name, (spec, config)) in enumerate(given.items())
    }


def code_of(kernel: Any) -> list[str]:
    return [bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', kernel.text)]


def test_ptx(kernels: dict[str, Any]) -> None:
    """Code for Hopper and for all from sm_80 on, with tensor cores, for drivers that are older than Triton."""
    hopper, ampere = code_of(kernels["overlapped"])
    assert ".target sm_90a" in hopper and "wgmma.mma_async" in hopper and "cp.async.bulk.tensor" in hopper
    assert ".target sm_80" in ampere and "mma.sync" in ampere and "cp.async" in ampere
    # Two groups of four warps that compute, with most registers; a warp that loads has a group of its own.
    warps, _ = code_of(kernels["specialised"])
    assert ".reqntid 384" in warps and "setmaxnreg.dec.sync.aligned.u32 \t24" in warps
    assert kernels["specialised"].text.count("workgroup_size = [384 : index") == 1
    # Of 80 columns of K and 96 of V, tiles of 64 and 16, of 64 and 32: no product has 128.
    assert {int(n) for n in re.findall(r"wgmma.mma_async.sync.aligned.m64n(\d+)k16", warps)} == {64, 32}
    for kernel in kernels.values():
        for code in code_of(kernel):
            assert f".version {ptx.PTX_VERSION}" in code and "onnx_fa-" not in code and ".loc" not in code
    # Bindings (with the device memory that descriptors need), then constants: what IREE passes, and nothing else.
    counts = {name: [len(re.findall(r"\.param \.u(\d+)", c)) for c in code_of(k)] for name, k in kernels.items()}
    assert counts == {
        "overlapped": [5, 4],
        "specialised": [7, 6],
        "persistent": [5, 4],
        "dynamic": [7, 7],
        "decode": [8, 8],
        "decode_dynamic": [7, 7, 5, 5],
        "rounded": [5, 5],
    }


def test_modules(kernels: dict[str, Any], tmp_path: Path) -> None:
    """One dispatch per site (two where the keys of an unknown number of heads are split), no buffer of scores; both codes and the
    choice are in the module, and counters that each call leaves as it found them, which are not copied."""
    for name, kernel in kernels.items():
        phases = tmp_path / name
        phases.mkdir()
        output = tmp_path / f"{name}.vmfb"
        dump = (f"--dump-compilation-phases-to={phases}", "--mlir-elide-elementsattrs-if-larger=64")
        iree_compile(module_text(kernel), output, CUDA, flags=dump, timeout_s=120)
        site = PlannedSite(SiteReport("site", "Softmax", "site", kernel.spec), ir.Node(DOMAIN, OP_TYPE, []), kernel)
        facts = inspect_phases(phases, [site]).by_kernel[kernel.name]
        assert facts.fused and facts.dispatches == (2 if name == "decode_dynamic" else 1), name
        if name == "decode":
            stream = next(phases.glob("*.stream.mlir")).read_text()
            assert "_count : !stream.resource<variable>" in stream and "stream.cmd.copy" not in stream
            assert facts.largest_buffer_bytes == 4 * 2 * 8 * kernel.config["splits"] * 64
        data = output.read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data and b"compute_capability_major" in data


def test_parts_are_combined_as_they_were_made() -> None:
    """Where bounds of scores are not used, parts have maxima, by which the dispatch that combines them corrects them."""
    spec = half(Sq=1, Skv=4096, Hq=8, D=16, Dv=16, dtype="bf16", batch=("b",), mods=(Softcap(20.0),))
    for off, corrects in ((frozenset[Switch](), False), (frozenset({Switch.MAXIMUM}), True)):
        combined = code_of(triton.emit_triton(spec, dataclasses.replace(CUDA, off=off), "fa_0000000000"))[2:]
        assert [("ex2.approx" in code) for code in combined] == [corrects, corrects]


HALVES = """<ir_version: 9, opset_import: ["" : 18]>
attention (float16[1,8,1,64] q, float16[1,8,4096,64] k, float16[1,8,4096,64] v) => (float16[1,8,1,64] out)
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  p = Softmax <axis = -1> (s)
  out = MatMul (p, v)
}"""
"""Decoding in f16."""


def test_stock_road(tmp_path: Path) -> None:
    """A transform spec imports no variables: the counters of split keys are zeros made in each call."""
    model, rewritten, spec = tmp_path / "m.onnx", tmp_path / "m.fa.onnx", tmp_path / "m.mlir"
    model.write_bytes(onnx.parser.parse_model(HALVES).SerializeToString())
    command = [sys.executable, "-m", "onnx_fa", "rewrite", model, "-o", rewritten, "--target", "cuda", "--spec", spec]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300).returncode == 0
    imported = stock_import(rewritten, tmp_path)
    flags = (f"--iree-preprocessing-transform-spec-filename={spec}",)
    iree_compile(imported, tmp_path / "m.stream", CUDA, flags=flags, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert text.count("stream.cmd.dispatch") == 1 and text.count("stream.cmd.fill") == 1


def test_whole_model(tmp_path: Path) -> None:
    """`--kernels auto` on CUDA is Triton's kernel, also one that keeps counters; what it refuses goes to IREE's."""
    (site,) = compile_model(onnx.parser.parse_model(HALVES), tmp_path / "m.vmfb", CUDA).sites
    assert site.fused and site.dispatches == 1 and site.tiles["splits"] > 1
    assert re.fullmatch(r"cuda-shapes-sm_90: around D64 8 heads Sq1 .*; sm_80: built in: .*", site.tuning)
    assert emit_kernel(half(), CUDA).body == "triton"
    assert emit_kernel(half(), dataclasses.replace(CUDA, kernels="iree")).body == "gpu"
    with pytest.raises(TargetError, match="for CUDA"):
        emit_kernel(half(), dataclasses.replace(parse_target("cpu-host"), kernels="triton"))


def test_tf32(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is asked for, f32 is one product of tf32 instead of three, and the report says so; halves stay as they are."""
    spec = half(dtype="f32", Sq=64, Skv=64, D=32, Dv=32)
    config = TritonConfig(64, 64, 4, 2)
    asked = parse_target("cuda", tf32=True)
    products = []
    for tf32 in (False, True):
        text = program_of(spec, config, "f", 80, tf32=tf32).text
        code = ptx.compile_program(program_of(spec, config, "f", 80, tf32=tf32), 80, 4, 2).text
        products.append(code.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"))
        assert text.count('input_precision="tf32"') == 2 * tf32
    assert products[0] == 3 * products[1] > 0
    wide, long = tf32_tiles(half(D=128, Dv=128)), tf32_tiles(half(Sq=4096, Skv=4096, Hq=32))
    assert wide and long and (wide[0].warps, long[0].BM) == (8, 128) and tf32_tiles(half(Sq=1)) is None
    assert program_of(half(), config, "f", 90, tf32=True) == program_of(half(), config, "f", 90)
    onnx.save(ir.to_proto(plain_model(spec)), tmp_path / "m.onnx")
    report = tmp_path / "r.json"
    command = ["import", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.mlir"), "--report", str(report)]
    for more, lossy in (([], ""), (["--tf32"], "tf32")):
        assert main([*command, "--target", "cuda", *more]) == 0
        assert [s["lossy"] for s in json.loads(report.read_text())["sites"]] == [lossy]
    assert "tf32 in 1 sites" in capsys.readouterr().err
    assert kernel_name(spec, asked) != kernel_name(spec, CUDA)
    for options, words in (
        (("--target", "cpu-host"), "the target cpu-host has none"),
        (("--target", "vulkan"), "the target vulkan has none"),
        (("--target", "cuda", "--kernels", "iree"), "IREE 3.13 has no tf32 instructions"),
    ):
        assert main([*command, "--tf32", *options]) == 2
        shown = capsys.readouterr().err
        assert words in shown and shown.count("\n") == 1 and "Traceback" not in shown


def test_workgroups_that_fill_a_gpu() -> None:
    """Under a mask of all scores, blocks of 128 queries are for as many heads as give half of a GPU's multiprocessors some. A free
    batch counts as one."""
    mask = (AddMask((1, 1, 512, 512), "f16"),)
    few, many = (half(Sq=512, Skv=512, Hq=n, Hkv=n, batch=(1,), masks=mask) for n in (12, 16))
    assert [tuned(spec, 90)[0].BM for spec in (few, many)] == [64, 128]
    plain = {"Sq": 512, "Hq": 12, "Hkv": 12, "batch": (1,)}
    changes: tuple[dict[str, Any], ...] = ({}, {"Sq": "s"}, {"batch": ("b",)}, {"batch": (2,)})
    assert [leaves_idle(half(**plain | change)) for change in changes] == [True, False, True, False]


def test_f32_products() -> None:
    """On Hopper f32 is six products of bf16 where its own instructions take the tiles; smaller tiles are three of tf32."""
    spec = half(dtype="f32", Sq=64, Skv=64)
    code = ptx.compile_program(program_of(spec, TritonConfig(64, 64, 4, 1), "f", 90), 90, 4, 1).text
    count = len(re.findall(r"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", code))
    assert count == 2 * 6 * 4 and "tf32" not in code
    assert "tf32x3" in program_of(spec, TritonConfig(32, 32, 4, 2), "f", 90).text


def test_a_few_queries_wait_for_nothing() -> None:
    """K's first copies start before Q has come."""
    spec, config = fold_queries(half(Sq=1, Skv=512)), TritonConfig(16, 64, 2, 3, splits=4)
    code = ptx.compile_program(program_of(spec, config, "f", 90), 90, 2, 3).text
    assert code.count("cp.async.cg") > 16 and "ld.global" not in code[: code.index("cp.async.cg")]


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "available", lambda: False)
    assert "pip install triton" in triton.missing(CUDA)
    assert emit_kernel(half(), CUDA).body == "gpu"
    for target in (parse_target("cuda", "triton"), parse_target("cuda", tf32=True)):
        with pytest.raises(TargetError, match="Triton is not installed"):
            emit_kernel(half(), target)


def test_a_crash_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    program = AttentionSource(half(), TritonConfig(64, 64, 4, 2), "f").program()
    with pytest.raises(UnsupportedError, match=r"does not compile the kernel for sm_80: .*NameError.*nothing"):
        ptx.compile_program(dataclasses.replace(program, text=program.text + "    nothing()\n"), 80, 4, 2)


def test_columns() -> None:
    """Tiles that are powers of two wide have the columns of a head, each once, and as few more as two tiles can."""
    for width in range(1, 321):
        (*first, last) = [part.stored for part in parts_of("od", width, together=1, single=False)]
        assert [c.first for c in (*first, last)] == [sum(x.many for x in first[:i]) for i in range(len(first) + 1)]
        assert sum(c.many for c in (*first, last)) == width and all(c.many == c.padded for c in first)
        assert sum(c.padded for c in (*first, last)) == columns_computed(width) <= padded(width)
        assert len({c.name for c in (*first, last)}) == len(first) + 1 <= 3
    assert [columns_computed(d) for d in (40, 64, 72, 80, 96, 112, 160, 192)] == [48, 64, 80, 80, 96, 128, 160, 192]
    assert len(parts_of("od", 96, together=1, single=True)) == 1


def test_tiles() -> None:
    """Measured tiles for Hopper; ever smaller ones where they do not fit; splits that fill a GPU, of 128 keys at the least."""
    assert splits(half()) == 1 and splits(half(Sq=1, Skv=4096, Hq=2, batch=(1,))) == 32
    assert splits(half(Sq=1, Skv=300, Hq=2)) == 2 and splits(half(Sq=1, Skv="t", Hq=2, batch=(32,))) == 2
    assert next(c for c in smaller(TritonConfig(128, 128, 4, 2, overlap=2)) if c.overlap == 1).BM == 64
    tried = list(smaller(TritonConfig(128, 128, 8, 4, overlap=1)))
    assert tried[1].overlap == 0 and tried[-1] == TritonConfig(16, 16, 4, 1)
    assert len(tried) == len(set(tried))
    for changes in (
        {},
        {"masks": (Causal(),)},
        {"D": 128, "Dv": 128},
        {"D": 96, "Dv": 96},
        {"masks": (AddMask((256, 256)),)},
    ):
        config, reason = tuned(half(**changes), 90)
        biased = "masks" in changes and changes["masks"] != (Causal(),)
        measured = "cuda-sm_90: triton f16" if biased else "cuda-shapes-sm_90: around D"
        assert config.BM >= 64 and reason.startswith(measured), reason
    for bad in ({"BM": 48}, {"BN": 8}, {"stages": 0}, {"splits": 129}):
        with pytest.raises(ValueError):
            TritonConfig(**{"BM": 64, "BN": 64, "warps": 4, "stages": 2} | bad)
