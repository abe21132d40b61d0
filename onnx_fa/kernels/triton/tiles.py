"""Which tiles a Triton kernel gets: measured ones from the tuning database, else built-in ones that compile for any spec."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from onnx_fa.kernels.plan.score import free, varies
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.kernels.tiles.database import (
    Pick,
    Tiles,
    is_own,
    pick,
    queries_computed,
    shape_table,
    triton_database,
)
from onnx_fa.kernels.tiles.families import family
from onnx_fa.kernels.tiles.shapes import read_shapes
from onnx_fa.kernels.triton.by_shape import tiles_by_shape
from onnx_fa.kernels.triton.cluster import can_cluster, is_cluster, received_bytes
from onnx_fa.kernels.triton.columns import WIDEST_TILE, columns_computed
from onnx_fa.kernels.triton.config import (
    CLUSTER,
    FEW,
    HELD,
    MOST_SPLITS,
    PERSISTENT,
    SHARED_BYTES,
    WARPGROUP_ROWS,
    TritonConfig,
    padded,
    power_of_two,
)
from onnx_fa.kernels.triton.held import can_hold, with_all_keys
from onnx_fa.kernels.triton.overlapped import can_overlap
from onnx_fa.kernels.triton.persistent import can_persist
from onnx_fa.kernels.triton.specialised import can_specialise
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply, tensors_of
from onnx_fa.spec.switches import ALL_ON, Switch
from onnx_fa.spec.terms import Elementwise

PROCESSORS = 128
"""About as many multiprocessors as a large GPU has: what a split of the keys should keep busy."""
OVERLAP_KEYS = {0: 0, 1: 2048, 2: 1024, PERSISTENT: 256, HELD: 0, CLUSTER: 0}
"""Fewer keys than that, plain ones, do not pay for filling and draining the pipeline of the form."""
WORKGROUPS = "workgroups"
"""In tiles for a few queries: how many there should be, by splitting the keys; PROCESSORS where it is not said."""
MOST_ACCUMULATORS = 192
"""Of f32 per thread, which has 255 registers: scores of a block and outputs."""
MOST_OF_PARTS = {2: MOST_ACCUMULATORS, 3: 100, 4: 64}
"""The same by the number of parts of workgroups that stay, whose threads have fewer registers the more parts there are."""
_SCANNED_AT_EASE = 1024
_MOST_COLUMNS = 1152
"""Of queries and outputs together, for which 64 rows of halves fit Hopper and 32 fit others."""
_UNKNOWN_HEADS, _UNKNOWN_KEYS = 8, 1 << 14


def tuned(spec: AttentionSpec, arch: int, off: frozenset[Switch] = ALL_ON) -> tuple[TritonConfig, str]:
    """Tiles for a spec (already folded), and where they are from; `off`: without these optimisations."""
    if Switch.TILES in off:
        return default_config(spec, arch), "built in, as was asked for"
    tiles, reason = tuned_tiles(spec, arch, off)
    config = config_of(spec, tiles)
    if spec.gathered is not None and config.stages > 1:
        # The index of a block is loaded a stage before its rows.
        config = dataclasses.replace(config, stages=config.stages + 1)
    return config, reason


def without(config: TritonConfig, off: frozenset[Switch]) -> TritonConfig:
    """The configuration without what is off of it."""
    changes = {"splits": Switch.SPLITTING, "stages": Switch.PIPELINING}
    return dataclasses.replace(config, **{name: 1 for name, switch in changes.items() if switch in off})


def tuned_tiles(spec: AttentionSpec, arch: int, off: frozenset[Switch] = ALL_ON) -> tuple[Tiles, str]:
    """The same as the database has them: from the table of shapes, where it has any like the spec and no entry of the spec's very
    family was measured later, by the user say; else of entries with these head dims, in halves or in f32 as the spec is."""
    width, single = max(padded(spec.D), padded(spec.Dv)), spec.dtype == "f32"

    def among(integers: bool) -> Pick | None:
        return pick(
            triton_database(arch),
            "triton",
            alike(spec),
            fitting(spec, plain_form=Switch.OVERLAPPING in off),
            lambda t: queries_computed(spec.Sq, t["BM"]),
            lambda f: (
                (f.dtype.split()[0] == "f32") == single and max(f.D, f.Dv) == width and f.has_integers == integers
            ),
        )

    # Integers take longer to widen than to read, so that they have larger workgroups, and more of them.
    found = (among(integers=True) if spec.quantized else None) or among(integers=False)
    table = read_shapes(shape_table(arch))
    later = found is not None and table is not None and _measured_later(found, spec, str(table.measured["date"]))
    if not is_own(triton_database(arch)) and not later:
        near = tiles_by_shape(spec, table, lambda t: _can_take(spec, t, arch, Switch.OVERLAPPING in off))
        if near is not None:
            return _by_workgroups(spec, near[0]), near[1]
    if found is None:
        kind = "f32" if single else "halves"
        return tiles_of(
            default_config(spec, arch), spec
        ), f"built in: nothing was measured in {kind} with head dims of {width}"
    return found.choice.tiles, found.reason


def _measured_later(found: Pick, spec: AttentionSpec, date: str) -> bool:
    return found.entry.family == family(alike(spec), "triton") and str(found.entry.measured.get("date", "")) > date


def _by_workgroups(spec: AttentionSpec, tiles: Tiles) -> Tiles:
    """Tiles that say into how many parts the keys are split, as the database has them: by the number of workgroups, where `splits`
    makes as many parts of that."""
    rest, parts = {k: v for k, v in tiles.items() if k != "splits"}, tiles["splits"]
    if splits(spec) == parts == 1:
        return rest
    workgroups = parts * math.prod(int(d) for d in (*spec.batch, spec.Hq))
    return rest | {WORKGROUPS: workgroups} if splits(spec, workgroups) == parts else tiles


def _can_take(spec: AttentionSpec, tiles: Tiles, arch: int, plain_form: bool) -> bool:
    """Whether tiles of the table of shapes are for a spec."""
    forms, tiles = forms_of(spec, plain_form=plain_form), with_all_keys(tiles, spec.Skv)
    of_size = (tiles["BM"] <= FEW) == is_few(spec)
    return of_size and forms[tiles["overlap"]] and can_run(spec, TritonConfig(**tiles), arch)


def forms_of(spec: AttentionSpec, *, plain_form: bool = False) -> dict[int, bool]:
    """Whether each form is for a spec; `plain_form`: no other than that one is wanted."""
    others = {1: can_overlap, 2: can_specialise, PERSISTENT: can_persist, HELD: can_hold, CLUSTER: can_cluster}
    return {0: True, **{form: not plain_form and can(spec) for form, can in others.items()}}


def config_of(spec: AttentionSpec, tiles: Tiles) -> TritonConfig:
    """The configuration that a spec gets with tiles of the database. Raises ValueError where there is none such."""
    own = {k: v for k, v in with_all_keys(tiles, spec.Skv).items() if k != WORKGROUPS}
    return TritonConfig(**{"splits": splits(spec, tiles.get(WORKGROUPS, PROCESSORS)), **own})


def tiles_of(config: TritonConfig, spec: AttentionSpec) -> Tiles:
    """A configuration whose keys are split as `splits` does, as the database has it."""
    tiles = {k: v for k, v in dataclasses.asdict(config).items() if k != "splits"}
    return {**tiles, WORKGROUPS: PROCESSORS} if splits(spec) > 1 else tiles


def alike(spec: AttentionSpec) -> AttentionSpec:
    """The spec (already folded) as its tiles are looked up: with head dims as tiles have them, without terms that only add."""
    masks = tuple(m for m in spec.masks if not (isinstance(m, Elementwise) and _only_adds(m)))
    k, v = (x and dataclasses.replace(x, shape=()) for x in (spec.k_quant, spec.v_quant))
    return dataclasses.replace(spec, D=padded(spec.D), Dv=padded(spec.Dv), masks=masks, k_quant=k, v_quant=v)


def fitting(spec: AttentionSpec, *, plain_form: bool = False) -> Callable[[Tiles], bool]:
    """Which tiles are for a spec (already folded); of the plain form alone, if so."""
    plain = not alike(spec).masks and not spec.mods
    keys = spec.Skv if plain and isinstance(spec.Skv, int) else max(OVERLAP_KEYS.values())
    carried = forms_of(spec, plain_form=plain_form)
    forms = [f for f, least in OVERLAP_KEYS.items() if carried[f] and keys >= least]
    idle = leaves_idle(spec)
    least = 128 if scans_few_keys(spec) and not idle else FEW + 1

    def fits(tiles: Tiles) -> bool:
        high = idle and tiles["BM"] > 64 and not tiles["overlap"]
        return (tiles["BM"] <= FEW if is_few(spec) else tiles["BM"] >= least) and tiles["overlap"] in forms and not high

    return fits


def can_run(spec: AttentionSpec, config: TritonConfig, arch: int) -> bool:
    """Whether tiles may fit an architecture, without compiling them: the buffers of K and V in its shared memory (with all but one
    stage, as the last may be in registers), the accumulators in MOST_ACCUMULATORS registers, Hopper's forms on Hopper."""
    d, dv, size = padded(spec.D), padded(spec.Dv), 4
    if spec.dtype != "f32":
        d, dv, size = columns_computed(spec.D), columns_computed(spec.Dv), 2
    buffers, queries = (config.stages - 1, 0) if config.overlap in (0, CLUSTER) else (config.stages, 1)
    if config.overlap == HELD:
        buffers, queries = 1, config.stages
    shared = size * (buffers * config.BN * (d + dv) + queries * config.BM * d)
    part = {2: config.BM // 2, PERSISTENT: WARPGROUP_ROWS}.get(config.overlap, config.BM)
    most = MOST_ACCUMULATORS
    if config.overlap == PERSISTENT:
        if config.BM // part not in MOST_OF_PARTS or config.warps != part // 16:
            return False
        most = MOST_OF_PARTS[config.BM // part]
        shared += config.BM * dv  # outputs are put in order there, at least half of them at a time
    accumulators = part * (config.BN + dv) / (32 * config.warps)
    rows = 16 * config.warps <= part and config.splits == 1
    if config.overlap == CLUSTER:
        form = arch // 10 == 9 and is_cluster(spec, config)
        shared += received_bytes(FEW, dv, config.splits)
    elif config.overlap == HELD:
        form = rows and isinstance(spec.Skv, int) and padded(spec.Skv) == config.BN
    else:
        form = not config.overlap or (rows and config.warps % 4 == 0 and arch // 10 == 9)
    return form and shared <= SHARED_BYTES[arch] and accumulators <= most


def tf32_tiles(spec: AttentionSpec) -> tuple[TritonConfig, str] | None:
    """Tiles for f32 through single products of tf32 on Hopper, which take less shared memory and time than three: measured on an
    H200 for plain attention. None where nothing was."""
    width = max(padded(spec.D), padded(spec.Dv))
    if splits(spec) > 1 or is_few(spec) or width not in (64, 128):
        return None
    heads = [d for d in (*spec.batch, spec.Hq) if isinstance(d, int)]
    groups = math.prod(heads) * -(-spec.Sq // 128) if isinstance(spec.Sq, int) else PROCESSORS
    if width == 128:
        config = TritonConfig(128, 64, 8, 2)
    else:
        config = TritonConfig(128, 64, 4, 2) if groups >= PROCESSORS else TritonConfig(64, 64, 4, 3)
    return config, "measured for plain attention in tf32"


def _only_adds(term: Elementwise) -> bool:
    """Whether a term adds a bias that no tensor of scores' size holds: its tiles are those without it."""
    whole = any(varies(x) == (True, True) for x in term.tensors)
    match term.expr:
        case Apply("Add", args):
            return SCORE in args and any(map(free, args)) and not whole
    return False


def scans_few_keys(spec: AttentionSpec) -> bool:
    """Whether every workgroup reads a tensor of all keys to know its blocks, as with documents, and there are so few keys that this
    counts: then few large workgroups are faster."""
    read = {index for e in skipping(spec).low for index in tensors_of(e)}
    few = isinstance(spec.Skv, int) and spec.Skv < _SCANNED_AT_EASE
    return few and any(varies(spec.tensors[i])[1] for i in read) and not is_few(spec)


def leaves_idle(spec: AttentionSpec) -> bool:
    """Whether workgroups of 128 queries would leave more than half of a GPU's multiprocessors without work, with one of each batch
    that only a run knows."""
    heads = [d for d in (*spec.batch, spec.Hq) if isinstance(d, int)]
    known = isinstance(spec.Sq, int) and isinstance(spec.Hq, int)
    return known and math.prod(heads) * -(-int(spec.Sq) // 128) * 2 < PROCESSORS


def is_few(spec: AttentionSpec) -> bool:
    return isinstance(spec.Sq, int) and spec.Sq <= FEW


def splits(spec: AttentionSpec, workgroups: int = PROCESSORS) -> int:
    """How many parts the keys are cut into: one where there are many queries, or two walks over the keys; else as many as give so
    many workgroups, of 128 keys at the least."""
    if not isinstance(spec.Sq, int) or spec.Sq > 32 or spec.rounding is not None:
        return 1
    heads = 1
    for d in (*spec.batch, spec.Hq):
        heads *= d if isinstance(d, int) else _UNKNOWN_HEADS
    wanted = power_of_two(max(1, workgroups // heads))
    keys = spec.Skv if isinstance(spec.Skv, int) else _UNKNOWN_KEYS
    return min(wanted, power_of_two(max(1, keys // 128)), MOST_SPLITS)


def default_config(spec: AttentionSpec, arch: int) -> TritonConfig:
    """Tiles that were not measured for the spec."""
    width = max(padded(spec.D), padded(spec.Dv))
    parts = splits(spec)
    rows = min(128, padded(spec.Sq)) if isinstance(spec.Sq, int) else 128
    if width > WIDEST_TILE:
        return TritonConfig(
            min(rows, _rows_of_wide_heads(spec, arch)), 16 if spec.dtype == "f32" else 32, 8, 2, splits=parts
        )
    if spec.dtype == "f32":
        small = {16: (64, 64), 32: (64, 64), 64: (64, 64), 128: (64, 32)}.get(width, (32, 16))
        return TritonConfig(min(rows, small[0]), small[1], 4, 2, splits=parts)
    if rows <= 32:
        return TritonConfig(rows, 64, 4, 3, splits=parts)
    if arch >= 90:
        if width <= 128:
            return TritonConfig(min(rows, 64), 64, 4, 3)
        return TritonConfig(rows, 64, 8 if rows == 128 else 4, 2)
    if width <= 64:
        return TritonConfig(rows, 64, 4, 3)
    return TritonConfig(min(rows, 128 if width == 128 else 64), 32, 8 if width == 128 and rows == 128 else 4, 2)


def _rows_of_wide_heads(spec: AttentionSpec, arch: int) -> int:
    """How many queries' outputs, of more than 256 columns, are in registers, and their queries in shared memory."""
    if spec.dtype == "f32":
        return 16
    return {90: 64, 80: 32}[arch] if spec.D + spec.Dv <= _MOST_COLUMNS else {90: 32, 80: 16}[arch]


def smaller(config: TritonConfig) -> Iterator[TritonConfig]:
    """The tiles, then ever smaller ones, for where they do not fit."""
    while True:
        yield config
        if config.overlap == PERSISTENT:
            config = dataclasses.replace(config, BM=128, overlap=2, order=min(config.order, 1))
        elif config.overlap == 2:
            config = dataclasses.replace(config, BM=config.BM // 2, overlap=1)
        elif config.overlap == HELD and config.stages > 1:
            config = dataclasses.replace(config, stages=config.stages - 1)
        elif config.overlap == HELD:
            config = dataclasses.replace(config, BN=min(config.BN, 64), stages=2, overlap=0)
        elif config.overlap:
            config = dataclasses.replace(config, overlap=0)
        elif config.stages > 2:
            config = dataclasses.replace(config, stages=config.stages - 1)
        elif config.BN > 16:
            config = dataclasses.replace(config, BN=config.BN // 2)
        elif config.BM > 16:
            config = dataclasses.replace(config, BM=config.BM // 2, warps=max(4, config.warps // 2))
        elif config.stages > 1:
            config = dataclasses.replace(config, stages=1)
        else:
            return
