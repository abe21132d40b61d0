"""More of lucidrains' packages of one paper each: attention that is made shorter, to a grid, along axes, to a memory, of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Exporter, Module, cases_of

HEADS: dict[str, Any] = {"heads": 4, "dim_head": 12}
LAYER: dict[str, Any] = {"dim": 32, **HEADS}
MODEL: dict[str, Any] = {**LAYER, "depth": 2}
WORDS: dict[str, Any] = {**MODEL, "num_tokens": 96}
IDS, ROWS, MAP = {"ids": (2, 16)}, {"x": (2, 16, 32)}, {"x": (2, 32, 8, 8)}
FREE = {"batch": 0, "length": 1}
RUNS = (Run("inputs"), Run("one", batch=1, length=1), Run("longer", batch=3, length=13))


def first(module: Any, *tensors: torch.Tensor) -> Any:
    """Its result, or the first of them."""
    made = module(*tensors)
    return made[0] if isinstance(made, tuple | list) else made


@dataclass(frozen=True)
class Network:
    """A class of a package with its options. `free`: whether any length will do."""

    name: str
    package: str
    kind: str
    options: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    call: Callable[..., Any] = first
    free: bool = False
    ints: tuple[str, ...] = ("ids", "text")
    bools: tuple[str, ...] = field(default=("mask",))


def made(network: Network) -> Any:
    module = getattr(import_module(network.package), network.kind)(**network.options)
    return Call(module.requires_grad_(False), network.call)


def frames(module: Any, x: torch.Tensor) -> Any:
    """Invariant points of frames that are turned about their first axis."""
    angle = x[..., 0]
    zero, one, cos, sin = torch.zeros_like(angle), torch.ones_like(angle), angle.cos(), angle.sin()
    rows = [torch.stack(row, -1) for row in ((one, zero, zero), (zero, cos, -sin), (zero, sin, cos))]
    pairs = x[:, :, None] * x[:, None]
    return module(x, pairwise_repr=pairs, rotations=torch.stack(rows, -2), translations=x[..., 1:4])


NETWORKS: tuple[Network, ...] = (
    Network("nystrom", "nystrom_attention", "NystromAttention", LAYER | {"num_landmarks": 4}, ROWS),
    Network("linformer", "linformer", "LinformerLM", {**WORDS, "seq_len": 16, "k": 6}, IDS),
    Network(
        "linformer-one-kv",
        "linformer",
        "LinformerLM",
        {**WORDS, "seq_len": 16, "k": 6, "one_kv_head": True, "share_kv": True},
        IDS,
    ),
    Network("palm", "palm_pytorch", "PaLM", WORDS, IDS, free=True),
    Network(
        "megabyte",
        "MEGABYTE_pytorch",
        "MEGABYTE",
        {"num_tokens": 96, "dim": (32, 24), "depth": (1, 1), "max_seq_len": (4, 4), **HEADS},
        IDS,
    ),
    Network(
        "megabyte-alibi",
        "MEGABYTE_pytorch",
        "MEGABYTE",
        {"num_tokens": 96, "dim": (32, 24), "depth": (1, 1), "max_seq_len": (4, 4), "rel_pos": True, **HEADS},
        IDS,
    ),
    Network(
        "resampler",
        "flamingo_pytorch",
        "PerceiverResampler",
        {**MODEL, "num_latents": 5, "num_media_embeds": 3},
        {"x": (2, 3, 9, 32)},
    ),
    Network(
        "flamingo",
        "flamingo_pytorch",
        "GatedCrossAttentionBlock",
        LAYER,
        {"x": (2, 16, 32), "media": (2, 3, 5, 32), "mask": (2, 16)},
        lambda m, x, media, at: m(x, media, media_locations=at),
    ),
    Network("agent", "agent_attention_pytorch", "AgentSelfAttention", LAYER | {"num_agent_tokens": 5}, ROWS, free=True),
    Network(
        "agent-plain",
        "agent_attention_pytorch",
        "AgentSelfAttention",
        LAYER | {"num_agent_tokens": 5, "talking_heads": False},
        {**ROWS, "mask": (2, 16)},
        free=True,
    ),
    Network(
        "deformable-1d",
        "deformable_attention",
        "DeformableAttention1D",
        LAYER | {"offset_groups": 2, "downsample_factor": 4, "offset_kernel_size": 6},
        {"x": (2, 32, 16)},
    ),
    Network(
        "deformable-2d",
        "deformable_attention",
        "DeformableAttention",
        LAYER | {"offset_groups": 2, "downsample_factor": 4, "offset_kernel_size": 6},
        {"x": (2, 32, 16, 16)},
    ),
    Network(
        "bidirectional",
        "bidirectional_cross_attention",
        "BidirectionalCrossAttention",
        LAYER | {"context_dim": 24},
        {"x": (2, 16, 32), "context": (2, 9, 24), "mask": (2, 16)},
        lambda m, x, context, mask: m(x, context, mask=mask),
    ),
    Network(
        "uformer",
        "uformer_pytorch",
        "Uformer",
        {"dim": 16, "stages": 2, "num_blocks": 1, "window_size": 4, "dim_head": 8, "heads": 2},
        {"image": (2, 3, 16, 16)},
    ),
    Network("conformer", "conformer", "Conformer", MODEL | {"conv_kernel_size": 5}, ROWS, free=True),
    Network(
        "points",
        "invariant_point_attention",
        "InvariantPointAttention",
        {"dim": 32, "heads": 4, "pairwise_repr_dim": 32},
        ROWS,
        frames,
    ),
    Network(
        "timesformer",
        "timesformer_pytorch",
        "TimeSformer",
        {**MODEL, "num_frames": 3, "num_classes": 10, "image_size": 16, "patch_size": 8},
        {"video": (2, 3, 3, 16, 16)},
    ),
    Network(
        "stam",
        "stam_pytorch",
        "STAM",
        {"dim": 32, "image_size": 16, "patch_size": 8, "num_frames": 3, "num_classes": 10, "space_depth": 1}
        | {"space_heads": 2, "space_mlp_dim": 48, "time_depth": 1, "time_heads": 4, "time_mlp_dim": 48}
        | {"space_dim_head": 12, "time_dim_head": 12},
        {"video": (2, 3, 3, 16, 16)},
    ),
    Network(
        "feedback", "feedback_transformer_pytorch", "FeedbackTransformer", {**WORDS, "mem_len": 6}, {"ids": (2, 6)}
    ),
    Network("isab", "isab_pytorch", "ISAB", {"dim": 32, "heads": 4, "num_latents": 5}, ROWS, free=True),
    Network(
        "isab-inverted",
        "isab_pytorch",
        "ISAB",
        {"dim": 32, "heads": 4, "num_latents": 5, "latent_self_attend": True, "inverted_attention": True},
        {**ROWS, "mask": (2, 16)},
        lambda m, x, mask: first(m, x, None, mask),
        free=True,
    ),
    Network("axial", "axial_attention", "AxialAttention", {"dim": 32, "heads": 4, "dim_index": 1}, MAP),
    Network(
        "axial-3d",
        "axial_attention",
        "AxialAttention",
        {"dim": 32, "heads": 4, "dim_index": 1, "num_dimensions": 3, "sum_axial_out": False},
        {"x": (2, 32, 4, 5, 6)},
    ),
    Network("tranception", "tranception_pytorch", "Tranception", {**WORDS, "heads": 4}, IDS),
    Network("kronecker", "kronecker_attention_pytorch", "KroneckerSelfAttention", {"dim": 32, "heads": 4}, MAP),
    Network(
        "lambda", "lambda_networks", "LambdaLayer", {"dim": 32, "dim_out": 32, "dim_k": 8, "r": 3, "heads": 4}, MAP
    ),
    Network(
        "se3",
        "se3_transformer_pytorch",
        "SE3Transformer",
        {"dim": 16, "heads": 2, "dim_head": 8, "depth": 1, "num_degrees": 2, "num_neighbors": 4, "valid_radius": 10},
        {"x": (1, 7, 16), "places": (1, 7, 3)},
    ),
    Network(
        "lsh",
        "reformer_pytorch",
        "LSHSelfAttention",
        {"dim": 32, "heads": 4, "bucket_size": 4, "n_hashes": 2, "causal": True, "use_full_attn": True},
        ROWS,
    ),
    Network(
        "native-sparse",
        "native_sparse_attention_pytorch",
        "SparseAttention",
        {**LAYER, "sliding_window_size": 4, "compress_block_size": 4, "compress_block_sliding_stride": 2}
        | {"selection_block_size": 4, "num_selected_blocks": 2, "causal": True},
        ROWS,
    ),
    Network(
        "mixture",
        "mixture_of_attention",
        "MixtureOfAttention",
        {**LAYER, "num_routed_queries": 5, "num_routed_key_values": 6, "use_triton": False, "flash_attn": False},
        ROWS,
    ),
    Network(
        "slots",
        "slot_attention",
        "MultiHeadSlotAttention",
        {"num_slots": 5, "dim": 32, "heads": 4, "dim_head": 12},
        ROWS,
    ),
    Network(
        "compressive",
        "compressive_transformer_pytorch",
        "CompressiveTransformer",
        {"num_tokens": 96, "dim": 32, "seq_len": 16, "depth": 2, "heads": 4, "mem_len": 16, "cmem_len": 4},
        IDS,
    ),
    Network(
        "graph",
        "graph_transformer_pytorch",
        "GraphTransformer",
        {**MODEL, "edge_dim": 12, "rel_pos_emb": True},
        {"x": (2, 9, 32), "edges": (2, 9, 9, 12), "mask": (2, 9)},
        lambda m, x, edges, mask: first(m, x, edges, None, mask),
    ),
    Network(
        "video-unet",
        "video_diffusion_pytorch",
        "Unet3D",
        {"dim": 8, "dim_mults": (1, 2), "attn_heads": 2, "attn_dim_head": 8},
        {"video": (1, 3, 3, 16, 16), "time": (1,)},
        lambda m, video, time: m(video, time.abs()),
    ),
)
BOTH_WAYS = (
    "agent agent-plain bidirectional conformer isab isab-inverted axial axial-3d points graph uformer flamingo compressive slots"
).split()
DYNAMO = ("palm", "lsh", "native-sparse")
"""What the other exporter does not write."""
NORMED = "a softmax along the queries, whose result is divided by its sums along the keys"
ATTENTIONS = {
    "agent": (0, "the probabilities of different heads are mixed"),
    "isab-inverted": (1, f"the other has {NORMED}"),
    "slots": (0, NORMED),
    "nystrom": (2, "the probabilities between landmarks are inverted"),
    "native-sparse": (3, "another softmax tells which blocks are read"),
    "video-unet": (7, "the others have a softmax of Q and one of K, and no scores"),
    "lsh": (1, "queries do not see themselves"),
}
"""Where it is another number than that of softmaxes of three axes, or what is special, and why."""


def exporters_of(name: str) -> tuple[Exporter, ...]:
    if name in BOTH_WAYS:
        return BOTH
    return ("dynamo",) if name in DYNAMO else ("torchscript",)


def cases() -> Iterator[Case]:
    def module(network: Network) -> Module:
        types = {name: torch.int64 for name in network.ints} | {name: torch.bool for name in network.bools}
        wanted = ("batch", "length") if network.free else ("batch",)
        axes = {name: {FREE[axis]: axis for axis in wanted} for name in network.inputs}
        return Module(
            network.name,
            partial(made, network),
            network.inputs,
            *ATTENTIONS.get(network.name, (None, "")),
            {name: kind for name, kind in types.items() if name in network.inputs},
            axes,
            exporters_of(network.name),
            RUNS,
        )

    return cases_of([module(network) for network in NETWORKS])
