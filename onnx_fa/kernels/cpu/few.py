"""Attention of a few queries for llvm-cpu (see few_kernel.py): what it carries, its tiles."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.body import few_body
from onnx_fa.kernels.cpu.combine import splits_of
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.tiles import MOST_QUERIES, FewConfig
from onnx_fa.kernels.cpu.vector import FLAGS, STACK_BYTES, check_vector, dispatch_text, shown
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.plan.score import window
from onnx_fa.kernels.tiles.database import Pick, Tiles, pick
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, IndexMask


def few_queries(spec: AttentionSpec, *, merge: bool = True) -> int:
    """How many queries each key/value head has, those of all query heads that share it. Raises UnsupportedError where they are
    too many, or where an operand is stored head dim first. `merge` as in fold_queries: without, those of each query head."""
    folded = fold_queries(spec, merge=merge)
    if not isinstance(folded.Sq, int) or folded.Sq > MOST_QUERIES:
        raise UnsupportedError(f"few kernel: {folded.Sq} queries per key/value head, more than {MOST_QUERIES}")
    check_rows_lie_whole(folded, "few")
    return folded.Sq


def check_rows_lie_whole(folded: AttentionSpec, body: str) -> None:
    """Raises UnsupportedError, naming the body, where an operand or the output is stored head dim first."""
    length, width = folded.rank - 2, folded.rank - 1
    for name, layout in zip("qkvo", (folded.q_layout, folded.k_layout, folded.v_layout, folded.o_layout), strict=True):
        if layout.index(width) < layout.index(length):
            raise UnsupportedError(f"{body} kernel: {name} has its head dim before its length")


def check_integers(operands: Operands, spec: AttentionSpec, body: str) -> None:
    """Raises UnsupportedError, naming the body, where K or V are integers that do not fill its vectors."""
    for integers, width in ((operands.k_integers, spec.D), (operands.v_integers, spec.Dv)):
        if integers is not None and not integers.in_vectors(width):
            lanes = operands.config.lanes
            raise UnsupportedError(
                f"{body} kernel: {lanes} lanes do not fit {width} head dims of integers, or a scale's groups"
            )


def few_config(tiles: Tiles, queries: int) -> FewConfig:
    """The database's tiles for so many queries: it leaves out what follows from these and from the lanes."""
    return FewConfig(tiles["lanes"], queries, tiles["BK"], tiles["lanes"], tiles["tile_dims"], tiles["unroll"])


def few_stack_bytes(spec: AttentionSpec, config: FewConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    return 4 * config.BM * (spec.D + spec.Dv + 2 * config.lanes + config.BK)


def _keys_read(spec: AttentionSpec, block: int) -> float:
    """How many keys a window reads, whose first block begins at a multiple of `block`; 1 without a window."""
    sides = [window(m) for m in spec.masks if isinstance(m, IndexMask)]
    lefts, rights = ([x for x in side if x is not None] for side in zip(*sides, strict=True)) if sides else ([], [])
    return min(lefts) + min(rights) + 1 + block / 2 if lefts and rights else 1.0


def tuned_few(spec: AttentionSpec, target: Target) -> tuple[FewConfig, Pick]:
    """Measured tiles for the target. Raises UnsupportedError where none fit."""
    queries, lanes = few_queries(spec, merge=target.has(Switch.FOLDING)), _lanes(spec, target)

    def fits(t: Tiles) -> bool:
        return t["lanes"] == lanes and few_stack_bytes(spec, few_config(t, queries)) <= STACK_BYTES

    found = pick(target, "few", spec, fits, lambda t: _keys_read(spec, t["BK"]))
    if found is None:
        raise UnsupportedError(f"few kernel: no tiles of {lanes} lanes that fit {STACK_BYTES} bytes of stack")
    return few_config(found.choice.tiles, queries), found


def _lanes(spec: AttentionSpec, target: Target) -> int:
    """The width of vectors: those of head dims."""
    return target.lanes_within(spec.D, spec.Dv)


def unmeasured(spec: AttentionSpec, target: Target, queries: int) -> FewConfig:
    """Tiles by a rule alone, as the search for tiles begins with."""
    lanes = _lanes(spec, target)
    return few_config({"lanes": lanes, "BK": 64, "tile_dims": 8, "unroll": 8}, queries)


def emit_few(
    spec: AttentionSpec, target: Target, name: str, config: FewConfig | None = None, splits: Dim | None = None
) -> Kernel:
    """The kernel of one site with few queries; `splits` as in emit_vector. Raises UnsupportedError where spec or tiles do not
    fit."""
    check_vector(spec, target)
    merge = target.has(Switch.FOLDING)
    queries, found = few_queries(spec, merge=merge), None
    if config is None and not target.has(Switch.TILES):
        config = unmeasured(spec, target, queries)
    elif config is None:
        config, found = tuned_few(spec, target)
    if queries != config.BM or few_stack_bytes(spec, config) > STACK_BYTES:
        raise UnsupportedError(f"few kernel: tiles {config} do not fit {queries} queries in {STACK_BYTES} bytes")
    folded = fold_queries(spec, merge=merge)
    if splits is None:
        splits = splits_of(folded, queries, target)
    body = few_body(folded, config, splits, target.off)
    check_integers(body.operands, spec, "few")
    text = dispatch_text(spec, body, name)
    flags = tuple(dict.fromkeys((*FLAGS, *found.choice.flags))) if found else FLAGS
    return Kernel(name, text, "few", spec, shown(config, body.operands.splits), flags, found.reason if found else "")
